#include "tensor/cpu/norm_rows.h"

namespace quadrille::tensor::cpu {

template <>
NormKernels<float> avx512_norm_kernels<float>() {
  return kNormKernels<float>;
}
template <>
NormKernels<Bf16> avx512_norm_kernels<Bf16>() {
  return kNormKernels<Bf16>;
}

}  // namespace quadrille::tensor::cpu
