// What the engine asks of a model: compute a batch against the paged cache, and draw tokens. Small,
// so that tests put a transparent fake in its place; transformer_runner.h has the real one.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "model/batch.h"
#include "tensor/ops.h"

namespace quadrille::rollout {

struct RunnerShape {
  int64_t vocab = 0;
  int64_t max_positions = 0;  // 0: no limit.
  int64_t moe_layers = 0;
  int64_t top_k = 0;
  int64_t page_bytes = 0;  // One page of the cache, all layers.
  at::Device device = at::kCPU;
};

class Runner {
 public:
  virtual ~Runner() = default;
  virtual RunnerShape shape() const = 0;
  // Replaces the cache by one of `pages`; their contents are undefined.
  virtual void make_cache(int64_t pages) = 0;
  virtual tensor::KvCache* cache() = 0;
  virtual void copy_pages(const at::Tensor& from_N, const at::Tensor& to_N) = 0;
  // Hidden states [T, D]; `batch` is paged.
  virtual at::Tensor forward(const model::Batch& batch, model::ForwardExtras* extras) = 0;
  virtual at::Tensor logits(const at::Tensor& hidden_BD) = 0;
  virtual tensor::Sampled sample(const at::Tensor& logits_BV,
                                 const tensor::SamplingParams& params) = 0;
};

}  // namespace quadrille::rollout
