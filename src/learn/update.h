// One optimizer step, whatever the loss: forward and backward over the micro-batches of a
// mini-batch, the losses of the routers, the update, and the count of steps that came to nothing.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/metrics.h"
#include "learn/algorithm.h"
#include "learn/microbatch.h"
#include "learn/optimizer.h"
#include "model/transformer.h"
#include "tensor/ops.h"

namespace quadrille::learn {

// One mini-batch. `views` point into sequences that outlive the step.
struct MiniBatch {
  std::vector<const TrainSequence*> views;
  Counts counts;
  bool want_entropy = false;
};

// What the log-probabilities of the chosen sequences cost: a micro-batch's part of the mini-batch's
// loss, a scalar with a graph.
using LossFunction =
    std::function<at::Tensor(std::span<const size_t> chosen, const tensor::TokenLogprobs&)>;

// Over the optimizer steps of one batch. Tensors stay on the device until the end: reading them
// would make the host wait at each micro-batch.
struct StepTotals {
  StepTotals(const model::ModelConfig& model, at::Device device);

  int64_t updates = 0;       // Steps that changed the weights.
  int64_t mini_batches = 0;  // Those with trained tokens.
  double grad_norm = 0;      // Sum over updates.
  double lr = 0;
  double trained_tokens = 0;
  int64_t sequences = 0;
  at::Tensor expert_counts_LE;  // Undefined for dense models.
  at::Tensor balance, z;        // Scalars: sums over layers and mini-batches, without coefficients.
};

class Updater {
 public:
  // Over the whole run; part of the state.
  struct Counters {
    int64_t tried = 0;
    int64_t skipped_empty = 0;
    int64_t skipped_not_finite = 0;
  };

  // Enables the model's gradients. `algorithm` and the model must outlive it. Throws ConfigError
  // when they contradict.
  Updater(model::Transformer& model, const AlgorithmConfig& algorithm,
          const OptimizerConfig& optimizer, int64_t total_steps);

  void step(const MiniBatch& batch, const LossFunction& loss_of, StepTotals& totals);
  // optim/*, moe/* and the sizes of the mini-batches.
  void add_metrics(const StepTotals& totals, Metrics& metrics) const;

  Optimizer& optimizer() { return optimizer_; }
  const Optimizer& optimizer() const { return optimizer_; }
  Counters counters;

 private:
  at::Tensor count_experts(const MiniBatch& batch) const;
  void add_routes(const model::ForwardExtras& extras, at::Tensor& counts_LE) const;
  at::Tensor router_loss(const model::ForwardExtras& extras, const at::Tensor& global_counts_LE,
                         int64_t micro_tokens, int64_t all_tokens, StepTotals& totals) const;
  void move_selection_biases(const at::Tensor& counts_LE);
  void add_router_metrics(const StepTotals& totals, Metrics& metrics) const;

  model::Transformer& model_;
  const AlgorithmConfig& algorithm_;
  const OptimizerConfig schedule_;
  const int64_t total_steps_;
  Optimizer optimizer_;
  std::vector<tensor::ParamPtr> selection_biases_;  // One a MoE layer, if the family has them.
};

}  // namespace quadrille::learn
