// What the driver (norm.cc) asks of an instruction set: a range of rows each.
#pragma once

#include <cstdint>

#include "tensor/cpu/norm.h"

namespace quadrille::tensor::cpu {

// Room for one token's q or k in fp32, four times over.
inline int64_t qkv_scratch(const QkvShape& shape) {
  return 4 * ((shape.heads > shape.kv_heads ? shape.heads : shape.kv_heads) * shape.head_dim + 16);
}

template <class T>
struct NormKernels {
  void (*norm)(const T* x, const T* residual, const T* weight, int64_t rows, int64_t cols,
               float eps, T* sum, T* y, float* rstd) = nullptr;
  void (*norm_backward)(const T* dy, const T* dsum, const T* x, const T* weight, const float* rstd,
                        int64_t rows, int64_t cols, T* dx, float* dweight) = nullptr;
  // Tokens begin .. end of the whole tensors; `scratch` holds qkv_scratch(shape) floats.
  void (*qkv)(const QkvShape& shape, const RopeRows& rope, int64_t begin, int64_t end, const T* qkv,
              const T* q_weight, const T* k_weight, T* q, T* k, T* v, float* scratch) = nullptr;
  void (*qkv_backward)(const QkvShape& shape, const RopeRows& rope, int64_t begin, int64_t end,
                       const T* qkv, const T* q_weight, const T* k_weight, const T* dq, const T* dk,
                       const T* dv, T* dqkv, float* dq_weight, float* dk_weight,
                       float* scratch) = nullptr;
  void (*rope)(const RopeRows& rope, int64_t begin, int64_t end, const T* x, int64_t heads,
               int64_t dim, bool interleaved, bool back, T* y) = nullptr;
};

template <class T>
NormKernels<T> generic_norm_kernels();
template <class T>
NormKernels<T> avx2_norm_kernels();
template <class T>
NormKernels<T> avx512_norm_kernels();

}  // namespace quadrille::tensor::cpu
