// Walks over a row of logits, written once and compiled per instruction set.
#pragma once

#include <cstdint>

#include "tensor/cpu/sample_kernels.h"
#include "tensor/cpu/vec16.h"

namespace quadrille::tensor::cpu {
namespace {

bool chunk_maxima(const float* x, int64_t n, float* of_chunk) {
  bool nan = false;
  for (int64_t at = 0; at < n; at += kSoftmaxChunk) {
    const int64_t count = n - at < kSoftmaxChunk ? n - at : kSoftmaxChunk;
    F16 a = fill16(-__builtin_inff());
    F16 b = a;
    // The maximum may drop a NaN, so they are remembered.
    F16 seen = fill16(0.0F);
    int64_t i = 0;
    for (; i + 32 <= count; i += 32) {
      const F16 u = load16f(x + at + i);
      const F16 v = load16f(x + at + i + 16);
      a = max(u, a);
      b = max(v, b);
      seen = where_equal(u, u, seen, u);
      seen = where_equal(v, v, seen, v);
    }
    for (; i < count; i += 16) {
      const int64_t lanes = count - i < 16 ? count - i : 16;
      float padded[16];
      store16f(padded, fill16(-__builtin_inff()));
      for (int64_t j = 0; j < lanes; ++j) padded[j] = x[at + i + j];
      const F16 u = load16f(padded);
      a = max(u, a);
      seen = where_equal(u, u, seen, u);
    }
    of_chunk[at / kSoftmaxChunk] = largest(max(a, b));
    nan = nan || any_nan(seen);
  }
  return !nan;
}

void exp_sums(const float* z, int64_t n, float top, double* of_chunk) {
  const Vec top_vec = fill(top);
  for (int64_t at = 0; at < n; at += kSoftmaxChunk) {
    const int64_t count = n - at < kSoftmaxChunk ? n - at : kSoftmaxChunk;
    Vec sums = fill(0.0F);
    int64_t i = 0;
    for (; i + Vec::kWidth <= count; i += Vec::kWidth) {
      sums = sums + exp(load(z + at + i) - top_vec);
    }
    if (i < count) {
      const int lanes = static_cast<int>(count - i);
      float last[Vec::kWidth] = {};
      store_first(last, exp(load_first(z + at + i, lanes) - top_vec), lanes);
      sums = sums + load(last);
    }
    of_chunk[at / kSoftmaxChunk] = static_cast<double>(sum(sums));
  }
}

QD_INLINE F16 weight16(F16 z, float top) {
  return exp(z - fill16(top));
}

void temper(const float* x, int64_t n, float temperature, float* out) {
  const F16 by = fill16(temperature);
  each16(n, [&](int64_t i, int64_t lanes) { put(out + i, get(x + i, lanes) / by, lanes); });
}

void exp_weights(const float* z, int64_t n, float top, float* out) {
  each16(n,
         [&](int64_t i, int64_t lanes) { put(out + i, weight16(get(z + i, lanes), top), lanes); });
}

double kept_weights(const float* z, int64_t n, float top, float bound, float least, float* out) {
  const F16 zero = fill16(0.0F);
  F16 total = zero;
  each16(n, [&](int64_t i, int64_t lanes) {
    const F16 here = get(z + i, lanes);
    F16 w = weight16(here, top);
    w = where_greater(fill16(bound), here, zero, w);
    w = where_greater(fill16(least), w, zero, w);
    put(out + i, w, lanes);
    total = total + (lanes == 16 ? w : get(out + i, lanes));
  });
  return static_cast<double>(sum(total));
}

void above(const float* z, const float* weight, int64_t n, float bound, int64_t* count,
           double* mass) {
  const F16 limit = fill16(bound);
  const F16 zero = fill16(0.0F);
  const F16 one = fill16(1.0F);
  F16 counted = zero;
  F16 weighed = zero;
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const F16 here = load16f(z + i);
    counted = counted + where_greater(here, limit, one, zero);
    if (weight != nullptr)
      weighed = weighed + where_greater(here, limit, load16f(weight + i), zero);
  }
  float rest = 0;
  float heavy = 0;
  for (; i < n; ++i) {
    if (!(z[i] > bound)) continue;
    rest += 1;
    if (weight != nullptr) heavy += weight[i];
  }
  *count = static_cast<int64_t>(sum(counted) + rest);
  *mass = static_cast<double>(sum(weighed)) + static_cast<double>(heavy);
}

int64_t between(const float* z, int64_t n, float low, float high, int32_t* index) {
  const F16 zero = fill16(0.0F);
  const F16 one = fill16(1.0F);
  int64_t found = 0;
  for (int64_t i = 0; i < n; i += 16) {
    const int64_t lanes = n - i < 16 ? n - i : 16;
    const F16 here = get(z + i, lanes);
    // Most vectors have none.
    const F16 inside =
        where_greater(here, fill16(high), zero, where_greater(here, fill16(low), one, zero));
    if (lanes == 16 && largest(inside) == 0) continue;
    for (int64_t j = i; j < i + lanes; ++j) {
      if (z[j] > low && z[j] <= high) index[found++] = static_cast<int32_t>(j);
    }
  }
  return found;
}

int64_t pick(const float* w, int64_t n, double left) {
  constexpr int64_t kGroup = 64;
  int64_t group = -1;  // The one in which the sum passes, or the last with any weight.
  double group_left = 0;
  for (int64_t i = 0; i < n; i += kGroup) {
    const int64_t count = n - i < kGroup ? n - i : kGroup;
    F16 total = fill16(0.0F);
    each16(count, [&](int64_t j, int64_t lanes) { total = total + get(w + i + j, lanes); });
    const double sum_here = static_cast<double>(sum(total));
    if (sum_here > 0) {
      group = i;
      group_left = left;
      if (left < sum_here) break;
    }
    left -= sum_here;
  }
  int64_t found = -1;
  for (int64_t i = group; group >= 0 && i < n && i < group + kGroup; ++i) {
    if (w[i] == 0) continue;
    found = i;
    group_left -= static_cast<double>(w[i]);
    if (group_left < 0) break;
  }
  return found;
}

constexpr SampleKernels kSampleKernels = {&chunk_maxima, &exp_sums, &temper,  &exp_weights,
                                          &kept_weights, &above,    &between, &pick};

}  // namespace
}  // namespace quadrille::tensor::cpu
