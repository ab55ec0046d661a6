// The kernels of the instruction set in use, chosen once per type of kernel table.
#pragma once

#include "tensor/cpu/isa.h"

namespace quadrille::tensor::cpu {

template <class Kernels>
const Kernels& best_kernels(Kernels (*generic)(), [[maybe_unused]] Kernels (*avx2)(),
                            [[maybe_unused]] Kernels (*avx512)()) {
  static const Kernels chosen = [&] {
    switch (isa()) {
#if defined(__x86_64__)
      case Isa::kAvx512:
      case Isa::kAvx512Bf16:
        return avx512();
      case Isa::kAvx2:
        return avx2();
#endif
      default:
        return generic();
    }
  }();
  return chosen;
}

}  // namespace quadrille::tensor::cpu
