// A mixture of experts small enough for a test of milliseconds, with every number fixed by a seed.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <memory>

#include "base/rng.h"
#include "model/transformer.h"
#include "tensor/threads.h"

namespace quadrille::learn {

inline constexpr int64_t kVocab = 23;

inline model::ModelConfig tiny_config() {
  model::ModelConfig c;
  c.family = "qwen3_moe";
  c.vocab = kVocab;
  c.hidden = 16;
  c.heads = 4;
  c.kv_heads = 2;
  c.head_dim = 8;
  c.dense_width = 24;
  c.max_positions = 128;
  c.norm_eps = 1e-6;
  c.qk_norm = model::QkNormKind::kPerHead;
  c.experts = 4;
  c.top_k = 2;
  c.expert_width = 12;
  c.norm_topk = true;
  c.layers.resize(3);
  c.layers[1].feed_forward = model::FeedForwardKind::kMoe;
  c.layers[2].feed_forward = model::FeedForwardKind::kMoe;
  return c;
}

inline void fill(model::Transformer& model, uint64_t seed) {
  Rng rng(seed);
  for (const tensor::ParamPtr& param : model.parameters()) {
    at::Tensor values = at::empty(param->value.sizes(), at::kFloat);
    float* to = values.mutable_data_ptr<float>();
    for (int64_t i = 0; i < values.numel(); ++i) {
      const double normal = rng.normal();
      to[i] = static_cast<float>(param->value.dim() < 2 ? 1 + 0.05 * normal : 0.25 * normal);
    }
    param->value.copy_(values);
    param->changed();
  }
}

inline std::unique_ptr<model::Transformer> tiny_model(
    uint64_t seed = 1, at::ScalarType dtype = at::kFloat,
    const model::ModelConfig& config = tiny_config()) {
  // Nothing here is large enough to share out, and threads that wait for each other on a busy
  // machine take seconds.
  tensor::set_threads(1);
  auto model = std::make_unique<model::Transformer>(config, dtype, at::kCPU);
  fill(*model, seed);
  return model;
}

}  // namespace quadrille::learn
