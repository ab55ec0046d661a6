// The training step: samples or examples in, better weights and metrics out.
//
// A rollout batch becomes epochs x mini_batches optimizer steps, and each of those any number of
// micro-batches. The denominators of an optimizer step are counted over its whole mini-batch before
// the first forward pass.
//
// The ratio's denominator (docs/rl.md, section 7): with one optimizer step a batch, the
// log-probabilities recorded while sampling; with several, a forward pass of the trainer before the
// first of them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/metrics.h"
#include "base/sample.h"
#include "learn/algorithm.h"
#include "learn/optimizer.h"
#include "model/transformer.h"

namespace quadrille::learn {

struct SftExample {
  std::vector<int32_t> tokens;
  // [tokens]: 0 where not trained, else usually 1. The first token is never trained.
  std::vector<float> weights;
};

struct TrainerOptions {
  AlgorithmConfig algorithm;  // With its preset applied.
  OptimizerConfig optimizer;
  int64_t total_steps = 0;          // Optimizer steps of the whole run, for the schedule.
  int64_t max_response_tokens = 0;  // What the overlong penalty is measured against.
  // Fresh samples must have exactly the trainer's log-probabilities: an error where they do not.
  bool strict = false;
};

class Trainer {
 public:
  // Takes the weights as they are: load them before. `reference` may be null where no KL term asks
  // for it; both models and the clock must outlive the trainer. Throws ConfigError when options and
  // model contradict.
  Trainer(model::Transformer& model, const model::Transformer* reference, TrainerOptions options,
          const Clock& clock);
  ~Trainer();
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  // One optimizer step on all examples.
  Metrics sft_step(std::span<const SftExample> examples);
  // Mean loss of a trained token, without training.
  double sft_loss(std::span<const SftExample> examples) const;

  // One rollout batch of complete groups. `version` is that of the weights now: samples drawn
  // wholly from it are fresh.
  Metrics grpo_step(std::span<const Sample> samples, int64_t version);

  // Optimizer steps tried so far, skipped ones included: where the schedule stands.
  int64_t steps() const;

  // All that a run needs to go on bit for bit: fp32 values of every parameter under its name, the
  // optimizer's moments, and counters as a JSON object. The tensors are live: write them out before
  // the next step.
  NamedTensors weights() const;
  NamedTensors moments() const;
  std::string state_json() const;
  void load(const std::function<at::Tensor(const std::string&)>& find,
            const std::string& state_json);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace quadrille::learn
