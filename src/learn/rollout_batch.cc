#include "learn/rollout_batch.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <string>

#include "base/error.h"

namespace quadrille::learn {
namespace {

// Mean, deviation (n - 1) and range of what is finite.
struct Spread {
  double sum = 0, squares = 0;
  double min = std::numeric_limits<double>::infinity(), max = -min;
  std::vector<double> values;

  void add(double value) {
    if (!std::isfinite(value)) return;
    values.push_back(value);
    sum += value;
    min = std::min(min, value);
    max = std::max(max, value);
  }
  double mean() const { return sum / static_cast<double>(values.size()); }
  double deviation() const {
    if (values.size() < 2) return 0;
    double total = 0;
    for (const double value : values) total += (value - mean()) * (value - mean());
    return std::sqrt(total / static_cast<double>(values.size() - 1));
  }
};

}  // namespace

RolloutBatch make_batch(std::span<const Sample> samples, const AlgorithmConfig& config,
                        bool recompute, int64_t max_response_tokens) {
  RolloutBatch batch;
  for (size_t i = 0; i < samples.size(); ++i) {
    const Sample& sample = samples[i];
    QD_CHECK(sample.tokens.size() >= 2 && sample.loss_mask.size() == sample.tokens.size() &&
                 sample.logprobs.size() == sample.tokens.size() && sample.prompt_tokens >= 1,
             "sample {}: {} tokens, {} masks, {} log-probs, prompt of {}", i, sample.tokens.size(),
             sample.loss_mask.size(), sample.logprobs.size(), sample.prompt_tokens);
    if (!(sample.temperature > 0)) {
      throw ConfigError(
          "sample {} of group {} was drawn at temperature {}: greedy answers have no "
          "log-probability to train on; "
          "set rollout.temperature above 0",
          i, sample.group_id, sample.temperature);
    }
    TrainItem item;
    item.sample = i;
    item.group_id = sample.group_id;
    item.reward = sample.reward;
    item.excluded = sample.finish == FinishReason::kAborted || !std::isfinite(sample.reward) ||
                    (config.overlong_filter && sample.finish == FinishReason::kLength);
    item.penalty =
        config.overlong_factor *
        overlong_penalty(sample.response_tokens(), max_response_tokens, config.overlong_buffer);
    item.sequence.tokens = sample.tokens;
    item.sequence.temperature = sample.temperature;
    for (size_t t = static_cast<size_t>(sample.prompt_tokens); t < sample.tokens.size(); ++t) {
      if (sample.loss_mask[t] == 0) continue;
      float logprob = sample.logprobs[t];
      if (!std::isfinite(logprob) || logprob > 0) {
        // A zero in its place would mean probability one and a ratio of thousands.
        logprob = std::numeric_limits<float>::quiet_NaN();
        ++batch.missing_logprobs;
        if (!recompute) continue;
      }
      item.sequence.positions.push_back(static_cast<int64_t>(t));
      item.behaviour.push_back(logprob);
    }
    if (!recompute) item.old = item.behaviour;
    batch.items.push_back(std::move(item));
  }
  return batch;
}

Advantages set_advantages(RolloutBatch& batch, const AlgorithmConfig& config) {
  std::vector<Answer> answers;
  for (const TrainItem& item : batch.items) {
    answers.push_back(
        {item.group_id, item.reward, item.reward + item.penalty - item.kl_reward, item.excluded});
  }
  Advantages advantages = group_advantages(answers, advantage_options(config));
  for (size_t i = 0; i < batch.items.size(); ++i) batch.items[i].advantage = advantages.values[i];
  return advantages;
}

std::vector<std::vector<const TrainItem*>> cut_mini_batches(const RolloutBatch& batch,
                                                            const std::vector<uint8_t>& kept,
                                                            int64_t count) {
  std::map<uint64_t, size_t> rank;  // Of a group among the kept ones, by appearance.
  for (size_t i = 0; i < batch.items.size(); ++i) {
    if (kept[i] != 0) rank.try_emplace(batch.items[i].group_id, rank.size());
  }
  std::vector<std::vector<const TrainItem*>> out(static_cast<size_t>(count));
  for (size_t i = 0; i < batch.items.size(); ++i) {
    if (kept[i] == 0) continue;
    const size_t group = rank.at(batch.items[i].group_id);
    out[group * out.size() / rank.size()].push_back(&batch.items[i]);
  }
  return out;
}

void add_sample_metrics(std::span<const Sample> samples, Metrics& metrics) {
  if (samples.empty()) return;
  Spread reward;
  Spread length;
  std::map<std::string, Spread> parts;
  std::map<uint64_t, Spread> groups;
  double truncated = 0;
  double aborted = 0;
  for (const Sample& sample : samples) {
    reward.add(sample.reward);
    groups[sample.group_id].add(sample.reward);
    for (const auto& [name, value] : sample.reward_parts) parts[name].add(value);
    length.add(static_cast<double>(sample.response_tokens()));
    truncated += sample.finish == FinishReason::kLength ? 1 : 0;
    aborted += sample.finish == FinishReason::kAborted ? 1 : 0;
  }
  const auto count = static_cast<double>(samples.size());
  if (!reward.values.empty()) {
    metrics["reward/mean"] = reward.mean();
    metrics["reward/std"] = reward.deviation();
    metrics["reward/min"] = reward.min;
    metrics["reward/max"] = reward.max;
  }
  metrics["reward/unscored_ratio"] = 1 - static_cast<double>(reward.values.size()) / count;
  for (const auto& [name, part] : parts) {
    if (!part.values.empty()) metrics["reward/part_" + name + "_mean"] = part.mean();
  }
  double scored = 0;
  double zero = 0;
  for (const auto& [id, group] : groups) {
    if (group.values.empty()) continue;
    scored += 1;
    zero += group.min == group.max ? 1 : 0;
  }
  if (scored > 0) metrics["reward/zero_std_ratio"] = zero / scored;
  metrics["response/length_mean_tokens"] = length.mean();
  metrics["response/length_max_tokens"] = length.max;
  metrics["response/truncated_ratio"] = truncated / count;
  metrics["response/aborted_ratio"] = aborted / count;
}

}  // namespace quadrille::learn
