#include "tensor/cpu/pointwise.h"

#include "tensor/cpu/isa.h"

namespace quadrille::tensor::cpu {

const PointwiseKernels& pointwise_kernels() {
  static const PointwiseKernels kernels = [] {
#if defined(__x86_64__)
    if (isa() == Isa::kAvx512 || isa() == Isa::kAvx512Bf16) return avx512_pointwise_kernels();
    if (isa() == Isa::kAvx2) return avx2_pointwise_kernels();
#endif
    return generic_pointwise_kernels();
  }();
  return kernels;
}

}  // namespace quadrille::tensor::cpu
