// Choosing experts, and moving rows to them and back.
#pragma once

#include <cstdint>

#include "tensor/cpu/bf16.h"

namespace quadrille::tensor::cpu {

struct RouteShape {
  int64_t tokens = 0;
  int64_t experts = 0;
  int64_t top_k = 0;
  bool sigmoid = false;
  bool normalize = false;
  float normalize_eps = 0;
  float scaling = 1;
  int64_t groups = 1;
  int64_t groups_kept = 1;
};

// logits [T,E]; bias [E], may be null; replay [T,K], may be null -> ids [T,K], weights [T,K].
void route_forward(const RouteShape& shape, const float* logits, const float* bias,
                   const int32_t* replay, int32_t* ids, float* weights);
// dlogits [T,E] from dweights [T,K].
void route_backward(const RouteShape& shape, const float* logits, const int32_t* ids,
                    const float* dweights, float* dlogits);

// Rows per expert and where each assignment goes: offsets [E+1], row_of [T*K] (-1 for an id of -1).
// Returns the first assignment whose id is neither -1 nor an expert, or -1.
int64_t dispatch_plan(const int32_t* ids, int64_t assignments, int64_t experts, int64_t* offsets,
                      int64_t* row_of);

// x [T,D] -> rows [T*K, D]; rows from `filled` on are zero.
template <class T>
void dispatch_forward(const T* x, const int64_t* row_of, int64_t tokens, int64_t top_k,
                      int64_t cols, int64_t filled, T* rows);
template <class T>
void dispatch_backward(const T* drows, const int64_t* row_of, int64_t tokens, int64_t top_k,
                       int64_t cols, T* dx);

template <class T>
void combine_forward(const T* rows, const int64_t* row_of, const float* weights, int64_t tokens,
                     int64_t top_k, int64_t cols, T* out);
// drows [R,D]: rows that nobody names are left alone. Either may be null.
template <class T>
void combine_backward(const T* dout, const T* rows, const int64_t* row_of, const float* weights,
                      int64_t tokens, int64_t top_k, int64_t cols, T* drows, float* dweights);

}  // namespace quadrille::tensor::cpu
