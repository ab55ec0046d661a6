// Routing 16 tokens at a time, a lane a token, so that the choice among experts needs no branches.
// Written once and compiled per instruction set.
#pragma once

#include <cstdint>

#include "tensor/cpu/route_kernels.h"
#include "tensor/cpu/vec16.h"

namespace quadrille::tensor::cpu {
namespace {

constexpr float kLost = -__builtin_inff();

// Scores of `count` tokens from token t on, [E][16].
inline void score_tokens(const RouteShape& shape, const float* logits, int64_t t, int64_t count,
                         float* scores) {
  const int64_t experts = shape.experts;
  for (int64_t e = 0; e < experts; e += 16) {
    transpose16(logits + t * experts + e, experts, count, experts - e < 16 ? experts - e : 16,
                scores + e * 16);
  }
  if (shape.sigmoid) {
    const F16 one = fill16(1.0F);
    for (int64_t e = 0; e < experts; ++e) {
      store16f(scores + e * 16, one / (one + exp(fill16(0.0F) - load16f(scores + e * 16))));
    }
    return;
  }
  F16 top = fill16(kLost);
  for (int64_t e = 0; e < experts; ++e) top = max(top, load16f(scores + e * 16));
  F16 total = fill16(0.0F);
  for (int64_t e = 0; e < experts; ++e) {
    const F16 p = exp(load16f(scores + e * 16) - top);
    total = total + p;
    store16f(scores + e * 16, p);
  }
  for (int64_t e = 0; e < experts; ++e) store16f(scores + e * 16, load16f(scores + e * 16) / total);
}

// In each lane the index of the largest of values [n][16]. The lowest index wins a tie, and NaNs
// lose. Whoever was `last` is out first, marked by -inf.
QD_INLINE F16 pick_largest(float* values, int64_t n, F16 last) {
  F16 best = fill16(kLost);
  F16 index = fill16(0.0F);
  for (int64_t i = 0; i < n; ++i) {
    const F16 here = fill16(static_cast<float>(i));
    const F16 value = where_equal(last, here, fill16(kLost), load16f(values + i * 16));
    store16f(values + i * 16, value);
    index = where_greater(value, best, here, index);
    best = where_greater(value, best, value, best);
  }
  return index;
}

// -inf for whole groups that are out (models.md, DeepSeek-V3; masking with 0 could let a masked
// expert win).
inline void mask_groups(const RouteShape& shape, float* choice, float* scratch) {
  const int64_t size = shape.experts / shape.groups;
  float* score = scratch;
  float* kept = scratch + shape.groups * 16;
  for (int64_t g = 0; g < shape.groups; ++g) {
    F16 first = fill16(kLost);
    F16 second = fill16(kLost);
    for (int64_t i = 0; i < size; ++i) {
      const F16 value = load16f(choice + (g * size + i) * 16);
      second = max(second, min(first, value));
      first = max(first, value);
    }
    store16f(score + g * 16, size > 1 ? first + second : first);
    store16f(kept + g * 16, fill16(0.0F));
  }
  F16 last = fill16(-1.0F);
  for (int64_t i = 0; i < shape.groups_kept; ++i) {
    last = pick_largest(score, shape.groups, last);
    for (int64_t g = 0; g < shape.groups; ++g) {
      const F16 flag = load16f(kept + g * 16);
      store16f(kept + g * 16, where_equal(last, fill16(static_cast<float>(g)), fill16(1.0F), flag));
    }
  }
  for (int64_t g = 0; g < shape.groups; ++g) {
    const F16 flag = load16f(kept + g * 16);
    for (int64_t i = 0; i < size; ++i) {
      float* value = choice + (g * size + i) * 16;
      store16f(value, where_greater(flag, fill16(0.5F), load16f(value), fill16(kLost)));
    }
  }
}

// The live choice of 16 tokens to chosen [K][16].
inline void choose(const RouteShape& shape, const float* scores, const float* bias, float* choice,
                   float* scratch, float* chosen) {
  for (int64_t e = 0; e < shape.experts; ++e) {
    const F16 score = load16f(scores + e * 16);
    store16f(choice + e * 16, bias == nullptr ? score : score + fill16(bias[e]));
  }
  if (shape.groups_kept < shape.groups) mask_groups(shape, choice, scratch);
  F16 last = fill16(-1.0F);
  for (int64_t k = 0; k < shape.top_k; ++k) {
    last = pick_largest(choice, shape.experts, last);
    store16f(chosen + k * 16, last);
  }
}

inline bool recorded(const int32_t* given, int64_t top_k) {
  for (int64_t k = 0; k < top_k; ++k) {
    if (given[k] < 0) return false;
  }
  return true;
}

void route_tokens(const RouteShape& shape, int64_t begin, int64_t end, const float* logits,
                  const float* bias, const int32_t* replay, int32_t* ids, float* weights,
                  float* scratch) {
  const int64_t top_k = shape.top_k;
  float* scores = scratch;
  float* choice = scores + shape.experts * 16;
  float* groups = choice + shape.experts * 16;
  float* chosen = groups + shape.groups * 32;
  float* weight = chosen + top_k * 16;
  for (int64_t t = begin; t < end; t += 16) {
    const int64_t count = end - t < 16 ? end - t : 16;
    score_tokens(shape, logits, t, count, scores);
    bool live = replay == nullptr;
    for (int64_t i = 0; i < count && !live; ++i) live = !recorded(replay + (t + i) * top_k, top_k);
    if (live) choose(shape, scores, bias, choice, groups, chosen);
    for (int64_t i = 0; i < count; ++i) {
      const int32_t* given = replay == nullptr ? nullptr : replay + (t + i) * top_k;
      const bool keep = given != nullptr && recorded(given, top_k);
      int32_t* id = ids + (t + i) * top_k;
      for (int64_t k = 0; k < top_k; ++k) {
        id[k] = keep ? given[k] : static_cast<int32_t>(chosen[k * 16 + i]);
        weight[k * 16 + i] = scores[id[k] * 16 + i];
      }
    }
    F16 divisor = fill16(1.0F);
    if (shape.normalize) {
      F16 total = load16f(weight);
      for (int64_t k = 1; k < top_k; ++k) total = total + load16f(weight + k * 16);
      divisor = total + fill16(shape.normalize_eps);
    }
    for (int64_t k = 0; k < top_k; ++k) {
      F16 w = load16f(weight + k * 16);
      if (shape.normalize) w = w / divisor;
      store16f(weight + k * 16, w * fill16(shape.scaling));
    }
    for (int64_t i = 0; i < count; ++i) {
      for (int64_t k = 0; k < top_k; ++k) weights[(t + i) * top_k + k] = weight[k * 16 + i];
    }
  }
}

// With p the scores and w_k = scaling * p_k / s, s = sum of the chosen p + eps (s = 1 without
// normalisation):
//   dL/dp_k = scaling * (dw_k - sum_j dw_j p_j / s) / s, then through the softmax or the sigmoid.
void route_tokens_backward(const RouteShape& shape, int64_t begin, int64_t end, const float* logits,
                           const int32_t* ids, const float* dweights, float* dlogits,
                           float* scratch) {
  const int64_t experts = shape.experts;
  const int64_t top_k = shape.top_k;
  float* scores = scratch;
  float* dlogit = scores + experts * 16;
  float* chosen = dlogit + experts * 16;
  float* dweight = chosen + top_k * 16;
  float* square = dweight + top_k * 16;
  const F16 zero = fill16(0.0F);
  const F16 one = fill16(1.0F);
  for (int64_t t = begin; t < end; t += 16) {
    const int64_t count = end - t < 16 ? end - t : 16;
    score_tokens(shape, logits, t, count, scores);
    for (int64_t k = 0; k < top_k; ++k) {
      store16f(chosen + k * 16, zero);
      store16f(dweight + k * 16, zero);
      for (int64_t i = 0; i < count; ++i) {
        chosen[k * 16 + i] = scores[ids[(t + i) * top_k + k] * 16 + i];
        dweight[k * 16 + i] = dweights[(t + i) * top_k + k];
      }
    }
    F16 inverse = one;
    F16 dot = zero;
    if (shape.normalize) {
      F16 total = fill16(shape.normalize_eps);
      for (int64_t k = 0; k < top_k; ++k) total = total + load16f(chosen + k * 16);
      inverse = one / total;
      for (int64_t k = 0; k < top_k; ++k) {
        dot = dot + load16f(dweight + k * 16) * (load16f(chosen + k * 16) * inverse);
      }
    }
    F16 mean = zero;  // Of dL/dp under p: what the softmax takes from every logit.
    for (int64_t k = 0; k < top_k; ++k) {
      const F16 p = load16f(chosen + k * 16);
      const F16 dp = fill16(shape.scaling) * (load16f(dweight + k * 16) - dot) * inverse;
      const F16 part = p * dp;
      mean = mean + part;
      store16f(dweight + k * 16, shape.sigmoid ? part * (one - p) : part);
    }
    for (int64_t e = 0; e < experts; ++e) {
      store16f(dlogit + e * 16, shape.sigmoid ? zero : zero - load16f(scores + e * 16) * mean);
    }
    for (int64_t i = 0; i < count; ++i) {
      for (int64_t k = 0; k < top_k; ++k)
        dlogit[ids[(t + i) * top_k + k] * 16 + i] += dweight[k * 16 + i];
    }
    for (int64_t e = 0; e < experts; e += 16) {
      const int64_t width = experts - e < 16 ? experts - e : 16;
      transpose16(dlogit + e * 16, 16, width, 16, square);
      for (int64_t i = 0; i < count; ++i) {
        put(dlogits + (t + i) * experts + e, load16f(square + i * 16), width);
      }
    }
  }
}

// In the order k = 0 .. K-1 and without fused multiply-add: "expert_order", the bits every backend
// must give.
template <class T>
void combine_tokens(const T* rows, const int64_t* row_of, const float* weights, int64_t begin,
                    int64_t end, int64_t top_k, int64_t cols, T* out) {
  for (int64_t t = begin; t < end; ++t) {
    const int64_t* row = row_of + t * top_k;
    each16(cols, [&](int64_t i, int64_t lanes) {
      F16 total = fill16(0.0F);
      for (int64_t k = 0; k < top_k; ++k) {
        if (row[k] < 0) continue;
        const F16 x = get(rows + row[k] * cols + i, lanes);
        total = total + (weights == nullptr ? x : fill16(weights[t * top_k + k]) * x);
      }
      put(out + t * cols + i, total, lanes);
    });
  }
}

template <class T>
void combine_tokens_backward(const T* dout, const T* rows, const int64_t* row_of,
                             const float* weights, int64_t begin, int64_t end, int64_t top_k,
                             int64_t cols, T* drows, float* dweights) {
  for (int64_t t = begin; t < end; ++t) {
    const T* grad = dout + t * cols;
    for (int64_t k = 0; k < top_k; ++k) {
      const int64_t at = t * top_k + k;
      const int64_t row = row_of[at];
      if (row < 0) {
        if (dweights != nullptr) dweights[at] = 0.0F;
        continue;
      }
      if (dweights != nullptr) {
        dweights[at] = sum_of(cols, [&](int64_t i, int64_t lanes) {
          return get(grad + i, lanes) * get(rows + row * cols + i, lanes);
        });
      }
      if (drows != nullptr) {
        const F16 weight = fill16(weights[at]);
        each16(cols, [&](int64_t i, int64_t lanes) {
          put(drows + row * cols + i, weight * get(grad + i, lanes), lanes);
        });
      }
    }
  }
}

constexpr RouteKernels kRouteKernels = {&route_tokens, &route_tokens_backward};
template <class T>
constexpr CombineKernels<T> kCombineKernels = {&combine_tokens<T>, &combine_tokens_backward<T>};

}  // namespace
}  // namespace quadrille::tensor::cpu
