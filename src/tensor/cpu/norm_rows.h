// RMSNorm and RoPE of rows, written once and compiled per instruction set.
//
// A row is walked in vectors of 16; its sums fold four chains of 16 lanes, whatever the instruction
// set and however many rows the call has. Values between the steps are rounded to T where models.md
// (section 3) says so.
#pragma once

#include <cstdint>

#include "tensor/cpu/norm_kernels.h"
#include "tensor/cpu/vec16.h"

namespace quadrille::tensor::cpu {
namespace {

template <class T>
QD_INLINE float inverse_rms(const T* x, int64_t n, float eps) {
  const float squares = sum_of(n, [&](int64_t i, int64_t lanes) {
    const F16 v = get(x + i, lanes);
    return v * v;
  });
  return 1.0F / __builtin_sqrtf(squares / static_cast<float>(n) + eps);
}

template <class T>
void norm_rows(const T* x, const T* residual, const T* weight, int64_t rows, int64_t cols,
               float eps, T* sum_out, T* y, float* rstd) {
  for (int64_t row = 0; row < rows; ++row) {
    const T* in = x + row * cols;
    if (residual != nullptr) {
      const T* other = residual + row * cols;
      T* out = sum_out + row * cols;
      each16(cols, [&](int64_t i, int64_t lanes) {
        put(out + i, get(in + i, lanes) + get(other + i, lanes), lanes);
      });
      in = out;
    }
    const float inverse = inverse_rms(in, cols, eps);
    if (rstd != nullptr) rstd[row] = inverse;
    const F16 scale = fill16(inverse);
    T* out = y + row * cols;
    each16(cols, [&](int64_t i, int64_t lanes) {
      put(out + i, get(weight + i, lanes) * rounded<T>(get(in + i, lanes) * scale), lanes);
    });
  }
}

// g is the gradient of the normalised row before its weight: dy. dx(i, lanes, value) takes the
// result.
template <class D, class T, class Out>
QD_INLINE void norm_row_backward(const D* dy, const T* x, const T* weight, float inverse,
                                 int64_t cols, float* dweight, Out out) {
  const F16 scale = fill16(inverse);
  const float dot = sum_of(cols, [&](int64_t i, int64_t lanes) {
    const F16 x_hat = get(x + i, lanes) * scale;
    const F16 grad = get(dy + i, lanes);
    if (dweight != nullptr) put(dweight + i, fma(grad, x_hat, get(dweight + i, lanes)), lanes);
    return grad * get(weight + i, lanes) * x_hat;
  });
  const F16 mean = fill16(dot / static_cast<float>(cols));
  each16(cols, [&](int64_t i, int64_t lanes) {
    const F16 x_hat = get(x + i, lanes) * scale;
    out(i, lanes, (get(dy + i, lanes) * get(weight + i, lanes) - x_hat * mean) * scale);
  });
}

template <class T>
void norm_rows_backward(const T* dy, const T* dsum, const T* x, const T* weight, const float* rstd,
                        int64_t rows, int64_t cols, T* dx, float* dweight) {
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t at = row * cols;
    norm_row_backward(dy + at, x + at, weight, rstd[row], cols, dweight,
                      [&](int64_t i, int64_t lanes, F16 grad) {
                        if (dx == nullptr) return;
                        if (dsum != nullptr) grad = grad + get(dsum + at + i, lanes);
                        put(dx + at + i, grad, lanes);
                      });
  }
}

// Even and odd numbers of 2 * lanes.
template <class T>
QD_INLINE void split_pairs(const T* x, int64_t lanes, F16* even, F16* odd) {
  float a[16] = {};
  float b[16] = {};
  for (int64_t i = 0; i < lanes; ++i) {
    a[i] = to_float(x[2 * i]);
    b[i] = to_float(x[2 * i + 1]);
  }
  *even = load16f(a);
  *odd = load16f(b);
}
template <class T>
QD_INLINE void join_pairs(T* x, int64_t lanes, F16 even, F16 odd) {
  T a[16];
  T b[16];
  store16f(a, even);
  store16f(b, odd);
  for (int64_t i = 0; i < lanes; ++i) {
    x[2 * i] = a[i];
    x[2 * i + 1] = b[i];
  }
}

// One head. In activation dtype: each product is rounded, then their sum. `before` acts on what was
// loaded.
template <class T, class In, class Before>
QD_INLINE void rotate(const In* x, int64_t dim, bool interleaved, const float* cos,
                      const float* sin, Before before, T* y) {
  const int64_t half = dim / 2;
  each16(half, [&](int64_t i, int64_t lanes) {
    F16 a;
    F16 b;
    if (interleaved) {
      split_pairs(x + 2 * i, lanes, &a, &b);
    } else {
      a = get(x + i, lanes);
      b = get(x + half + i, lanes);
    }
    a = before(a);
    b = before(b);
    const F16 c = rounded<T>(get(cos + i, lanes));
    const F16 s = rounded<T>(get(sin + i, lanes));
    put(y + i, rounded<T>(a * c) - rounded<T>(b * s), lanes);
    put(y + half + i, rounded<T>(b * c) + rounded<T>(a * s), lanes);
  });
}

// The gradient of rotate(); T is the dtype that cos and sin were rounded to.
template <class T, class Out>
QD_INLINE void rotate_back(const T* dy, int64_t dim, bool interleaved, const float* cos,
                           const float* sin, Out* dx) {
  const int64_t half = dim / 2;
  each16(half, [&](int64_t i, int64_t lanes) {
    const F16 a = get(dy + i, lanes);
    const F16 b = get(dy + half + i, lanes);
    const F16 c = rounded<T>(get(cos + i, lanes));
    const F16 s = rounded<T>(get(sin + i, lanes));
    const F16 da = a * c + b * s;
    const F16 db = b * c - a * s;
    if (interleaved) {
      join_pairs(dx + 2 * i, lanes, da, db);
    } else {
      put(dx + i, da, lanes);
      put(dx + half + i, db, lanes);
    }
  });
}

// One of q and k of a token: `heads` heads that share norms in runs of `norm_heads`.
struct Part {
  int64_t heads;
  int64_t norm_heads;
};

template <class T>
QD_INLINE void qkv_part(const QkvShape& shape, Part part, const T* in, const T* weight,
                        const float* cos, const float* sin, T* normed, T* out) {
  const int64_t d = shape.head_dim;
  const T* source = in;
  if (part.norm_heads > 0) {
    const int64_t n = part.norm_heads * d;
    for (int64_t at = 0; at < part.heads * d; at += n) {
      const F16 scale = fill16(inverse_rms(in + at, n, shape.eps));
      each16(n, [&](int64_t i, int64_t lanes) {
        put(normed + at + i, get(weight + i, lanes) * rounded<T>(get(in + at + i, lanes) * scale),
            lanes);
      });
    }
    source = normed;
  }
  if (shape.clip > 0) {
    const F16 high = rounded<T>(fill16(shape.clip));
    const F16 low = rounded<T>(fill16(-shape.clip));
    for (int64_t h = 0; h < part.heads; ++h) {
      rotate(
          source + h * d, d, shape.interleaved, cos, sin,
          [&](F16 x) { return min(high, max(low, x)); }, out + h * d);
    }
  } else {
    for (int64_t h = 0; h < part.heads; ++h) {
      rotate(
          source + h * d, d, shape.interleaved, cos, sin, [](F16 x) { return x; }, out + h * d);
    }
  }
}

template <class T>
void qkv_tokens(const QkvShape& shape, const RopeRows& rope, int64_t begin, int64_t end,
                const T* qkv, const T* q_weight, const T* k_weight, T* q, T* k, T* v,
                float* scratch) {
  const int64_t d = shape.head_dim;
  const int64_t q_cols = shape.heads * d;
  const int64_t kv_cols = shape.kv_heads * d;
  T* normed = reinterpret_cast<T*>(scratch);
  for (int64_t t = begin; t < end; ++t) {
    const T* in = qkv + t * (q_cols + 2 * kv_cols);
    const float* cos = rope.cos + rope.positions[t] * (d / 2);
    const float* sin = rope.sin + rope.positions[t] * (d / 2);
    qkv_part(shape, {shape.heads, shape.norm_heads_q}, in, q_weight, cos, sin, normed,
             q + t * q_cols);
    qkv_part(shape, {shape.kv_heads, shape.norm_heads_k}, in + q_cols, k_weight, cos, sin, normed,
             k + t * kv_cols);
    const T* v_in = in + q_cols + kv_cols;
    T* v_out = v + t * kv_cols;
    if (shape.clip > 0) {
      const F16 high = rounded<T>(fill16(shape.clip));
      const F16 low = rounded<T>(fill16(-shape.clip));
      each16(kv_cols, [&](int64_t i, int64_t lanes) {
        put(v_out + i, min(high, max(low, get(v_in + i, lanes))), lanes);
      });
    } else {
      each16(kv_cols,
             [&](int64_t i, int64_t lanes) { put(v_out + i, get(v_in + i, lanes), lanes); });
    }
  }
}

// grad where -limit <= x <= limit, else 0: the gradient of a clamp.
template <class T>
QD_INLINE F16 through_clamp(F16 grad, F16 x, float clip) {
  const F16 zero = fill16(0.0F);
  grad = where_greater(x, rounded<T>(fill16(clip)), zero, grad);
  return where_greater(rounded<T>(fill16(-clip)), x, zero, grad);
}

template <class T>
QD_INLINE void qkv_part_backward(const QkvShape& shape, Part part, const T* in, const T* weight,
                                 const float* cos, const float* sin, const T* dy, T* dx,
                                 float* dweight, float* scratch) {
  const int64_t d = shape.head_dim;
  const int64_t cols = part.heads * d;
  const F16 zero = fill16(0.0F);
  if (dy == nullptr) {
    each16(cols, [&](int64_t i, int64_t lanes) { put(dx + i, zero, lanes); });
    return;
  }
  float* grad = scratch;
  for (int64_t h = 0; h < part.heads; ++h)
    rotate_back(dy + h * d, d, shape.interleaved, cos, sin, grad + h * d);
  if (part.norm_heads == 0) {
    each16(cols, [&](int64_t i, int64_t lanes) {
      F16 g = get(grad + i, lanes);
      if (shape.clip > 0) g = through_clamp<T>(g, get(in + i, lanes), shape.clip);
      put(dx + i, g, lanes);
    });
    return;
  }
  const int64_t n = part.norm_heads * d;
  for (int64_t at = 0; at < cols; at += n) {
    const float inverse = inverse_rms(in + at, n, shape.eps);
    if (shape.clip > 0) {
      each16(n, [&](int64_t i, int64_t lanes) {
        const F16 x_hat = rounded<T>(get(in + at + i, lanes) * fill16(inverse));
        const F16 y = rounded<T>(get(weight + i, lanes) * x_hat);
        put(grad + at + i, through_clamp<T>(get(grad + at + i, lanes), y, shape.clip), lanes);
      });
    }
    norm_row_backward(grad + at, in + at, weight, inverse, n, dweight,
                      [&](int64_t i, int64_t lanes, F16 g) { put(dx + at + i, g, lanes); });
  }
}

template <class T>
void qkv_tokens_backward(const QkvShape& shape, const RopeRows& rope, int64_t begin, int64_t end,
                         const T* qkv, const T* q_weight, const T* k_weight, const T* dq,
                         const T* dk, const T* dv, T* dqkv, float* dq_weight, float* dk_weight,
                         float* scratch) {
  const int64_t d = shape.head_dim;
  const int64_t q_cols = shape.heads * d;
  const int64_t kv_cols = shape.kv_heads * d;
  for (int64_t t = begin; t < end; ++t) {
    const T* in = qkv + t * (q_cols + 2 * kv_cols);
    T* out = dqkv + t * (q_cols + 2 * kv_cols);
    const float* cos = rope.cos + rope.positions[t] * (d / 2);
    const float* sin = rope.sin + rope.positions[t] * (d / 2);
    qkv_part_backward(shape, {shape.heads, shape.norm_heads_q}, in, q_weight, cos, sin,
                      dq == nullptr ? nullptr : dq + t * q_cols, out, dq_weight, scratch);
    qkv_part_backward(shape, {shape.kv_heads, shape.norm_heads_k}, in + q_cols, k_weight, cos, sin,
                      dk == nullptr ? nullptr : dk + t * kv_cols, out + q_cols, dk_weight, scratch);
    const T* v_in = in + q_cols + kv_cols;
    T* v_out = out + q_cols + kv_cols;
    each16(kv_cols, [&](int64_t i, int64_t lanes) {
      F16 g = dv == nullptr ? fill16(0.0F) : get(dv + t * kv_cols + i, lanes);
      if (shape.clip > 0) g = through_clamp<T>(g, get(v_in + i, lanes), shape.clip);
      put(v_out + i, g, lanes);
    });
  }
}

template <class T>
void rope_tokens(const RopeRows& rope, int64_t begin, int64_t end, const T* x, int64_t heads,
                 int64_t dim, bool interleaved, bool back, T* y) {
  for (int64_t t = begin; t < end; ++t) {
    const float* cos = rope.cos + rope.positions[t] * (dim / 2);
    const float* sin = rope.sin + rope.positions[t] * (dim / 2);
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t at = (t * heads + h) * dim;
      if (back) {
        rotate_back(x + at, dim, interleaved, cos, sin, y + at);
      } else {
        rotate(
            x + at, dim, interleaved, cos, sin, [](F16 v) { return v; }, y + at);
      }
    }
  }
}

template <class T>
constexpr NormKernels<T> kNormKernels = {&norm_rows<T>, &norm_rows_backward<T>, &qkv_tokens<T>,
                                         &qkv_tokens_backward<T>, &rope_tokens<T>};

}  // namespace
}  // namespace quadrille::tensor::cpu
