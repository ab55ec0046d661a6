// Matrix products for transformers of any size, down to ones where a library's set-up costs more
// than the product.
//
// The invariant everything above relies on: k is cut into even stretches of at most kDepth, an
// element of C is one chain of multiply-adds from zero over each stretch, and the chains are added
// in order (to C when accumulating, the bias last). Tiles, tails, blocks and threads decide where a
// chain runs, never its order. So a row's bits do not depend on how many rows or threads there are.
// Stretches also keep long sums (a gradient over all tokens) accurate.
//
// B is read as panels: 32 columns side by side, k after k. Weights are packed once and kept
// (packed.h); other operands are packed block by block into a buffer of the thread. A is read in
// place through its strides where the strides allow, so that no pass over the activations precedes
// the product.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "tensor/cpu/bf16.h"

namespace quadrille::tensor::cpu {

inline constexpr int64_t kPanel = 32;
inline constexpr int64_t kDepth = 512;

enum class Type { kFp32, kBf16 };

// C[m, n] = A[m, k] · B[k, n] (+ C) (+ bias). Strides are in elements; one of the two is 1.
struct Gemm {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  // What the multiplications see. kBf16 multiplies pairs with vdpbf16ps where the processor has it;
  // elsewhere it is the same as kFp32, on widened values.
  Type compute = Type::kFp32;

  const void* a = nullptr;
  Type a_type = Type::kFp32;
  int64_t a_row = 0;
  int64_t a_col = 1;

  const void* b = nullptr;  // Of b_type, or packed panels for `compute` (pack_b).
  bool b_packed = false;
  Type b_type = Type::kFp32;
  int64_t b_row = 0;  // From k to k + 1.
  int64_t b_col = 1;

  void* c = nullptr;
  Type c_type = Type::kFp32;
  int64_t c_row = 0;
  bool accumulate = false;     // fp32 only.
  bool round_to_bf16 = false;  // Keep fp32 C on the bf16 grid.
  const float* bias = nullptr;

  double flops() const {
    return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  }
};

// 4-byte units of the packed form of a [k, n] matrix.
int64_t packed_size(int64_t k, int64_t n, Type compute);
// All of B (b, b_type, b_row, b_col, k, n, compute) as panels, 64-byte aligned `out`.
void pack_b(const Gemm& gemm, float* out);

// A rectangle of one problem's C. Column bounds are multiples of kPanel except at the right edge.
struct Block {
  int64_t problem = 0;
  int64_t row_begin = 0;
  int64_t row_end = 0;
  int64_t col_begin = 0;
  int64_t col_end = 0;
};

// Cuts problems into blocks that fit the caches and keep `threads` threads busy.
std::vector<Block> plan(std::span<const Gemm> problems, int threads);
// Computes one block on the calling thread.
void run_block(const Gemm& gemm, const Block& block);

// Plans and runs; small work stays on the calling thread.
void run(std::span<const Gemm> problems, int threads);
inline void run(const Gemm& problem, int threads) {
  run(std::span(&problem, 1), threads);
}

// Threads that `flops` deserve: waking others costs some microseconds.
int threads_for(double flops, int threads);

// Items 0 .. count-1, handed out one by one to the team.
struct Phase {
  int64_t count = 0;
  std::function<void(int64_t)> item;
};
// One team through all phases, each finished before the next begins. Items must not throw.
void run_phases(std::span<const Phase> phases, int threads);

}  // namespace quadrille::tensor::cpu
