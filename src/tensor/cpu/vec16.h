// Sixteen floats whatever the instruction set: one AVX-512 register, two of AVX2, four of plain
// C++.
//
// Attention works on blocks of 16 keys, and sums over a row are folded in 16 lanes, so a result
// differs between instruction sets only where one has a fused multiply-add and another has not.
// Like vec.h all is internal to the file that includes it.
#pragma once

#include "tensor/cpu/vec.h"

#define QD_UNROLL_ALL _Pragma("GCC unroll 32")

namespace quadrille::tensor::cpu {
namespace {

constexpr int kParts = 16 / Vec::kWidth;

struct F16 {
  Vec p[kParts];
};

template <class F>
QD_INLINE F16 by_parts(F f) {
  F16 r;
  QD_UNROLL_ALL for (int i = 0; i < kParts; ++i) r.p[i] = f(i);
  return r;
}

template <class T>
QD_INLINE F16 load16f(const T* p) {
  return by_parts([&](int i) { return load(p + i * Vec::kWidth); });
}
template <class T>
QD_INLINE void store16f(T* p, F16 x) {
  QD_UNROLL_ALL for (int i = 0; i < kParts; ++i) store(p + i * Vec::kWidth, x.p[i]);
}
// The first n (0 .. 16) lanes; the others load as zero and are not stored.
QD_INLINE int part_lanes(int64_t n, int part) {
  const int64_t left = n - part * Vec::kWidth;
  return static_cast<int>(left < 0 ? 0 : left > Vec::kWidth ? Vec::kWidth : left);
}
template <class T>
QD_INLINE F16 load16f(const T* p, int64_t n) {
  return by_parts([&](int i) { return load_first(p + i * Vec::kWidth, part_lanes(n, i)); });
}
template <class T>
QD_INLINE void store16f(T* p, F16 x, int64_t n) {
  QD_UNROLL_ALL for (int i = 0; i < kParts; ++i)
      store_first(p + i * Vec::kWidth, x.p[i], part_lanes(n, i));
}
QD_INLINE F16 fill16(float x) {
  return by_parts([&](int) { return fill(x); });
}
QD_INLINE F16 operator+(F16 a, F16 b) {
  return by_parts([&](int i) { return a.p[i] + b.p[i]; });
}
QD_INLINE F16 operator-(F16 a, F16 b) {
  return by_parts([&](int i) { return a.p[i] - b.p[i]; });
}
QD_INLINE F16 operator*(F16 a, F16 b) {
  return by_parts([&](int i) { return a.p[i] * b.p[i]; });
}
QD_INLINE F16 operator/(F16 a, F16 b) {
  return by_parts([&](int i) { return a.p[i] / b.p[i]; });
}
QD_INLINE F16 fma(F16 a, F16 b, F16 c) {
  return by_parts([&](int i) { return fma(a.p[i], b.p[i], c.p[i]); });
}
// Where a is NaN, b.
QD_INLINE F16 max(F16 a, F16 b) {
  return by_parts([&](int i) { return max(a.p[i], b.p[i]); });
}
QD_INLINE F16 min(F16 a, F16 b) {
  return by_parts([&](int i) { return min(a.p[i], b.p[i]); });
}
QD_INLINE F16 exp(F16 a) {
  return by_parts([&](int i) { return exp(a.p[i]); });
}

#if defined(__AVX512F__)
QD_INLINE Vec where_greater(Vec a, Vec b, Vec yes, Vec no) {
  return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ), no.v, yes.v)};
}
QD_INLINE Vec where_equal(Vec a, Vec b, Vec yes, Vec no) {
  return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_EQ_OQ), no.v, yes.v)};
}
QD_INLINE bool any_nan(F16 x) {
  return _mm512_cmp_ps_mask(x.p[0].v, x.p[0].v, _CMP_UNORD_Q) != 0;
}
QD_INLINE Vec round_bf16(Vec x) {
  const __m512i bits = _mm512_castps_si512(x.v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  __m512i sum = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
  sum = _mm512_mask_set1_epi32(sum, _mm512_cmp_ps_mask(x.v, x.v, _CMP_UNORD_Q), 0x7fc00000);
  return {
      _mm512_castsi512_ps(_mm512_and_si512(sum, _mm512_set1_epi32(static_cast<int>(0xffff0000U))))};
}
#elif defined(__AVX2__)
QD_INLINE Vec where_greater(Vec a, Vec b, Vec yes, Vec no) {
  return {_mm256_blendv_ps(no.v, yes.v, _mm256_cmp_ps(a.v, b.v, _CMP_GT_OQ))};
}
QD_INLINE Vec where_equal(Vec a, Vec b, Vec yes, Vec no) {
  return {_mm256_blendv_ps(no.v, yes.v, _mm256_cmp_ps(a.v, b.v, _CMP_EQ_OQ))};
}
QD_INLINE bool any_nan(F16 x) {
  return _mm256_movemask_ps(_mm256_or_ps(_mm256_cmp_ps(x.p[0].v, x.p[0].v, _CMP_UNORD_Q),
                                         _mm256_cmp_ps(x.p[1].v, x.p[1].v, _CMP_UNORD_Q))) != 0;
}
QD_INLINE Vec round_bf16(Vec x) {
  return rounded<Bf16>(x);
}
#else
QD_INLINE Vec where_greater(Vec a, Vec b, Vec yes, Vec no) {
  return lanes([&](int i) { return a.v[i] > b.v[i] ? yes.v[i] : no.v[i]; });
}
QD_INLINE Vec where_equal(Vec a, Vec b, Vec yes, Vec no) {
  return lanes([&](int i) { return a.v[i] == b.v[i] ? yes.v[i] : no.v[i]; });
}
QD_INLINE bool any_nan(F16 x) {
  bool any = false;
  for (const Vec& part : x.p) {
    for (const float v : part.v) any |= v != v;
  }
  return any;
}
QD_INLINE Vec round_bf16(Vec x) {
  return rounded<Bf16>(x);
}
#endif

// a > b ? yes : no, lane by lane; a NaN compares false.
QD_INLINE F16 where_greater(F16 a, F16 b, F16 yes, F16 no) {
  return by_parts([&](int i) { return where_greater(a.p[i], b.p[i], yes.p[i], no.p[i]); });
}
QD_INLINE F16 where_equal(F16 a, F16 b, F16 yes, F16 no) {
  return by_parts([&](int i) { return where_equal(a.p[i], b.p[i], yes.p[i], no.p[i]); });
}

// As memory of type T would give it back.
template <class T>
QD_INLINE F16 rounded(F16 x) {
  if constexpr (sizeof(T) == sizeof(float)) {
    return x;
  } else {
    return by_parts([&](int i) { return round_bf16(x.p[i]); });
  }
}

// Halves folded onto each other, the same tree in every instruction set.
QD_INLINE float sum(F16 x) {
#if defined(__AVX512F__) || defined(__AVX2__)
#if defined(__AVX512F__)
  const __m256 eight =
      _mm256_add_ps(_mm512_castps512_ps256(x.p[0].v), _mm512_extractf32x8_ps(x.p[0].v, 1));
#else
  const __m256 eight = _mm256_add_ps(x.p[0].v, x.p[1].v);
#endif
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
#else
  float lane[16];
  store16f(lane, x);
  for (int half = 8; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) lane[i] += lane[i + half];
  }
  return lane[0];
#endif
}
QD_INLINE float largest(F16 x) {
#if defined(__AVX512F__) || defined(__AVX2__)
#if defined(__AVX512F__)
  const __m256 eight =
      _mm256_max_ps(_mm512_castps512_ps256(x.p[0].v), _mm512_extractf32x8_ps(x.p[0].v, 1));
#else
  const __m256 eight = _mm256_max_ps(x.p[0].v, x.p[1].v);
#endif
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
#else
  float lane[16];
  store16f(lane, x);
  float best = lane[0];
  for (int i = 1; i < 16; ++i) best = best < lane[i] ? lane[i] : best;
  return best;
#endif
}

// rows x 16 numbers, `stride` apart, into 16 columns: out[i * 16 + r] = in[r * stride + i] for i <
// n <= 16. Rows from `rows` on count as zero.
QD_INLINE void transpose16(const float* in, int64_t stride, int64_t rows, int64_t n, float* out) {
#if defined(__AVX512F__)
  __m512 a[16];
  __m512 b[16];
  const __mmask16 mask = first_lanes(static_cast<int>(n));
  QD_UNROLL_ALL for (int r = 0; r < 16; ++r) {
    a[r] = r < rows ? _mm512_maskz_loadu_ps(mask, in + r * stride) : _mm512_setzero_ps();
  }
  QD_UNROLL_ALL for (int r = 0; r < 16; r += 2) {
    b[r] = _mm512_unpacklo_ps(a[r], a[r + 1]);
    b[r + 1] = _mm512_unpackhi_ps(a[r], a[r + 1]);
  }
  QD_UNROLL_ALL for (int r = 0; r < 16; r += 4) {
    a[r] = _mm512_shuffle_ps(b[r], b[r + 2], 0x44);
    a[r + 1] = _mm512_shuffle_ps(b[r], b[r + 2], 0xee);
    a[r + 2] = _mm512_shuffle_ps(b[r + 1], b[r + 3], 0x44);
    a[r + 3] = _mm512_shuffle_ps(b[r + 1], b[r + 3], 0xee);
  }
  // a[4g + c] holds, in 128-bit lane l, column 4l + c of rows 4g .. 4g+3.
  QD_UNROLL_ALL for (int c = 0; c < 4; ++c) {
    b[c] = _mm512_shuffle_f32x4(a[c], a[4 + c], 0x88);
    b[4 + c] = _mm512_shuffle_f32x4(a[c], a[4 + c], 0xdd);
    b[8 + c] = _mm512_shuffle_f32x4(a[8 + c], a[12 + c], 0x88);
    b[12 + c] = _mm512_shuffle_f32x4(a[8 + c], a[12 + c], 0xdd);
  }
  QD_UNROLL_ALL for (int c = 0; c < 4; ++c) {
    a[c] = _mm512_shuffle_f32x4(b[c], b[8 + c], 0x88);
    a[4 + c] = _mm512_shuffle_f32x4(b[4 + c], b[12 + c], 0x88);
    a[8 + c] = _mm512_shuffle_f32x4(b[c], b[8 + c], 0xdd);
    a[12 + c] = _mm512_shuffle_f32x4(b[4 + c], b[12 + c], 0xdd);
  }
  QD_UNROLL_ALL for (int i = 0; i < 16; ++i) {
    if (i < n) _mm512_storeu_ps(out + i * 16, a[i]);
  }
#else
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t r = 0; r < 16; ++r) out[i * 16 + r] = r < rows ? in[r * stride + i] : 0.0F;
  }
#endif
}

// Rows of any length: f(i, lanes) for every 16 numbers, of which the last may be fewer.
template <class F>
QD_INLINE void each16(int64_t n, F f) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) f(i, int64_t{16});
  if (i < n) f(i, n - i);
}
template <class T>
QD_INLINE F16 get(const T* p, int64_t lanes) {
  return lanes == 16 ? load16f(p) : load16f(p, lanes);
}
template <class T>
QD_INLINE void put(T* p, F16 x, int64_t lanes) {
  if (lanes == 16) {
    store16f(p, x);
  } else {
    store16f(p, x, lanes);
  }
}

// Sum of term(i, lanes) over a row in four chains, so that additions need not wait for each other.
template <class F>
QD_INLINE float sum_of(int64_t n, F term) {
  F16 a = fill16(0.0F);
  F16 b = a;
  F16 c = a;
  F16 d = a;
  int64_t i = 0;
  for (; i + 64 <= n; i += 64) {
    a = a + term(i, int64_t{16});
    b = b + term(i + 16, int64_t{16});
    c = c + term(i + 32, int64_t{16});
    d = d + term(i + 48, int64_t{16});
  }
  for (; i + 16 <= n; i += 16) a = a + term(i, int64_t{16});
  if (i < n) b = b + term(i, n - i);
  return sum((a + b) + (c + d));
}

}  // namespace
}  // namespace quadrille::tensor::cpu
