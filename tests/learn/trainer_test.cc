// SFT, the cut into micro-batches, set-up and state; the GRPO step has trainer_grpo_test.cc.
#include "learn/trainer.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>

#include "base/error.h"
#include "learn/score.h"
#include "learn/trainer_support.h"

namespace quadrille::learn {
namespace {

// ---- SFT ----

TEST(TrainerSft, LossIsTheMeanOverTrainedTokens) {
  auto model = make_tiny("qwen3_moe");
  const auto data = examples(4);
  double sum = 0;
  double tokens = 0;
  for (const SftExample& e : data) {
    TrainSequence s;
    s.tokens = e.tokens;
    for (size_t t = 1; t < e.tokens.size(); ++t) {
      if (e.weights[t] > 0) s.positions.push_back(static_cast<int64_t>(t));
    }
    const TrainSequence* view = &s;
    const auto logprobs = score(*model, {&view, 1}, 100);
    for (const float logprob : logprobs[0]) {
      sum -= logprob;
      tokens += 1;
    }
  }
  Trainer trainer(*model, nullptr, options("sft"), kClock);
  EXPECT_NEAR(trainer.sft_loss(data), sum / tokens, 1e-6);
  const Metrics metrics = trainer.sft_step(data);
  EXPECT_NEAR(metrics.at("policy/loss"), sum / tokens, 1e-6);
  EXPECT_EQ(metrics.at("policy/trained_tokens"), tokens);
  EXPECT_EQ(metrics.at("policy/sequences"), 4);
  EXPECT_GT(metrics.at("moe/max_vio"), 0);
  EXPECT_TRUE(metrics.contains("moe/layer_1/max_vio"));
  EXPECT_FALSE(metrics.contains("moe/layer_0/max_vio"));
}

TEST(TrainerSft, WeightsScaleTokensAndTheDenominator) {
  auto model = make_tiny("qwen3_moe");
  std::vector<SftExample> data = examples(2);
  Trainer trainer(*model, nullptr, options("sft"), kClock);
  const double first = trainer.sft_loss({&data[0], 1});
  const double second = trainer.sft_loss({&data[1], 1});
  auto weight_of = [](const SftExample& e) {
    double sum = 0;
    for (const float w : e.weights) sum += w;
    return sum;
  };
  for (float& w : data[1].weights) w *= 0.25F;
  const double expected = (first * weight_of(data[0]) + second * weight_of(data[1])) /
                          (weight_of(data[0]) + weight_of(data[1]));
  EXPECT_NEAR(trainer.sft_step(data).at("policy/loss"), expected, 1e-6);
}

TEST(TrainerSft, OverfitsAFewSequences) {
  auto model = make_tiny("qwen3_moe");
  TrainerOptions o = options("sft");
  o.optimizer.lr = 2e-2;
  o.optimizer.betas = {0.9, 0.95};
  const auto data = examples(3);
  Trainer trainer(*model, nullptr, o, kClock);
  const double before = trainer.sft_loss(data);
  for (int step = 0; step < 80; ++step) trainer.sft_step(data);
  EXPECT_GT(before, 1);
  EXPECT_LT(trainer.sft_loss(data), 0.02);
}

TEST(TrainerSft, Bf16LearnsThroughItsMaster) {
  auto model = make_tiny("qwen3_moe", at::kBFloat16);
  TrainerOptions o = options("sft");
  o.optimizer.lr = 1e-2;
  const auto data = examples(2);
  Trainer trainer(*model, nullptr, o, kClock);
  for (int step = 0; step < 80; ++step) trainer.sft_step(data);
  EXPECT_LT(trainer.sft_loss(data), 0.2);
}

// ---- The cut into micro-batches ----

double length_of(const at::Tensor& tensor) {
  const at::Tensor wide = tensor.to(at::kDouble);
  return std::sqrt((wide * wide).sum().item<double>());
}

struct Cut {
  Metrics metrics;
  std::map<std::string, at::Tensor> gradients;
};

template <class Step>
Cut cut(TrainerOptions o, int64_t micro_batch_tokens, const model::Transformer* reference,
        Step step) {
  auto model = make_tiny("qwen3_moe");
  o.algorithm.micro_batch_tokens = micro_batch_tokens;
  o.optimizer.clip_norm = 0;
  Trainer trainer(*model, reference, o, kClock);
  Cut out;
  out.metrics = plain(step(trainer, *model));
  for (const auto& param : model->parameters()) out.gradients[param->name] = param->grad.clone();
  return out;
}

template <class Step>
void expect_independent_of_the_cut(const TrainerOptions& o, const model::Transformer* reference,
                                   Step step) {
  const Cut whole = cut(o, 100000, reference, step);
  for (const int64_t tokens : {1, 20, 40, 80}) {
    const Cut parts = cut(o, tokens, reference, step);
    ASSERT_EQ(parts.metrics.size(), whole.metrics.size());
    for (const auto& [name, value] : whole.metrics) {
      EXPECT_NEAR(parts.metrics.at(name), value, 1e-6 * std::max(1.0, std::abs(value)))
          << name << " at " << tokens;
    }
    for (const auto& [name, gradient] : whole.gradients) {
      const at::Tensor difference = gradient - parts.gradients.at(name);
      EXPECT_LE(length_of(difference), 1e-6 * length_of(gradient)) << name << " at " << tokens;
    }
  }
}

TEST(TrainerCut, SftDoesNotDependOnIt) {
  const auto data = examples(8);
  expect_independent_of_the_cut(
      options("sft"), nullptr,
      [&](Trainer& t, const model::Transformer&) { return t.sft_step(data); });
}

TEST(TrainerCut, RouterLossesDoNotDependOnIt) {
  TrainerOptions o = options("sft");
  o.algorithm.load_balance_coef = 0.5;
  o.algorithm.z_loss_coef = 0.1;
  const auto data = examples(8);
  const Cut with =
      cut(o, 100000, nullptr, [&](Trainer& t, const auto&) { return t.sft_step(data); });
  EXPECT_GT(with.metrics.at("moe/aux_loss"), 0.9);
  EXPECT_GT(with.metrics.at("moe/z_loss"), 0);
  expect_independent_of_the_cut(
      o, nullptr, [&](Trainer& t, const model::Transformer&) { return t.sft_step(data); });
}

TEST(TrainerCut, EveryAggregationOfGrpoWithKlAndEntropyIsIndependentOfIt) {
  const auto reference = make_tiny("qwen3_moe", at::kFloat, 2);
  for (const char* aggregation :
       {"token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "seq_mean_token_sum_norm"}) {
    TrainerOptions o = options();
    o.algorithm.aggregation = aggregation;
    o.algorithm.norm_length = 16;
    o.algorithm.kl_coef = 0.1;
    o.algorithm.entropy_coef = 0.01;
    expect_independent_of_the_cut(o, reference.get(), [](Trainer& t, const model::Transformer& m) {
      return t.grpo_step(rollouts(m, 3, 3), 0);
    });
  }
}

TEST(TrainerCut, RecomputingActivationsChangesNoBit) {
  TrainerOptions o = options("sft");
  o.algorithm.z_loss_coef = 0.1;
  const auto data = examples(6);
  const auto step = [&](Trainer& t, const auto&) { return t.sft_step(data); };
  const Cut kept = cut(o, 64, nullptr, step);
  o.algorithm.recompute = true;
  const Cut again = cut(o, 64, nullptr, step);
  EXPECT_EQ(kept.metrics, again.metrics);
  for (const auto& [name, gradient] : kept.gradients) {
    EXPECT_TRUE(at::equal(gradient, again.gradients.at(name))) << name;
  }
}

// ---- Set-up and state ----

TEST(Trainer, RefusesWhatTheModelCannotDo) {
  auto model = make_tiny("qwen3_moe");
  TrainerOptions o = options();
  o.algorithm.kl_coef = 0.1;
  EXPECT_THROW(Trainer(*model, nullptr, o, kClock), ConfigError);
  o = options();
  o.algorithm.router_bias_rate = 1e-3;
  EXPECT_THROW(Trainer(*model, nullptr, o, kClock), ConfigError);
  auto without_experts = make_tiny("qwen3");
  o = options();
  o.algorithm.load_balance_coef = 0.01;
  EXPECT_THROW(Trainer(*without_experts, nullptr, o, kClock), ConfigError);
}

TEST(Trainer, TheSelectionBiasMovesTowardsBalanceAndIsPartOfTheState) {
  auto model = make_tiny("deepseek_v3");
  TrainerOptions o = options("sft");
  o.algorithm.router_bias_rate = 0.125;
  o.algorithm.load_balance_coef = 0.01;
  const auto before = values_of(*model);
  Trainer trainer(*model, nullptr, o, kClock);
  trainer.sft_step(examples(6));
  int moved = 0;
  for (const auto& [name, value] : trainer.weights()) {
    if (!name.ends_with("selection_bias")) continue;
    const at::Tensor step = (value - before.at(name)).abs();
    EXPECT_TRUE(((step == 0) | ((step - 0.125).abs() < 1e-6)).all().item<bool>()) << step;
    moved += step.max().item<double>() > 0 ? 1 : 0;
  }
  EXPECT_GT(moved, 0);
}

TEST(Trainer, SkipsAStepWhoseGradientIsNotFinite) {
  auto model = make_tiny("qwen3_moe");
  Trainer trainer(*model, nullptr, options("sft"), kClock);
  model->parameters().back()->value.view(-1)[0].fill_(std::numeric_limits<double>::infinity());
  model->parameters().back()->changed();
  const Metrics metrics = trainer.sft_step(examples(2));
  EXPECT_EQ(metrics.at("optim/skipped_not_finite_total"), 1);
  EXPECT_FALSE(metrics.contains("optim/grad_norm"));
  EXPECT_EQ(trainer.steps(), 1);
}

struct Saved {
  std::map<std::string, at::Tensor> tensors;
  std::string state;
};
Saved save(const Trainer& trainer) {
  Saved saved;
  for (const auto& list : {trainer.weights(), trainer.moments()}) {
    for (const auto& [name, tensor] : list) saved.tensors[name] = tensor.clone();
  }
  saved.state = trainer.state_json();
  return saved;
}

TEST(Trainer, ResumesBitForBit) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    TrainerOptions o = options();
    o.algorithm.prompts_per_step = 4;
    o.algorithm.mini_batches = 2;
    o.optimizer.schedule = "cosine";
    o.optimizer.warmup_steps = 3;
    o.optimizer.weight_decay = 0.1;
    o.total_steps = 12;
    const auto step = [](Trainer& t, const model::Transformer& m, int s) {
      return plain(t.grpo_step(rollouts(m, 4, 3, static_cast<uint64_t>(50 + s), s), s));
    };
    auto straight = make_tiny("qwen3_moe", dtype);
    Trainer one(*straight, nullptr, o, kClock);
    std::vector<Metrics> expected;
    for (int s = 0; s < 6; ++s) expected.push_back(step(one, *straight, s));

    auto first = make_tiny("qwen3_moe", dtype);
    Trainer before(*first, nullptr, o, kClock);
    for (int s = 0; s < 3; ++s)
      EXPECT_EQ(step(before, *first, s), expected[static_cast<size_t>(s)]);
    const Saved saved = save(before);
    auto second = make_tiny("qwen3_moe", dtype, 77);
    Trainer after(*second, nullptr, o, kClock);
    after.load([&](const std::string& name) { return saved.tensors.at(name); }, saved.state);
    for (int s = 3; s < 6; ++s)
      EXPECT_EQ(step(after, *second, s), expected[static_cast<size_t>(s)]) << s;
    expect_same_weights(*straight, *second);
  }
}

TEST(Trainer, RefusesADamagedState) {
  auto model = make_tiny("qwen3_moe");
  Trainer trainer(*model, nullptr, options(), kClock);
  const auto find = [](const std::string&) -> at::Tensor { throw FormatError("none"); };
  EXPECT_THROW(trainer.load(find, "{"), FormatError);
  EXPECT_THROW(trainer.load(find, "{}"), FormatError);
}

}  // namespace
}  // namespace quadrille::learn
