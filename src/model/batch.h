// What one forward pass reads: packed tokens, no padding anywhere, all index tensors on the model's
// device.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "tensor/kv_cache.h"

namespace quadrille::model {

// Paged memory of generation. Absent in training and scoring: then a batch attends within itself.
struct PagedContext {
  tensor::KvCache* cache = nullptr;
  at::Tensor slots_T;  // int64: page * kPageTokens + offset, where each new token's k and v go.
  at::Tensor block_table_SP;  // int32 [S, P].
  at::Tensor
      context_len_S;  // int32: positions of the sequence after this batch, new tokens included.
};

struct Batch {
  at::Tensor tokens_T;       // int64.
  at::Tensor positions_T;    // int64, from 0 in each sequence.
  at::Tensor cu_seqlens_S1;  // int32: sequence s is rows cu[s] .. cu[s+1].
  int64_t max_seqlen = 0;
  const PagedContext* paged = nullptr;
  at::Tensor replay_TLK;  // int32 [T, moe_layers, K], optional: expert ids to use (routing replay).
                          // -1: choose live.
};

// What a forward pass tells beside the hidden states, for whoever asks.
struct ForwardExtras {
  bool want_routes = false;
  bool want_router_logits = false;
  std::vector<at::Tensor> routes_TK;  // One int32 [T, K] per MoE layer.
  std::vector<at::Tensor>
      router_logits_TE;  // One fp32 [T, E] per MoE layer, with gradient while training.
};

// Packs whole sequences from host vectors: positions from 0, block-diagonal attention.
Batch pack_sequences(const std::vector<std::vector<int32_t>>& sequences, at::Device device);

}  // namespace quadrille::model
