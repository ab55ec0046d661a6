#include "tensor/cpu/route_tile.h"

namespace quadrille::tensor::cpu {

RouteKernels avx2_route_kernels() {
  return kRouteKernels;
}
template <>
CombineKernels<float> avx2_combine_kernels<float>() {
  return kCombineKernels<float>;
}
template <>
CombineKernels<Bf16> avx2_combine_kernels<Bf16>() {
  return kCombineKernels<Bf16>;
}

}  // namespace quadrille::tensor::cpu
