// Packing of operands, compiled per instruction set like gemm_tile.h.
#pragma once

#include "tensor/cpu/gemm_kernels.h"
#include "tensor/cpu/vec.h"

namespace quadrille::tensor::cpu {
namespace {

// Units of k: numbers, or pairs of bf16 for the dot kernels, the last one filled up with zero.
template <bool Dot>
inline int64_t units(int64_t k) {
  return Dot ? (k + 1) / 2 : k;
}

// out[j][i] for unit j and lane i; lane i's numbers start at source + i * lane_stride and are k
// neighbours. Lanes from `count` up to `lanes` (a multiple of the vector width) are zero.
template <bool Dot, class T>
inline void transpose_lanes(const T* source, int64_t lane_stride, int count, int lanes, int64_t k,
                            float* out) {
  constexpr int kWidth = Vec::kWidth;
  // From bf16, pairs are floats as far as moving them is concerned.
  constexpr bool kMoves = Dot && sizeof(T) == 2;
  const int64_t whole = Dot ? k / 2 : k;
  for (int i = 0; i < lanes; i += kWidth) {
    int64_t j = 0;
    for (; j < units<Dot>(k); j += kWidth) {
      Vec square[kWidth];
      const int here = static_cast<int>(whole - j < kWidth ? whole - j : kWidth);
      for (int lane = 0; lane < kWidth; ++lane) {
        if (i + lane >= count) {
          square[lane] = fill(0.0F);
          continue;
        }
        const T* line = source + (i + lane) * lane_stride;
        if constexpr (kMoves) {
          const auto* pairs = reinterpret_cast<const float*>(line) + j;
          square[lane] = here == kWidth ? load(pairs) : load_first(pairs, here);
          if (here < kWidth && k % 2 != 0) {
            float filled[kWidth];
            store(filled, square[lane]);
            filled[here] = std::bit_cast<float>(static_cast<uint32_t>(line[k - 1]));
            square[lane] = load(filled);
          }
        } else if constexpr (Dot) {
          float filled[kWidth] = {};
          for (int u = 0; u < kWidth && 2 * (j + u) < k; ++u) {
            const int64_t at = 2 * (j + u);
            const uint32_t high = at + 1 < k ? to_bf16(line[at + 1]) : Bf16{0};
            filled[u] = std::bit_cast<float>(to_bf16(line[at]) | high << 16);
          }
          square[lane] = load(filled);
        } else {
          square[lane] = here == kWidth ? load(line + j) : load_first(line + j, here);
        }
      }
      transpose(square);
      const int64_t rows = units<Dot>(k) - j < kWidth ? units<Dot>(k) - j : kWidth;
      for (int64_t r = 0; r < rows; ++r) store(out + (j + r) * lanes + i, square[r]);
    }
  }
}

// The same where lanes are neighbours in memory and k strides.
template <bool Dot, class T>
inline void interleave_lanes(const T* source, int64_t k_stride, int count, int lanes, int64_t k,
                             float* out) {
  constexpr int kWidth = Vec::kWidth;
  for (int64_t j = 0; j < units<Dot>(k); ++j) {
    for (int i = 0; i < lanes; i += kWidth) {
      const int here = count - i < kWidth ? count - i : kWidth;
      const auto line = [&](int64_t at) {
        const T* from = source + at * k_stride + i;
        if (here <= 0) return fill(0.0F);
        return here == kWidth ? load(from) : load_first(from, here);
      };
      Vec x;
      if constexpr (Dot) {
        const Vec second = 2 * j + 1 < k ? line(2 * j + 1) : fill(0.0F);
        x = pair_up(rounded<Bf16>(line(2 * j)), rounded<Bf16>(second));
      } else {
        x = line(j);
      }
      store(out + j * lanes + i, x);
    }
  }
}

template <class T>
inline void pack_lanes(const T* source, int64_t lane_stride, int64_t k_stride, int count, int lanes,
                       int64_t k, bool dot, float* out) {
  if (lane_stride == 1) {
    dot ? interleave_lanes<true>(source, k_stride, count, lanes, k, out)
        : interleave_lanes<false>(source, k_stride, count, lanes, k, out);
  } else {
    dot ? transpose_lanes<true>(source, lane_stride, count, lanes, k, out)
        : transpose_lanes<false>(source, lane_stride, count, lanes, k, out);
  }
}

template <class T>
inline void pack_panels(const T* b, int64_t row, int64_t col, int64_t k, int64_t n, bool dot,
                        float* out, int64_t panel_stride) {
  for (int64_t j = 0; j < n; j += kPanel) {
    const int count = static_cast<int>(n - j < kPanel ? n - j : kPanel);
    pack_lanes(b + j * col, col, row, count, kPanel, k, dot, out);
    out += panel_stride;
  }
}

inline void pack_b_typed(const void* b, Type type, int64_t row, int64_t col, int64_t k, int64_t n,
                         bool dot, float* out, int64_t panel_stride) {
  if (type == Type::kFp32) {
    pack_panels(static_cast<const float*>(b), row, col, k, n, dot, out, panel_stride);
  } else {
    pack_panels(static_cast<const Bf16*>(b), row, col, k, n, dot, out, panel_stride);
  }
}

inline void pack_a_typed(const void* a, Type type, int64_t row, int64_t col, int rows, int64_t k,
                         bool dot, float* out) {
  if (type == Type::kFp32) {
    pack_lanes(static_cast<const float*>(a), row, col, rows, kLanes, k, dot, out);
  } else {
    pack_lanes(static_cast<const Bf16*>(a), row, col, rows, kLanes, k, dot, out);
  }
}

}  // namespace
}  // namespace quadrille::tensor::cpu
