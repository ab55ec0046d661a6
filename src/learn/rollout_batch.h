// From the samples of one rollout batch to what the loss sees: which tokens, with what advantage,
// in which mini-batch. Host code without a model.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/metrics.h"
#include "base/sample.h"
#include "learn/algorithm.h"
#include "learn/microbatch.h"

namespace quadrille::learn {

// One answer. The lists are aligned with sequence.positions.
struct TrainItem {
  TrainSequence sequence;
  size_t sample = 0;  // Index in the batch.
  uint64_t group_id = 0;
  bool excluded = false;  // Aborted, filtered or unscored: no member of its group, not in the loss.
  double reward = 0;
  double penalty = 0;    // Overlong, not positive.
  double kl_reward = 0;  // kl_coef times the sum of its tokens' KL; taken off the reward.
  double advantage = 0;
  std::vector<float> behaviour;  // NaN: not recorded.
  std::vector<float> old;
  std::vector<float> ref;
};

struct RolloutBatch {
  std::vector<TrainItem> items;  // One a sample, in order.
  int64_t missing_logprobs =
      0;  // Trained tokens whose behaviour log-probability is missing or impossible.
};

// Without `recompute` the behaviour log-probabilities stand for those of the old policy, and a
// token that has none leaves the loss. `max_response_tokens` is the limit that the overlong penalty
// is measured against.
RolloutBatch make_batch(std::span<const Sample> samples, const AlgorithmConfig& config,
                        bool recompute, int64_t max_response_tokens);

// Sets each item's advantage; gives back, with the counts, which items stay in the loss.
Advantages set_advantages(RolloutBatch& batch, const AlgorithmConfig& config);

// The kept items, whole groups together, in their order of appearance.
std::vector<std::vector<const TrainItem*>> cut_mini_batches(const RolloutBatch& batch,
                                                            const std::vector<uint8_t>& kept,
                                                            int64_t count);

// reward/* and response/*.
void add_sample_metrics(std::span<const Sample> samples, Metrics& metrics);

}  // namespace quadrille::learn
