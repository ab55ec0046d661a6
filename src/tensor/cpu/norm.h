// RMSNorm, its sum with the residual, and everything between the fused projection and attention:
// split, q/k norm, clamp, RoPE. T is float or Bf16; statistics and gradients of weights are fp32.
#pragma once

#include <cstdint>

#include "tensor/cpu/bf16.h"

namespace quadrille::tensor::cpu {

// y = weight * cast(x * rstd) for every row; rstd [rows], null: not wanted. With `residual`, x +
// residual goes to `sum` first and is what gets normalised; without, both are null.
template <class T>
void rms_norm_forward(const T* x, const T* residual, const T* weight, int64_t rows, int64_t cols,
                      float eps, T* sum, T* y, float* rstd);

// dx = gradient through the norm, plus dsum where it is not null; x is what was normalised. dweight
// (null: frozen) is added to, dx may be null.
template <class T>
void rms_norm_backward(const T* dy, const T* dsum, const T* x, const T* weight, const float* rstd,
                       int64_t rows, int64_t cols, T* dx, float* dweight);

struct QkvShape {
  int64_t tokens = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t norm_heads_q =
      0;  // Heads that share a norm: 1 per head, `heads` for the whole, 0 no norm.
  int64_t norm_heads_k = 0;
  float eps = 0;
  float clip = 0;  // 0: off.
  bool interleaved = false;
};
// cos and sin are [positions, dim / 2] in fp32.
struct RopeRows {
  const float* cos = nullptr;
  const float* sin = nullptr;
  const int64_t* positions = nullptr;  // [tokens]
};

template <class T>
void prepare_qkv_forward(const QkvShape& shape, const RopeRows& rope, const T* qkv,
                         const T* q_weight, const T* k_weight, T* q, T* k, T* v);

// dq, dk, dv may be null (zero). The norm's statistics are computed again from qkv.
template <class T>
void prepare_qkv_backward(const QkvShape& shape, const RopeRows& rope, const T* qkv,
                          const T* q_weight, const T* k_weight, const T* dq, const T* dk,
                          const T* dv, T* dqkv, float* dq_weight, float* dk_weight);

// Rotates [tokens, heads, dim]; `back` is the gradient, which is the rotation the other way.
template <class T>
void rope(const RopeRows& rope, const T* x, int64_t tokens, int64_t heads, int64_t dim,
          bool interleaved, bool back, T* y);

}  // namespace quadrille::tensor::cpu
