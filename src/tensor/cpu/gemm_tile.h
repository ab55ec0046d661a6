// The register tile, written once and compiled per instruction set (gemm_generic.cc, gemm_avx2.cc,
// ...).
//
// A tile keeps Rows x Vecs vectors of C in registers and walks k: load the panel's vectors,
// broadcast one value of A a row, multiply and add. Rows are tails too: a tile of 3 rows is the
// same code with Rows = 3, and columns past the edge are computed (the panel holds zeros there) and
// not stored.
#pragma once

#include <utility>

#include "tensor/cpu/gemm_kernels.h"
#include "tensor/cpu/vec.h"

#define QD_UNROLL _Pragma("GCC unroll 32")

namespace quadrille::tensor::cpu {
namespace {

struct MultiplyAdd {
  static Vec step(Vec a, Vec b, Vec c) { return fma(a, b, c); }
};

// Values that do not go straight from registers to C.
__attribute__((noinline)) void finish(const Tile& t, int col, int cols, const float* values,
                                      int values_row) {
  for (int r = 0; r < t.rows; ++r) {
    for (int j = 0; j < cols; j += Vec::kWidth) {
      const int count = cols - j < Vec::kWidth ? cols - j : Vec::kWidth;
      Vec x = load(values + r * values_row + j);
      if (t.start != nullptr) x = load_first(t.start + r * t.start_row + col + j, count) + x;
      if (t.bias != nullptr) x = x + load_first(t.bias + col + j, count);
      const int64_t at = r * t.c_row + col + j;
      if (t.c16 != nullptr) {
        count == Vec::kWidth ? store(t.c16 + at, x) : store_first(t.c16 + at, x, count);
      } else {
        if (t.round_to_bf16) x = rounded<Bf16>(x);
        store_first(t.c + at, x, count);
      }
    }
  }
}

template <class Step, int Rows, int Vecs, bool RowMajor>
__attribute__((noinline)) void tile_columns(const Tile& t, int col, int cols) {
  constexpr int kCols = Vecs * Vec::kWidth;
  Vec acc[Rows][Vecs];
  QD_UNROLL for (int r = 0; r < Rows; ++r) {
    QD_UNROLL for (int v = 0; v < Vecs; ++v) acc[r][v] = fill(0.0F);
  }

  // Three rows a pointer: base, base + stride and base + 2 * stride are addressing modes, and 14
  // pointers would not fit the registers.
  constexpr int kPointers = RowMajor ? (Rows + 2) / 3 : 1;
  const int64_t stride = RowMajor ? t.a_row : t.a_col;
  const float* a[kPointers];
  QD_UNROLL for (int g = 0; g < kPointers; ++g) a[g] = t.a + 3 * g * stride;
  const float* b = t.b + col;
  const float* const end = b + t.k * kPanel;
  for (; b != end; b += kPanel) {
    Vec columns[Vecs];
    QD_UNROLL for (int v = 0; v < Vecs; ++v) columns[v] = load(b + v * Vec::kWidth);
    QD_UNROLL for (int r = 0; r < Rows; ++r) {
      const Vec value = fill(RowMajor ? a[r / 3][(r % 3) * stride] : a[0][r]);
      QD_UNROLL for (int v = 0; v < Vecs; ++v) acc[r][v] = Step::step(value, columns[v], acc[r][v]);
    }
    if constexpr (RowMajor) {
      QD_UNROLL for (int g = 0; g < kPointers; ++g)++ a[g];
    } else {
      a[0] += stride;
    }
  }

  const bool plain = cols == kCols && t.c != nullptr && t.bias == nullptr && !t.round_to_bf16;
  if (plain && t.start == nullptr) {
    QD_UNROLL for (int r = 0; r < Rows; ++r) {
      QD_UNROLL for (int v = 0; v < Vecs; ++v) {
        store(t.c + r * t.c_row + col + v * Vec::kWidth, acc[r][v]);
      }
    }
  } else if (plain) {
    QD_UNROLL for (int r = 0; r < Rows; ++r) {
      QD_UNROLL for (int v = 0; v < Vecs; ++v) {
        const int64_t at = col + v * Vec::kWidth;
        store(t.c + r * t.c_row + at, load(t.start + r * t.start_row + at) + acc[r][v]);
      }
    }
  } else {
    float values[Rows][kCols];
    QD_UNROLL for (int r = 0; r < Rows; ++r) {
      QD_UNROLL for (int v = 0; v < Vecs; ++v) store(values[r] + v * Vec::kWidth, acc[r][v]);
    }
    finish(t, col, cols, values[0], kCols);
  }
}

using ColumnsFunction = void (*)(const Tile&, int, int);

// functions[rows - 1] for one Vecs and one order of A.
template <class Step, int Vecs, bool RowMajor, int... Minus1>
ColumnsFunction pick(int rows, std::integer_sequence<int, Minus1...>) {
  static constexpr ColumnsFunction kFunctions[] = {
      &tile_columns<Step, Minus1 + 1, Vecs, RowMajor>...};
  return kFunctions[rows - 1];
}

template <class Step, int MaxRows, int Vecs>
void run_tile(const Tile& t) {
  using Rows = std::make_integer_sequence<int, MaxRows>;
  for (int col = 0; col < t.cols; col += Vecs * Vec::kWidth) {
    const int cols = t.cols - col < Vecs * Vec::kWidth ? t.cols - col : Vecs * Vec::kWidth;
    const bool row_major = t.a_col == 1;
    if (Vecs > 1 && cols <= Vec::kWidth) {
      (row_major ? pick<Step, 1, true>(t.rows, Rows{}) : pick<Step, 1, false>(t.rows, Rows{}))(
          t, col, cols);
    } else {
      (row_major ? pick<Step, Vecs, true>(t.rows, Rows{})
                 : pick<Step, Vecs, false>(t.rows, Rows{}))(t, col, cols);
    }
  }
}

}  // namespace
}  // namespace quadrille::tensor::cpu
