// What the driver (route.cc) asks of an instruction set: tokens begin .. end each.
#pragma once

#include <cstdint>

#include "tensor/cpu/route.h"

namespace quadrille::tensor::cpu {

struct RouteKernels {
  // Both take route_scratch(shape) floats, 64-byte aligned.
  void (*route)(const RouteShape& shape, int64_t begin, int64_t end, const float* logits,
                const float* bias, const int32_t* replay, int32_t* ids, float* weights,
                float* scratch) = nullptr;
  void (*route_backward)(const RouteShape& shape, int64_t begin, int64_t end, const float* logits,
                         const int32_t* ids, const float* dweights, float* dlogits,
                         float* scratch) = nullptr;
};
inline int64_t route_scratch(const RouteShape& shape) {
  return 16 * (2 * shape.experts + 2 * shape.groups + 2 * shape.top_k + 32);
}

// Rows are found by row_of [T, K]; -1 is skipped.
template <class T>
struct CombineKernels {
  // weights null: all one.
  void (*combine)(const T* rows, const int64_t* row_of, const float* weights, int64_t begin,
                  int64_t end, int64_t top_k, int64_t cols, T* out) = nullptr;
  void (*combine_backward)(const T* dout, const T* rows, const int64_t* row_of,
                           const float* weights, int64_t begin, int64_t end, int64_t top_k,
                           int64_t cols, T* drows, float* dweights) = nullptr;
};

RouteKernels generic_route_kernels();
RouteKernels avx2_route_kernels();
RouteKernels avx512_route_kernels();
template <class T>
CombineKernels<T> generic_combine_kernels();
template <class T>
CombineKernels<T> avx2_combine_kernels();
template <class T>
CombineKernels<T> avx512_combine_kernels();

}  // namespace quadrille::tensor::cpu
