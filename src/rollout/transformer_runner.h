// The engine's view of a real model.
#pragma once

#include "model/transformer.h"
#include "rollout/runner.h"

namespace quadrille::rollout {

class TransformerRunner final : public Runner {
 public:
  explicit TransformerRunner(const model::Transformer& model) : model_(model) {}

  RunnerShape shape() const override;
  void make_cache(int64_t pages) override;
  tensor::KvCache* cache() override { return &cache_; }
  void copy_pages(const at::Tensor& from_N, const at::Tensor& to_N) override;
  at::Tensor forward(const model::Batch& batch, model::ForwardExtras* extras) override;
  at::Tensor logits(const at::Tensor& hidden_BD) override;
  tensor::Sampled sample(const at::Tensor& logits_BV,
                         const tensor::SamplingParams& params) override;

 private:
  const model::Transformer& model_;
  tensor::KvCache cache_;
};

}  // namespace quadrille::rollout
