// Loops over numbers that need no matrix product, one row (or stretch) a call, compiled per
// instruction set.
//
// An element's bits depend on the element alone, a row's result on the row alone.
#pragma once

#include <cstdint>

#include "tensor/cpu/gemm.h"

namespace quadrille::tensor::cpu {

// Of softmax(z / temperature): the largest scaled logit, log of the sum of exp(scaled - largest),
// entropy.
struct RowSoftmax {
  double largest = 0;
  double log_sum = 0;
  double entropy = 0;  // Only if asked for.
};

// d loss / d z of the row, given those of the target's log-probability and of the entropy.
struct SoftmaxBackward {
  float temperature = 1;
  double log_normalizer = 0;  // largest + log_sum.
  float entropy = 0;
  float d_logprob = 0;
  float d_entropy = 0;
  int64_t target = 0;
};

struct AdamWCoefficients {
  float grad_scale = 1;
  float beta1 = 0, one_minus_beta1 = 0;
  float beta2 = 0, one_minus_beta2 = 0;
  float decay = 1;       // 1 - lr * weight_decay.
  float step_size = 0;   // lr / (1 - beta1^t).
  float root_scale = 1;  // 1 / sqrt(1 - beta2^t).
  float eps = 0;
};

// `type` is the type of all untyped pointers.
struct PointwiseKernels {
  // h = silu(gate) * up. silu(gate) is rounded to `type` before the product, as the families' code
  // does.
  void (*silu_mul)(const void* gate, const void* up, void* h, Type type, int64_t n);
  // Also gives h again if it is not null; h may be dh.
  void (*silu_mul_backward)(const void* gate, const void* up, const void* dh, void* dgate,
                            void* dup, void* h, Type type, int64_t n);
  RowSoftmax (*softmax_stats)(const float* z, int64_t n, float temperature, bool want_entropy);
  // dz may be the memory of z, in either type.
  void (*softmax_backward)(const float* z, void* dz, Type type, int64_t n,
                           const SoftmaxBackward& row);
  // value may be null (it is the master itself).
  void (*adamw)(float* master, void* value, Type type, const float* grad, float* m, float* v,
                int64_t n, const AdamWCoefficients& c);
  double (*sum_of_squares)(const float* x, int64_t n);
  // to += from.
  void (*add)(float* to, const void* from, Type type, int64_t n);
  void (*convert)(const void* from, Type from_type, void* to, Type to_type, int64_t n);
};

PointwiseKernels generic_pointwise_kernels();
PointwiseKernels avx2_pointwise_kernels();
PointwiseKernels avx512_pointwise_kernels();
const PointwiseKernels& pointwise_kernels();

}  // namespace quadrille::tensor::cpu
