// Shared by the tests of the trainer: batches of examples and of answers, and what they compare.
#pragma once

#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/rng.h"
#include "learn/score.h"
#include "learn/trainer.h"
#include "model/tiny.h"

namespace quadrille::learn {

using model::testing::kTinyVocab;
using model::testing::make_tiny;

inline const SystemClock kClock;

inline std::vector<SftExample> examples(int count, uint64_t seed = 5) {
  Rng rng(seed);
  std::vector<SftExample> out;
  for (int i = 0; i < count; ++i) {
    const int64_t prompt = 2 + static_cast<int64_t>(rng.below(4));
    const int64_t total = prompt + 1 + static_cast<int64_t>(rng.below(9));
    SftExample e;
    for (int64_t t = 0; t < total; ++t) {
      e.tokens.push_back(static_cast<int32_t>(rng.below(kTinyVocab)));
      e.weights.push_back(t < prompt ? 0.0F : 1.0F);
    }
    out.push_back(std::move(e));
  }
  return out;
}

// A rollout batch with the model's own log-probabilities, as a sampler of the same runtime records
// them.
inline std::vector<Sample> rollouts(const model::Transformer& model, int groups, int group_size,
                                    uint64_t seed = 9, int64_t version = 0) {
  Rng rng(seed);
  std::vector<Sample> samples;
  for (int g = 0; g < groups; ++g) {
    const int64_t prompt = 2 + static_cast<int64_t>(rng.below(4));
    std::vector<int32_t> head;
    for (int64_t t = 0; t < prompt; ++t)
      head.push_back(static_cast<int32_t>(rng.below(kTinyVocab)));
    for (int m = 0; m < group_size; ++m) {
      Sample s;
      s.group_id = static_cast<uint64_t>(1000 + g);
      s.tokens = head;
      s.prompt_tokens = prompt;
      const int64_t length = 1 + static_cast<int64_t>(rng.below(9));
      for (int64_t t = 0; t < length; ++t)
        s.tokens.push_back(static_cast<int32_t>(rng.below(kTinyVocab)));
      s.loss_mask.assign(s.tokens.size(), 1);
      std::fill_n(s.loss_mask.begin(), prompt, uint8_t{0});
      s.logprobs.assign(s.tokens.size(), std::numeric_limits<float>::quiet_NaN());
      s.versions = {{prompt, prompt + length, version}};
      s.reward = static_cast<float>(rng.below(4)) / 2;
      s.reward_parts["format"] = 1;
      s.finish = FinishReason::kEos;
      s.temperature = 0.7F;
      samples.push_back(std::move(s));
    }
    samples.back().reward = 3;  // No group is without variance.
  }
  for (Sample& s : samples) {
    TrainSequence sequence;
    sequence.tokens = s.tokens;
    sequence.temperature = s.temperature;
    for (size_t t = static_cast<size_t>(s.prompt_tokens); t < s.tokens.size(); ++t) {
      sequence.positions.push_back(static_cast<int64_t>(t));
    }
    const TrainSequence* view = &sequence;
    const auto logprobs = score(model, {&view, 1}, 1000);
    for (size_t n = 0; n < logprobs[0].size(); ++n) {
      s.logprobs[static_cast<size_t>(sequence.positions[n])] = logprobs[0][n];
    }
    s.validate();
  }
  return samples;
}

inline TrainerOptions options(const std::string& preset = "grpo") {
  TrainerOptions o;
  o.algorithm.preset = preset;
  o.algorithm.micro_batch_tokens = 64;
  o.optimizer.lr = 1e-3;
  o.optimizer.weight_decay = 0;
  o.total_steps = 100;
  o.max_response_tokens = 16;
  return o;
}

inline std::map<std::string, at::Tensor> values_of(const model::Transformer& model) {
  std::map<std::string, at::Tensor> out;
  for (const auto& param : model.parameters()) out[param->name] = param->value.clone();
  return out;
}

inline void expect_same_weights(const model::Transformer& a, const model::Transformer& b) {
  for (size_t i = 0; i < a.parameters().size(); ++i) {
    EXPECT_TRUE(at::equal(a.parameters()[i]->value, b.parameters()[i]->value))
        << a.parameters()[i]->name;
  }
}

// Metrics but times.
inline Metrics plain(Metrics metrics) {
  std::erase_if(metrics, [](const auto& entry) { return entry.first.starts_with("time/"); });
  return metrics;
}

}  // namespace quadrille::learn
