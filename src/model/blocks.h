// The parts of a layer that families choose between. Each is built once from ModelConfig and the
// layer's parameters, holds no state of its own, and computes the same bits in generation and in
// training.
//
// Shapes: see tensor/ops.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>

#include "model/batch.h"
#include "model/config.h"
#include "tensor/ops.h"

namespace quadrille::model {

// Parameter of a layer by its own name ("attention.qkv"); null if the model has none of that name.
using LayerParams = std::function<tensor::ParamPtr(const std::string& name)>;

struct BlockContext {
  const Batch& batch;
  const tensor::RopeTable& rope;
};

class Attention {
 public:
  virtual ~Attention() = default;
  // Normed input [T, D] -> [T, D], to be added to the residual.
  virtual at::Tensor forward(const at::Tensor& h_TD, const BlockContext& context) const = 0;
};
std::unique_ptr<Attention> make_attention(const ModelConfig& config, int64_t layer,
                                          const LayerParams& params);

// What the router of one layer did.
struct Routed {
  at::Tensor ids_TK;     // int32.
  at::Tensor logits_TE;  // fp32.
};

class FeedForward {
 public:
  virtual ~FeedForward() = default;
  // `replay_TK` (may be undefined): expert ids to use. `routed` (may be null) is filled by MoE
  // layers.
  virtual at::Tensor forward(const at::Tensor& h_TD, const at::Tensor& replay_TK,
                             Routed* routed) const = 0;
};
std::unique_ptr<FeedForward> make_feed_forward(const ModelConfig& config, int64_t layer,
                                               const LayerParams& params);

}  // namespace quadrille::model
