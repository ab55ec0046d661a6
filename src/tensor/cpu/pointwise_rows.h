// The bodies of pointwise.h, written once against Vec.
#pragma once

#include <cmath>

#include "tensor/cpu/pointwise.h"
#include "tensor/cpu/vec.h"

namespace quadrille::tensor::cpu {
namespace {

// Calls body(offset, lanes) over 0 .. n-1; lanes < Vec::kWidth only at the end.
template <class Body>
[[gnu::always_inline]] inline void by_vector(int64_t n, Body body) {
  int64_t i = 0;
  for (; i + Vec::kWidth <= n; i += Vec::kWidth) body(i, Vec::kWidth);
  if (i < n) body(i, static_cast<int>(n - i));
}
template <class T>
[[gnu::always_inline]] inline Vec get(const T* p, int lanes) {
  return lanes == Vec::kWidth ? load(p) : load_first(p, lanes);
}
template <class T>
[[gnu::always_inline]] inline void put(T* p, Vec x, int lanes) {
  lanes == Vec::kWidth ? store(p, x) : store_first(p, x, lanes);
}
template <class F>
[[gnu::always_inline]] inline auto with_type(Type type, F f) {
  return type == Type::kFp32 ? f(float{}) : f(Bf16{});
}

inline Vec sigmoid(Vec x) {
  return fill(1.0F) / (fill(1.0F) + exp(fill(0.0F) - x));
}

void silu_mul(const void* gate, const void* up, void* h, Type type, int64_t n) {
  with_type(type, [=](auto zero) {
    using T = decltype(zero);
    by_vector(n, [=](int64_t i, int lanes) {
      const Vec g = get(static_cast<const T*>(gate) + i, lanes);
      const Vec u = get(static_cast<const T*>(up) + i, lanes);
      const Vec s = g / (fill(1.0F) + exp(fill(0.0F) - g));
      put(static_cast<T*>(h) + i, rounded<T>(s) * u, lanes);
    });
  });
}

void silu_mul_backward(const void* gate, const void* up, const void* dh, void* dgate, void* dup,
                       void* h, Type type, int64_t n) {
  with_type(type, [=](auto zero) {
    using T = decltype(zero);
    by_vector(n, [=](int64_t i, int lanes) {
      const Vec g = get(static_cast<const T*>(gate) + i, lanes);
      const Vec u = get(static_cast<const T*>(up) + i, lanes);
      const Vec d = get(static_cast<const T*>(dh) + i, lanes);
      const Vec s = sigmoid(g);
      const Vec silu = rounded<T>(g / (fill(1.0F) + exp(fill(0.0F) - g)));
      // silu'(g) = s + g s (1 - s).
      const Vec slope = fma(g * s, fill(1.0F) - s, s);
      put(static_cast<T*>(dgate) + i, d * u * slope, lanes);
      put(static_cast<T*>(dup) + i, d * silu, lanes);
      if (h != nullptr) put(static_cast<T*>(h) + i, silu * u, lanes);
    });
  });
}

// Sums of up to this many numbers are kept in fp32 lanes, longer ones in double.
constexpr int64_t kStretch = 1024;

RowSoftmax softmax_stats(const float* z, int64_t n, float temperature, bool want_entropy) {
  const Vec tau = fill(temperature);
  Vec top = fill(-INFINITY);
  by_vector(n, [&](int64_t i, int lanes) {
    const Vec x = get(z + i, lanes);
    if (lanes == Vec::kWidth) {
      top = max(top, x);
    } else {
      float last[Vec::kWidth];
      store(last, x);
      for (int j = 0; j < lanes; ++j) top = max(top, fill(last[j]));
    }
  });
  RowSoftmax stats;
  const Vec largest_scaled = fill(largest(top)) / tau;
  float first[Vec::kWidth];
  store(first, largest_scaled);
  stats.largest = static_cast<double>(first[0]);  // max may lose a NaN, the sum below does not.

  double total = 0;
  double weighted = 0;
  for (int64_t begin = 0; begin < n; begin += kStretch) {
    const int64_t count = n - begin < kStretch ? n - begin : kStretch;
    Vec sums = fill(0.0F);
    Vec products = fill(0.0F);
    by_vector(count, [&](int64_t i, int lanes) {
      const Vec d = get(z + begin + i, lanes) / tau - largest_scaled;
      const Vec e = lanes == Vec::kWidth ? exp(d) : keep_first(exp(d), lanes);
      sums = sums + e;
      if (want_entropy) products = fma(e, max(fill(-1e30F), d), products);
    });
    total += static_cast<double>(sum(sums));
    weighted += static_cast<double>(sum(products));
  }
  stats.log_sum = std::log(total);
  if (want_entropy) stats.entropy = stats.log_sum - weighted / total;
  return stats;
}

void softmax_backward(const float* z, void* dz, Type type, int64_t n, const SoftmaxBackward& row) {
  const Vec tau = fill(row.temperature);
  const auto normalizer = fill(static_cast<float>(row.log_normalizer));
  const Vec entropy = fill(row.entropy);
  const Vec d_logprob = fill(row.d_logprob);
  const Vec d_entropy = fill(row.d_entropy);
  const Vec scale = fill(-1.0F / row.temperature);
  const bool uses_entropy = row.d_entropy != 0;
  // dlogp(t)/dz_v = (1{v=t} - p_v) / tau, dH/dz_v = -p_v (log p_v + H) / tau; here without the 1.
  const auto slope = [=](Vec x) {
    const Vec logp = x / tau - normalizer;
    Vec d = d_logprob;
    if (uses_entropy) d = fma(d_entropy, max(fill(-1e30F), logp) + entropy, d);
    return exp(logp) * d * scale;
  };
  const Vec at_target = slope(fill(z[row.target])) + fill(row.d_logprob / row.temperature);
  with_type(type, [=](auto zero) {
    using T = decltype(zero);
    auto* out = static_cast<T*>(dz);
    by_vector(n, [=](int64_t i, int lanes) { put(out + i, slope(get(z + i, lanes)), lanes); });
    put(out + row.target, at_target, 1);
  });
}

void adamw(float* master, void* value, Type type, const float* grad, float* m, float* v, int64_t n,
           const AdamWCoefficients& c) {
  by_vector(n, [=](int64_t i, int lanes) {
    const Vec g = get(grad + i, lanes) * fill(c.grad_scale);
    const Vec mean = fma(get(m + i, lanes), fill(c.beta1), g * fill(c.one_minus_beta1));
    const Vec square = fma(get(v + i, lanes), fill(c.beta2), g * g * fill(c.one_minus_beta2));
    put(m + i, mean, lanes);
    put(v + i, square, lanes);
    const Vec root = fma(sqrt(square), fill(c.root_scale), fill(c.eps));
    const Vec w = get(master + i, lanes) * fill(c.decay) - fill(c.step_size) * mean / root;
    put(master + i, w, lanes);
    if (value != nullptr) {
      if (type == Type::kFp32) {
        put(static_cast<float*>(value) + i, w, lanes);
      } else {
        put(static_cast<Bf16*>(value) + i, w, lanes);
      }
    }
  });
}

double sum_of_squares(const float* x, int64_t n) {
  constexpr int kLanes = 16;
  double sums[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int j = 0; j < kLanes; ++j) {
      const auto value = static_cast<double>(x[i + j]);
      sums[j] += value * value;
    }
  }
  for (int j = 0; i < n; ++i, ++j) {
    sums[j] += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  }
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int j = 0; j < half; ++j) sums[j] += sums[j + half];
  }
  return sums[0];
}

void add(float* to, const void* from, Type type, int64_t n) {
  with_type(type, [=](auto zero) {
    using T = decltype(zero);
    by_vector(n, [=](int64_t i, int lanes) {
      put(to + i, get(to + i, lanes) + get(static_cast<const T*>(from) + i, lanes), lanes);
    });
  });
}

void convert(const void* from, Type from_type, void* to, Type to_type, int64_t n) {
  with_type(from_type, [=](auto from_zero) {
    using From = decltype(from_zero);
    with_type(to_type, [=](auto to_zero) {
      using To = decltype(to_zero);
      by_vector(n, [=](int64_t i, int lanes) {
        put(static_cast<To*>(to) + i, get(static_cast<const From*>(from) + i, lanes), lanes);
      });
    });
  });
}

PointwiseKernels kernels() {
  return {&silu_mul, &silu_mul_backward, &softmax_stats, &softmax_backward,
          &adamw,    &sum_of_squares,    &add,           &convert};
}

}  // namespace
}  // namespace quadrille::tensor::cpu
