// Work items over the threads of tensor/threads.h, in no particular order: an item's result never
// depends on it.
#pragma once

#include <omp.h>

#include <cstdint>

namespace quadrille::tensor::cpu {

// The other threads spin between regions, so waking them and waiting for them costs about a
// microsecond: below a few of them, one thread does it all. A decode step of a small model is made
// of work that is hardly longer.
inline bool worth_threads(double cycles) {
  return cycles > 15e3 && omp_in_parallel() == 0 && omp_get_max_threads() > 1;
}

// f(i) for i < items, which must not throw; `cycles` is a guess of the whole.
template <class F>
void for_items(int64_t items, double cycles, F f) {
  if (items > 1 && worth_threads(cycles)) {
    const int64_t pieces = static_cast<int64_t>(omp_get_max_threads()) * 16;
    const int64_t chunk = items > pieces ? items / pieces : 1;
#pragma omp parallel for schedule(dynamic, chunk)
    for (int64_t i = 0; i < items; ++i) f(i);
  } else {
    for (int64_t i = 0; i < items; ++i) f(i);
  }
}

// f(begin, end) over even pieces of [0, n), for many small items of equal cost.
template <class F>
void for_ranges(int64_t n, double cycles, F f) {
  if (n > 1 && worth_threads(cycles)) {
    const int64_t pieces = omp_get_max_threads();
#pragma omp parallel for schedule(static, 1)
    for (int64_t i = 0; i < pieces; ++i) {
      const int64_t begin = n * i / pieces;
      const int64_t end = n * (i + 1) / pieces;
      if (begin < end) f(begin, end);
    }
  } else if (n > 0) {
    f(int64_t{0}, n);
  }
}

}  // namespace quadrille::tensor::cpu
