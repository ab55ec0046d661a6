#include "tensor/cpu/route.h"

#include <algorithm>
#include <cstring>

#include "tensor/cpu/dispatch.h"
#include "tensor/cpu/parallel.h"
#include "tensor/cpu/route_kernels.h"
#include "tensor/cpu/scratch.h"

namespace quadrille::tensor::cpu {
namespace {

const RouteKernels& kernels() {
  return best_kernels(&generic_route_kernels, &avx2_route_kernels, &avx512_route_kernels);
}
template <class T>
const CombineKernels<T>& combine_kernels() {
  return best_kernels(&generic_combine_kernels<T>, &avx2_combine_kernels<T>,
                      &avx512_combine_kernels<T>);
}

Scratch& thread_scratch() {
  thread_local Scratch mine;
  return mine;
}

// Ranges of whole lanes.
template <class F>
void for_tokens(const RouteShape& shape, F f) {
  const double cycles =
      static_cast<double>(shape.tokens * (20 + shape.experts * (2 + shape.top_k / 4)));
  for_ranges((shape.tokens + 15) / 16, cycles, [&](int64_t begin, int64_t end) {
    f(begin * 16, std::min(shape.tokens, end * 16), thread_scratch().take(route_scratch(shape)));
  });
}

double move_cycles(int64_t tokens, int64_t top_k, int64_t cols) {
  return static_cast<double>(tokens * top_k) * (20.0 + static_cast<double>(cols) * 0.7);
}

}  // namespace

void route_forward(const RouteShape& shape, const float* logits, const float* bias,
                   const int32_t* replay, int32_t* ids, float* weights) {
  for_tokens(shape, [&](int64_t begin, int64_t end, float* scratch) {
    kernels().route(shape, begin, end, logits, bias, replay, ids, weights, scratch);
  });
}

void route_backward(const RouteShape& shape, const float* logits, const int32_t* ids,
                    const float* dweights, float* dlogits) {
  for_tokens(shape, [&](int64_t begin, int64_t end, float* scratch) {
    kernels().route_backward(shape, begin, end, logits, ids, dweights, dlogits, scratch);
  });
}

int64_t dispatch_plan(const int32_t* ids, int64_t assignments, int64_t experts, int64_t* offsets,
                      int64_t* row_of) {
  std::fill(offsets, offsets + experts + 1, 0);
  for (int64_t i = 0; i < assignments; ++i) {
    if (ids[i] < -1 || ids[i] >= experts) return i;
    if (ids[i] >= 0) ++offsets[ids[i] + 1];
  }
  // offsets[e + 1] walks from the start of expert e to its end, which is where offsets[e + 1]
  // belongs.
  int64_t start = 0;
  for (int64_t e = 0; e < experts; ++e) {
    const int64_t count = offsets[e + 1];
    offsets[e + 1] = start;
    start += count;
  }
  for (int64_t i = 0; i < assignments; ++i) row_of[i] = ids[i] >= 0 ? offsets[ids[i] + 1]++ : -1;
  return -1;
}

template <class T>
void dispatch_forward(const T* x, const int64_t* row_of, int64_t tokens, int64_t top_k,
                      int64_t cols, int64_t filled, T* rows) {
  for_ranges(tokens, move_cycles(tokens, top_k, cols), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      for (int64_t k = 0; k < top_k; ++k) {
        const int64_t row = row_of[t * top_k + k];
        if (row >= 0)
          std::memcpy(rows + row * cols, x + t * cols, static_cast<size_t>(cols) * sizeof(T));
      }
    }
  });
  std::fill(rows + filled * cols, rows + tokens * top_k * cols, T{});
}

template <class T>
void dispatch_backward(const T* drows, const int64_t* row_of, int64_t tokens, int64_t top_k,
                       int64_t cols, T* dx) {
  for_ranges(tokens, move_cycles(tokens, top_k, cols), [&](int64_t begin, int64_t end) {
    combine_kernels<T>().combine(drows, row_of, nullptr, begin, end, top_k, cols, dx);
  });
}

template <class T>
void combine_forward(const T* rows, const int64_t* row_of, const float* weights, int64_t tokens,
                     int64_t top_k, int64_t cols, T* out) {
  for_ranges(tokens, move_cycles(tokens, top_k, cols), [&](int64_t begin, int64_t end) {
    combine_kernels<T>().combine(rows, row_of, weights, begin, end, top_k, cols, out);
  });
}

template <class T>
void combine_backward(const T* dout, const T* rows, const int64_t* row_of, const float* weights,
                      int64_t tokens, int64_t top_k, int64_t cols, T* drows, float* dweights) {
  for_ranges(tokens, 2 * move_cycles(tokens, top_k, cols), [&](int64_t begin, int64_t end) {
    combine_kernels<T>().combine_backward(dout, rows, row_of, weights, begin, end, top_k, cols,
                                          drows, dweights);
  });
}

#define QD_INSTANTIATE(T)                                                                         \
  template void dispatch_forward<T>(const T*, const int64_t*, int64_t, int64_t, int64_t, int64_t, \
                                    T*);                                                          \
  template void dispatch_backward<T>(const T*, const int64_t*, int64_t, int64_t, int64_t, T*);    \
  template void combine_forward<T>(const T*, const int64_t*, const float*, int64_t, int64_t,      \
                                   int64_t, T*);                                                  \
  template void combine_backward<T>(const T*, const T*, const int64_t*, const float*, int64_t,    \
                                    int64_t, int64_t, T*, float*);
QD_INSTANTIATE(float)
QD_INSTANTIATE(Bf16)
#undef QD_INSTANTIATE

}  // namespace quadrille::tensor::cpu
