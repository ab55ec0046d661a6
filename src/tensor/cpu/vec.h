// One vector of floats, as wide as the instruction set this file is compiled for.
//
// Kernels are written once against Vec and compiled once per instruction set, so everything here
// has internal linkage: a shared inline function would be compiled with several flags and the
// linker would keep any one. For the same reason kernel files use no out-of-line std templates.
// Loads and stores may alias whatever lies there: a row of floats can be overwritten by bf16 as it
// is read. Tails go through load_first / store_first and the same arithmetic, so an element's bits
// do not depend on where in a vector it falls.
#pragma once

#include <cstdint>
#include <cstring>

#include "tensor/cpu/bf16.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace quadrille::tensor::cpu {
namespace {

#if defined(__AVX512F__)

struct Vec {
  static constexpr int kWidth = 16;
  __m512 v;
};
inline __mmask16 first_lanes(int n) {
  return static_cast<__mmask16>((1U << n) - 1U);
}
inline Vec load(const float* p) {
  return {_mm512_loadu_ps(p)};
}
inline Vec load_first(const float* p, int n) {
  return {_mm512_maskz_loadu_ps(first_lanes(n), p)};
}
inline void store(float* p, Vec x) {
  _mm512_storeu_ps(p, x.v);
}
inline void store_first(float* p, Vec x, int n) {
  _mm512_mask_storeu_ps(p, first_lanes(n), x.v);
}
inline Vec fill(float x) {
  return {_mm512_set1_ps(x)};
}
inline Vec operator+(Vec a, Vec b) {
  return {_mm512_add_ps(a.v, b.v)};
}
inline Vec operator-(Vec a, Vec b) {
  return {_mm512_sub_ps(a.v, b.v)};
}
inline Vec operator*(Vec a, Vec b) {
  return {_mm512_mul_ps(a.v, b.v)};
}
inline Vec operator/(Vec a, Vec b) {
  return {_mm512_div_ps(a.v, b.v)};
}
inline Vec fma(Vec a, Vec b, Vec c) {
  return {_mm512_fmadd_ps(a.v, b.v, c.v)};
}
inline Vec max(Vec a, Vec b) {
  return {_mm512_max_ps(a.v, b.v)};
}
inline Vec min(Vec a, Vec b) {
  return {_mm512_min_ps(a.v, b.v)};
}
inline Vec sqrt(Vec a) {
  return {_mm512_sqrt_ps(a.v)};
}
inline Vec round(Vec a) {
  return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
// x * 2^n for integral n.
inline Vec scale2(Vec x, Vec n) {
  return {_mm512_scalef_ps(x.v, n.v)};
}
inline Vec load16(const Bf16* p) {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16))};
}
inline __m256i bf16_bits(Vec x) {
  const __m512i bits = _mm512_castps_si512(x.v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  __m512i sum = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
  sum = _mm512_mask_set1_epi32(sum, _mm512_cmp_ps_mask(x.v, x.v, _CMP_UNORD_Q), 0x7fc00000);
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(sum, 16));
}
inline void store16(Bf16* p, Vec x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), bf16_bits(x));
}
inline Vec load16_first(const Bf16* p, int n) {
  const __m256i bits = _mm256_maskz_loadu_epi16(first_lanes(n), p);
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16))};
}
inline void store16_first(Bf16* p, Vec x, int n) {
  _mm256_mask_storeu_epi16(p, first_lanes(n), bf16_bits(x));
}
inline Vec keep_first(Vec x, int n) {
  return {_mm512_maskz_mov_ps(first_lanes(n), x.v)};
}
// Lane i of the result: the upper halves of low's and high's lane i, low's in the lower half.
inline Vec pair_up(Vec low, Vec high) {
  const __m512i bits = _mm512_srli_epi32(_mm512_castps_si512(low.v), 16);
  return {_mm512_castsi512_ps(_mm512_or_si512(bits, _mm512_castps_si512(high.v)))};
}
inline float sum(Vec x) {
  return _mm512_reduce_add_ps(x.v);
}
inline float largest(Vec x) {
  return _mm512_reduce_max_ps(x.v);
}
// Rows become columns.
inline void transpose(Vec (&x)[16]) {
  __m512 t[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_ps(x[i].v, x[i + 1].v);
    t[i + 1] = _mm512_unpackhi_ps(x[i].v, x[i + 1].v);
  }
  __m512 u[16];
  for (int i = 0; i < 16; i += 4) {
    for (int j = 0; j < 2; ++j) {
      const __m512d low = _mm512_castps_pd(t[i + j]);
      const __m512d high = _mm512_castps_pd(t[i + j + 2]);
      u[i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(low, high));
      u[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(low, high));
    }
  }
  // u[4g + c] holds rows 4g .. 4g+3 of columns c, c+4, c+8, c+12, one to a quarter.
  for (int c = 0; c < 4; ++c) {
    const __m512 a = _mm512_shuffle_f32x4(u[c], u[4 + c], 0x88);
    const __m512 b = _mm512_shuffle_f32x4(u[c], u[4 + c], 0xdd);
    const __m512 d = _mm512_shuffle_f32x4(u[8 + c], u[12 + c], 0x88);
    const __m512 e = _mm512_shuffle_f32x4(u[8 + c], u[12 + c], 0xdd);
    x[c].v = _mm512_shuffle_f32x4(a, d, 0x88);
    x[c + 8].v = _mm512_shuffle_f32x4(a, d, 0xdd);
    x[c + 4].v = _mm512_shuffle_f32x4(b, e, 0x88);
    x[c + 12].v = _mm512_shuffle_f32x4(b, e, 0xdd);
  }
}

#elif defined(__AVX2__)

struct Vec {
  static constexpr int kWidth = 8;
  __m256 v;
};
inline __m256i first_lanes(int n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
inline Vec load(const float* p) {
  return {_mm256_loadu_ps(p)};
}
inline Vec load_first(const float* p, int n) {
  return {_mm256_maskload_ps(p, first_lanes(n))};
}
inline void store(float* p, Vec x) {
  _mm256_storeu_ps(p, x.v);
}
inline void store_first(float* p, Vec x, int n) {
  _mm256_maskstore_ps(p, first_lanes(n), x.v);
}
inline Vec fill(float x) {
  return {_mm256_set1_ps(x)};
}
inline Vec operator+(Vec a, Vec b) {
  return {_mm256_add_ps(a.v, b.v)};
}
inline Vec operator-(Vec a, Vec b) {
  return {_mm256_sub_ps(a.v, b.v)};
}
inline Vec operator*(Vec a, Vec b) {
  return {_mm256_mul_ps(a.v, b.v)};
}
inline Vec operator/(Vec a, Vec b) {
  return {_mm256_div_ps(a.v, b.v)};
}
inline Vec fma(Vec a, Vec b, Vec c) {
  return {_mm256_fmadd_ps(a.v, b.v, c.v)};
}
inline Vec max(Vec a, Vec b) {
  return {_mm256_max_ps(a.v, b.v)};
}
inline Vec min(Vec a, Vec b) {
  return {_mm256_min_ps(a.v, b.v)};
}
inline Vec sqrt(Vec a) {
  return {_mm256_sqrt_ps(a.v)};
}
inline Vec round(Vec a) {
  return {_mm256_round_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
inline Vec scale2(Vec x, Vec n) {
  // In two halves, so that 2^n itself may lie outside of the normal range.
  const __m256i whole = _mm256_cvtps_epi32(n.v);
  const __m256i half = _mm256_srai_epi32(whole, 1);
  const __m256i bias = _mm256_set1_epi32(127);
  const auto power = [bias](__m256i e) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(e, bias), 23));
  };
  const __m256 scaled = _mm256_mul_ps(x.v, power(half));
  return {_mm256_mul_ps(scaled, power(_mm256_sub_epi32(whole, half)))};
}
inline Vec load16(const Bf16* p) {
  const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16))};
}
inline void store16(Bf16* p, Vec x) {
  const __m256i bits = _mm256_castps_si256(x.v);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  __m256i sum = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
  const __m256 nan = _mm256_cmp_ps(x.v, x.v, _CMP_UNORD_Q);
  sum = _mm256_blendv_epi8(sum, _mm256_set1_epi32(0x7fc00000), _mm256_castps_si256(nan));
  const __m256i high = _mm256_srli_epi32(sum, 16);
  const __m128i packed =
      _mm_packus_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), packed);
}

#else

// Four lanes of plain C++: whatever the compiler makes of them.
struct Vec {
  static constexpr int kWidth = 4;
  float v[kWidth];
};
template <class F>
inline Vec lanes(F f) {
  Vec r;
  for (int i = 0; i < Vec::kWidth; ++i) r.v[i] = f(i);
  return r;
}
inline Vec load(const float* p) {
  Vec r;
  std::memcpy(r.v, p, sizeof r.v);
  return r;
}
inline Vec load_first(const float* p, int n) {
  return lanes([&](int i) { return i < n ? p[i] : 0.0F; });
}
inline void store(float* p, Vec x) {
  std::memcpy(p, x.v, sizeof x.v);
}
inline void store_first(float* p, Vec x, int n) {
  for (int i = 0; i < n; ++i) p[i] = x.v[i];
}
inline Vec fill(float x) {
  return lanes([&](int) { return x; });
}
inline Vec operator+(Vec a, Vec b) {
  return lanes([&](int i) { return a.v[i] + b.v[i]; });
}
inline Vec operator-(Vec a, Vec b) {
  return lanes([&](int i) { return a.v[i] - b.v[i]; });
}
inline Vec operator*(Vec a, Vec b) {
  return lanes([&](int i) { return a.v[i] * b.v[i]; });
}
inline Vec operator/(Vec a, Vec b) {
  return lanes([&](int i) { return a.v[i] / b.v[i]; });
}
inline Vec fma(Vec a, Vec b, Vec c) {
  return lanes([&](int i) { return a.v[i] * b.v[i] + c.v[i]; });
}
inline Vec max(Vec a, Vec b) {
  return lanes([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
inline Vec min(Vec a, Vec b) {
  return lanes([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
}
inline Vec sqrt(Vec a) {
  return lanes([&](int i) { return __builtin_sqrtf(a.v[i]); });
}
// Adding and taking away 1.5 * 2^23 rounds to the nearest integer; good for |a| < 2^22.
inline Vec round(Vec a) {
  return lanes([&](int i) {
    const float shifted = a.v[i] + 12582912.0F;
    return shifted - 12582912.0F;
  });
}
inline Vec scale2(Vec x, Vec n) {
  return lanes([&](int i) {
    const auto whole = static_cast<int32_t>(n.v[i]);
    const int32_t half = whole >> 1;
    const auto power = [](int32_t e) {
      return std::bit_cast<float>(static_cast<uint32_t>(e + 127) << 23);
    };
    return x.v[i] * power(half) * power(whole - half);
  });
}
inline Vec load16(const Bf16* p) {
  return lanes([&](int i) { return to_float(p[i]); });
}
inline void store16(Bf16* p, Vec x) {
  Bf16 bits[Vec::kWidth];
  for (int i = 0; i < Vec::kWidth; ++i) bits[i] = to_bf16(x.v[i]);
  std::memcpy(p, bits, sizeof bits);
}

#endif

#if !defined(__AVX512F__)
inline Vec load16_first(const Bf16* p, int n) {
  Bf16 lanes[Vec::kWidth] = {};
  for (int i = 0; i < n; ++i) lanes[i] = p[i];
  return load16(lanes);
}
inline void store16_first(Bf16* p, Vec x, int n) {
  Bf16 lanes[Vec::kWidth];
  store16(lanes, x);
  for (int i = 0; i < n; ++i) p[i] = lanes[i];
}
inline Vec keep_first(Vec x, int n) {
  float lanes[Vec::kWidth] = {};
  store_first(lanes, x, n);
  return load(lanes);
}
inline Vec pair_up(Vec low, Vec high) {
  float a[Vec::kWidth];
  float b[Vec::kWidth];
  store(a, low);
  store(b, high);
  for (int i = 0; i < Vec::kWidth; ++i) {
    a[i] =
        std::bit_cast<float>(std::bit_cast<uint32_t>(a[i]) >> 16 | std::bit_cast<uint32_t>(b[i]));
  }
  return load(a);
}
inline float sum(Vec x) {
  float lanes[Vec::kWidth];
  store(lanes, x);
  for (int half = Vec::kWidth / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return lanes[0];
}
inline float largest(Vec x) {
  float lanes[Vec::kWidth];
  store(lanes, x);
  float best = lanes[0];
  for (int i = 1; i < Vec::kWidth; ++i) best = best < lanes[i] ? lanes[i] : best;
  return best;
}
inline void transpose(Vec (&x)[Vec::kWidth]) {
  float from[Vec::kWidth][Vec::kWidth];
  float to[Vec::kWidth][Vec::kWidth];
  for (int i = 0; i < Vec::kWidth; ++i) store(from[i], x[i]);
  for (int i = 0; i < Vec::kWidth; ++i) {
    for (int j = 0; j < Vec::kWidth; ++j) to[j][i] = from[i][j];
  }
  for (int i = 0; i < Vec::kWidth; ++i) x[i] = load(to[i]);
}
#endif

inline Vec load(const Bf16* p) {
  return load16(p);
}
inline Vec load_first(const Bf16* p, int n) {
  return load16_first(p, n);
}
inline void store(Bf16* p, Vec x) {
  store16(p, x);
}
inline void store_first(Bf16* p, Vec x, int n) {
  store16_first(p, x, n);
}
// The value as it would be read back from memory of type T.
template <class T>
inline Vec rounded(Vec x) {
  if constexpr (sizeof(T) == sizeof(float)) {
    return x;
  } else {
    Bf16 lanes[Vec::kWidth];
    store16(lanes, x);
    return load16(lanes);
  }
}

// e^x, at most about 1.5 units in the last place off. x = n ln 2 + r with |r| <= ln 2 / 2, and e^r
// by its Taylor series to r^7, whose remainder is below a twentieth of a unit. ln 2 in two parts
// keeps r exact.
inline Vec exp(Vec x) {
  x = min(fill(129.0F), max(fill(-150.0F), x));  // In this order a NaN comes through.
  const Vec n = round(x * fill(1.44269504F));
  Vec r = fma(n, fill(-0.693359375F), x);
  r = fma(n, fill(2.12194440e-4F), r);
  Vec p = fill(1.0F / 5040);
  p = fma(p, r, fill(1.0F / 720));
  p = fma(p, r, fill(1.0F / 120));
  p = fma(p, r, fill(1.0F / 24));
  p = fma(p, r, fill(1.0F / 6));
  p = fma(p, r, fill(0.5F));
  p = fma(p, r, fill(1.0F));
  p = fma(p, r, fill(1.0F));
  return scale2(p, n);
}

}  // namespace
}  // namespace quadrille::tensor::cpu
