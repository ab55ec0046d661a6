// Spreads rows over threads. Gradients of weights are summed per block of rows and then over
// blocks, so their bits depend on the number of rows and not on the number of threads.
#include "tensor/cpu/norm.h"

#include <algorithm>

#include "tensor/cpu/dispatch.h"
#include "tensor/cpu/norm_kernels.h"
#include "tensor/cpu/parallel.h"
#include "tensor/cpu/scratch.h"

namespace quadrille::tensor::cpu {
namespace {

template <class T>
const NormKernels<T>& kernels() {
  return best_kernels(&generic_norm_kernels<T>, &avx2_norm_kernels<T>, &avx512_norm_kernels<T>);
}

Scratch& thread_scratch() {
  thread_local Scratch mine;
  return mine;
}
Scratch& call_scratch() {
  thread_local Scratch mine;
  return mine;
}

// Cuts rows into blocks that depend on their number alone; f(begin, end, sums), where sums [count]
// starts at zero and is what the block adds to `total`. Null total: no sums.
template <class F>
void in_blocks(int64_t rows, int64_t count, double cycles, float* total, F f) {
  if (total == nullptr) {
    for_ranges(rows, cycles,
               [&](int64_t begin, int64_t end) { f(begin, end, static_cast<float*>(nullptr)); });
    return;
  }
  if (rows == 0) return;
  const int64_t size = std::max<int64_t>(32, (rows + 63) / 64);
  const int64_t blocks = (rows + size - 1) / size;
  float* sums = call_scratch().take(blocks * count);
  for_items(blocks, cycles, [&](int64_t block) {
    float* mine = sums + block * count;
    std::fill_n(mine, count, 0.0F);
    f(block * size, std::min(rows, (block + 1) * size), mine);
  });
  for (int64_t block = 0; block < blocks; ++block) {
    for (int64_t i = 0; i < count; ++i) total[i] += sums[block * count + i];
  }
}

}  // namespace

template <class T>
void rms_norm_forward(const T* x, const T* residual, const T* weight, int64_t rows, int64_t cols,
                      float eps, T* sum, T* y, float* rstd) {
  for_ranges(rows, static_cast<double>(rows * cols) * 1.2, [&](int64_t begin, int64_t end) {
    const int64_t at = begin * cols;
    kernels<T>().norm(x + at, residual == nullptr ? nullptr : residual + at, weight, end - begin,
                      cols, eps, sum == nullptr ? nullptr : sum + at, y + at,
                      rstd == nullptr ? nullptr : rstd + begin);
  });
}

template <class T>
void rms_norm_backward(const T* dy, const T* dsum, const T* x, const T* weight, const float* rstd,
                       int64_t rows, int64_t cols, T* dx, float* dweight) {
  in_blocks(rows, cols, static_cast<double>(rows * cols) * 1.6, dweight,
            [&](int64_t begin, int64_t end, float* sums) {
              const int64_t at = begin * cols;
              kernels<T>().norm_backward(dy + at, dsum == nullptr ? nullptr : dsum + at, x + at,
                                         weight, rstd + begin, end - begin, cols,
                                         dx == nullptr ? nullptr : dx + at, sums);
            });
}

template <class T>
void prepare_qkv_forward(const QkvShape& shape, const RopeRows& rope, const T* qkv,
                         const T* q_weight, const T* k_weight, T* q, T* k, T* v) {
  const double numbers =
      static_cast<double>(shape.tokens * (shape.heads + 2 * shape.kv_heads) * shape.head_dim);
  for_ranges(shape.tokens, numbers * 2.0, [&](int64_t begin, int64_t end) {
    kernels<T>().qkv(shape, rope, begin, end, qkv, q_weight, k_weight, q, k, v,
                     thread_scratch().take(qkv_scratch(shape)));
  });
}

template <class T>
void prepare_qkv_backward(const QkvShape& shape, const RopeRows& rope, const T* qkv,
                          const T* q_weight, const T* k_weight, const T* dq, const T* dk,
                          const T* dv, T* dqkv, float* dq_weight, float* dk_weight) {
  const double numbers =
      static_cast<double>(shape.tokens * (shape.heads + 2 * shape.kv_heads) * shape.head_dim);
  const int64_t q_count = dq_weight == nullptr ? 0 : shape.norm_heads_q * shape.head_dim;
  const int64_t k_count = dk_weight == nullptr ? 0 : shape.norm_heads_k * shape.head_dim;
  thread_local Scratch totals;
  float* total = q_count + k_count == 0 ? nullptr : totals.take(q_count + k_count);
  std::fill_n(total, q_count + k_count, 0.0F);
  in_blocks(shape.tokens, q_count + k_count, numbers * 3.0, total,
            [&](int64_t begin, int64_t end, float* sums) {
              kernels<T>().qkv_backward(shape, rope, begin, end, qkv, q_weight, k_weight, dq, dk,
                                        dv, dqkv, q_count == 0 ? nullptr : sums,
                                        k_count == 0 ? nullptr : sums + q_count,
                                        thread_scratch().take(qkv_scratch(shape)));
            });
  for (int64_t i = 0; i < q_count; ++i) dq_weight[i] += total[i];
  for (int64_t i = 0; i < k_count; ++i) dk_weight[i] += total[q_count + i];
}

template <class T>
void rope(const RopeRows& rows, const T* x, int64_t tokens, int64_t heads, int64_t dim,
          bool interleaved, bool back, T* y) {
  for_ranges(tokens, static_cast<double>(tokens * heads * dim) * 1.2,
             [&](int64_t begin, int64_t end) {
               kernels<T>().rope(rows, begin, end, x, heads, dim, interleaved, back, y);
             });
}

#define QD_INSTANTIATE(T)                                                                          \
  template void rms_norm_forward<T>(const T*, const T*, const T*, int64_t, int64_t, float, T*, T*, \
                                    float*);                                                       \
  template void rms_norm_backward<T>(const T*, const T*, const T*, const T*, const float*,         \
                                     int64_t, int64_t, T*, float*);                                \
  template void prepare_qkv_forward<T>(const QkvShape&, const RopeRows&, const T*, const T*,       \
                                       const T*, T*, T*, T*);                                      \
  template void prepare_qkv_backward<T>(const QkvShape&, const RopeRows&, const T*, const T*,      \
                                        const T*, const T*, const T*, const T*, T*, float*,        \
                                        float*);                                                   \
  template void rope<T>(const RopeRows&, const T*, int64_t, int64_t, int64_t, bool, bool, T*);
QD_INSTANTIATE(float)
QD_INSTANTIATE(Bf16)
#undef QD_INSTANTIATE

}  // namespace quadrille::tensor::cpu
