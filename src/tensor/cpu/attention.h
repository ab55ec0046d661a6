// Causal attention over blocks of 16 keys, one code for packed sequences and for paged caches.
//
// Block j of a sequence holds its positions 16j .. 16j+15: the keys transposed, [d][16], so that a
// vector's lanes are keys; the values row by row. In a cache a block is a page; for packed
// sequences the keys are transposed into a scratch first. A row (one query of one head) walks its
// blocks in ascending order and does the same arithmetic in both, so its bits depend on nothing but
// its own query, keys and values.
#pragma once

#include <cstdint>

#include "tensor/cpu/bf16.h"

namespace quadrille::tensor::cpu {

inline constexpr int64_t kBlockKeys = 16;

struct AttentionShape {
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t key_dim = 0;
  int64_t value_dim = 0;
  float scale = 1;
  int64_t window = 0;  // 0: all.
};

// q [T,H,d], k [T,G,d], v [T,G,e], cu [S+1] -> out [T,H,e]; stats [T,H,2] for the backward (null:
// not wanted).
void attention_packed_forward(const AttentionShape& shape, const float* q, const float* k,
                              const float* v, const int32_t* cu, int64_t sequences, float* out,
                              float* stats);

void attention_packed_backward(const AttentionShape& shape, const float* q, const float* k,
                               const float* v, const float* out, const float* stats,
                               const float* dout, const int32_t* cu, int64_t sequences, float* dq,
                               float* dk, float* dv);

// keys [pages, G, d * 16], values [pages, G, 16 * e], T float or Bf16; block_table [S,
// table_width].
template <class T>
void attention_paged(const AttentionShape& shape, const float* q, const T* keys, const T* values,
                     const int32_t* cu_queries, const int32_t* block_table, int64_t table_width,
                     const int32_t* context_len, int64_t sequences, float* out);

// k [T,G,d], v [T,G,e] into slots page * 16 + offset.
template <class T>
void kv_write(const AttentionShape& shape, const T* k, const T* v, const int64_t* slots,
              int64_t tokens, T* keys, T* values);

}  // namespace quadrille::tensor::cpu
