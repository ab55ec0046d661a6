#include "tensor/threads.h"

#include <ATen/Parallel.h>
#include <malloc.h>
#include <sched.h>

#include <algorithm>

#include "tensor/cpu/isa.h"

namespace quadrille::tensor {

void set_threads(int threads) {
  // Activations come and go by the megabyte: given back to the system each time, they would be
  // paged in anew, and cleared, at every step.
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  if (threads <= 0) {
    cpu_set_t allowed;
    CPU_ZERO(&allowed);
    threads = sched_getaffinity(0, sizeof(allowed), &allowed) == 0 ? CPU_COUNT(&allowed) : 1;
  }
  at::set_num_threads(std::max(1, threads));
  cpu::isa();  // A QUADRILLE_ISA that cannot be had is told here, where an exception can pass.
}

int threads() {
  return at::get_num_threads();
}

}  // namespace quadrille::tensor
