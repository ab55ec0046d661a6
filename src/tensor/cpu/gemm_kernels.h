// What the driver (gemm.cc) asks of an instruction set.
#pragma once

#include <cstdint>

#include "tensor/cpu/gemm.h"

namespace quadrille::tensor::cpu {

// Up to `GemmKernels::rows` rows by 32 columns of C. Everything is in 4-byte units: floats, or for
// the dot kernel pairs of bf16 that are neighbours in k.
struct Tile {
  int64_t k = 0;
  const float* a = nullptr;
  int64_t a_row = 0;
  int64_t a_col = 1;
  const float* b = nullptr;  // One panel.
  int rows = 0;
  int cols = 0;
  const float* start = nullptr;  // What the sums are added to; null: nothing.
  int64_t start_row = 0;
  const float* bias = nullptr;
  bool round_to_bf16 = false;
  float* c = nullptr;
  Bf16* c16 = nullptr;  // Instead of c.
  int64_t c_row = 0;
};

// Packed lines of A: at least as long as a tile is high, whole vectors.
inline constexpr int kLanes = 16;

struct GemmKernels {
  int rows = 0;  // Of a full tile.
  void (*tile)(const Tile&) = nullptr;
  void (*tile_dot)(const Tile&) = nullptr;  // Null: no bf16 products here.

  // k x n of B from `row` `col` strides into panels of k units; `dot` pairs neighbours in k, zero
  // after an odd one.
  void (*pack_b)(const void* b, Type type, int64_t row, int64_t col, int64_t k, int64_t n, bool dot,
                 float* out, int64_t panel_stride) = nullptr;
  // rows x k of A into [k][kLanes].
  void (*pack_a)(const void* a, Type type, int64_t row, int64_t col, int rows, int64_t k, bool dot,
                 float* out) = nullptr;
};

GemmKernels generic_gemm_kernels();
GemmKernels avx2_gemm_kernels();
GemmKernels avx512_gemm_kernels();
// Only tile_dot; the rest is as for AVX-512.
void (*avx512bf16_tile_dot())(const Tile&);

const GemmKernels& gemm_kernels();

}  // namespace quadrille::tensor::cpu
