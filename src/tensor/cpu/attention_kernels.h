// What the driver (attention.cc) asks of an instruction set. All fp32: bf16 is widened on the way
// in.
#pragma once

#include <cstdint>

namespace quadrille::tensor::cpu {

// Queries of one sequence against the blocks of one kv head. A row is one query of one head of the
// group; rows go by position first, then head.
struct AttendTask {
  int64_t queries = 0;
  int64_t group = 0;           // Heads a kv head serves.
  int64_t first_position = 0;  // Of the first query.
  int64_t key_dim = 0;
  int64_t value_dim = 0;
  float scale = 1;
  int64_t window = 0;
  const float* q = nullptr;
  int64_t q_token = 0;  // Distance from a token to the next; heads are key_dim apart.
  const float* const* keys = nullptr;    // Per block: [key_dim][16].
  const float* const* values = nullptr;  // Per block: up to 16 rows, value_row apart.
  int64_t value_row = 0;
  float* out = nullptr;
  int64_t out_token = 0;  // Heads are value_dim apart.
  float* stats =
      nullptr;  // Per row the largest score and 1 / sum of exp(score - largest); null: not wanted.
  int64_t stats_token = 0;
  float* scratch = nullptr;  // attend_scratch(blocks) floats, 64-byte aligned.
};

struct AttendBackwardTask {
  AttendTask forward;                               // As it was; `out` is read.
  const float* const* values_transposed = nullptr;  // Per block: [value_dim][16].
  const float* const* key_rows = nullptr;           // Per block: rows, key_row apart.
  int64_t key_row = 0;
  const float* dout = nullptr;  // Strides as of `out`.
  float* dq = nullptr;          // Strides as of `q`.
  float* dk = nullptr;          // Row of position 0; added to. key_row apart.
  float* dv = nullptr;          // Likewise, value_row apart.
};

struct AttentionKernels {
  int64_t tile_rows = 0;
  void (*attend)(const AttendTask&) = nullptr;
  void (*attend_backward)(const AttendBackwardTask&) = nullptr;
  // `count` rows of `dim` numbers, `stride` apart, into blocks [dim][16]; missing rows are zero.
  void (*pack_blocks)(const float* rows, int64_t stride, int64_t count, int64_t dim,
                      float* blocks) = nullptr;

  int64_t scratch(int64_t blocks) const { return 2 * tile_rows * 16 * blocks; }
};

AttentionKernels generic_attention_kernels();
AttentionKernels avx2_attention_kernels();
AttentionKernels avx512_attention_kernels();

}  // namespace quadrille::tensor::cpu
