#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/error.h"
#include "learn/score.h"
#include "learn/trainer.h"
#include "learn/trainer_support.h"

namespace quadrille::learn {
namespace {

TEST(TrainerGrpo, FreshSamplesHaveARatioOfExactlyOne) {
  auto model = make_tiny("qwen3_moe");
  TrainerOptions o = options();
  o.strict = true;
  o.algorithm.micro_batch_tokens = 30;
  Trainer trainer(*model, nullptr, o, kClock);
  const auto samples = rollouts(*model, 4, 4);
  const Metrics metrics = trainer.grpo_step(samples, 0);
  EXPECT_EQ(metrics.at("policy/first_log_ratio_max"), 0);
  EXPECT_EQ(metrics.at("policy/ratio_max"), 1);
  EXPECT_EQ(metrics.at("policy/clip_ratio"), 0);
  EXPECT_EQ(metrics.at("policy/kl_old"), 0);
  EXPECT_EQ(metrics.at("mismatch/k3"), 0);
  EXPECT_EQ(metrics.at("mismatch/logprob_abs_diff_max"), 0);
  EXPECT_EQ(metrics.at("mismatch/ess_ratio"), 1);
  EXPECT_EQ(metrics.at("mismatch/mult_prob_error_ratio"), 1);
  EXPECT_GT(metrics.at("optim/grad_norm"), 0);
  EXPECT_GT(metrics.at("policy/entropy"), 0);
  EXPECT_EQ(metrics.at("reward/part_format_mean"), 1);
  EXPECT_EQ(metrics.at("reward/max"), 3);
  EXPECT_EQ(metrics.at("advantage/answers"), 16);
  EXPECT_NEAR(metrics.at("advantage/mean"), 0, 1e-6);
}

TEST(TrainerGrpo, StrictModeNamesTheTokenThatDiffers) {
  for (const char* old_logprobs : {"behaviour", "recompute"}) {
    auto model = make_tiny("qwen3_moe");
    TrainerOptions o = options();
    o.strict = true;
    o.algorithm.old_logprobs = old_logprobs;
    Trainer trainer(*model, nullptr, o, kClock);
    auto samples = rollouts(*model, 2, 2);
    const auto at = static_cast<size_t>(samples[1].prompt_tokens);
    samples[1].logprobs[at] -= 1e-4F;
    try {
      trainer.grpo_step(samples, 0);
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(fmt::format("sample 1 (group 1000), token {}", at)),
                std::string::npos)
          << error.what();
    }
    // Stale samples may differ.
    EXPECT_GT(trainer.grpo_step(samples, 1).at("mismatch/logprob_abs_diff_max"), 5e-5);
  }
}

TEST(TrainerGrpo, MakesEpochsTimesMiniBatchesSteps) {
  auto model = make_tiny("qwen3_moe");
  TrainerOptions o = options();
  o.strict = true;
  o.algorithm.prompts_per_step = 4;
  o.algorithm.epochs = 2;
  o.algorithm.mini_batches = 2;
  o.optimizer.lr = 1e-2;
  Trainer trainer(*model, nullptr, o, kClock);
  const Metrics metrics = trainer.grpo_step(rollouts(*model, 4, 3), 0);
  EXPECT_EQ(trainer.steps(), 4);
  EXPECT_EQ(metrics.at("optim/steps_total"), 4);
  EXPECT_EQ(metrics.at("policy/first_log_ratio_max"), 0);
  EXPECT_EQ(metrics.at("mismatch/k3"), 0);
  EXPECT_GT(metrics.at("policy/ratio_max"), 1);  // Later steps have moved.
  EXPECT_EQ(metrics.at("policy/sequences"), 6);
}

TEST(TrainerGrpo, ABatchWithoutVarianceTrainsNothingAndIsCounted) {
  auto model = make_tiny("qwen3_moe");
  Trainer trainer(*model, nullptr, options(), kClock);
  auto samples = rollouts(*model, 2, 3);
  for (Sample& s : samples) s.reward = s.group_id == 1000 ? 1.0F : 0.0F;
  const auto before = values_of(*model);
  const Metrics metrics = trainer.grpo_step(samples, 0);
  for (const auto& param : model->parameters())
    EXPECT_TRUE(at::equal(param->value, before.at(param->name)));
  EXPECT_EQ(metrics.at("optim/skipped_steps_total"), 1);
  EXPECT_EQ(metrics.at("optim/skipped_empty_total"), 1);
  EXPECT_EQ(metrics.at("advantage/zero_variance_all_right_total"), 1);
  EXPECT_EQ(metrics.at("advantage/zero_variance_all_wrong_total"), 1);
  EXPECT_EQ(metrics.at("reward/zero_std_ratio"), 1);
  EXPECT_FALSE(metrics.contains("policy/loss"));
}

TEST(TrainerGrpo, UnusableAnswersLeaveTheDenominator) {
  auto model = make_tiny("qwen3_moe");
  TrainerOptions o = options();
  o.algorithm.overlong_filter = true;
  auto samples = rollouts(*model, 2, 5);
  samples[0].finish = FinishReason::kAborted;
  samples[1].reward = std::numeric_limits<float>::quiet_NaN();
  samples[2].finish = FinishReason::kLength;
  std::vector<Sample> rest(samples.begin() + 3, samples.end());
  Trainer trainer(*model, nullptr, o, kClock);
  const Metrics all = trainer.grpo_step(samples, 0);
  auto other = make_tiny("qwen3_moe");
  Trainer second(*other, nullptr, o, kClock);
  const Metrics without = second.grpo_step(rest, 0);
  for (const char* name :
       {"policy/loss", "policy/trained_tokens", "policy/sequences", "optim/grad_norm"}) {
    EXPECT_EQ(all.at(name), without.at(name)) << name;
  }
  EXPECT_NEAR(all.at("reward/unscored_ratio"), 0.1, 1e-12);
  EXPECT_NEAR(all.at("response/truncated_ratio"), 0.1, 1e-12);
  EXPECT_NEAR(all.at("response/aborted_ratio"), 0.1, 1e-12);
  expect_same_weights(*model, *other);
}

TEST(TrainerGrpo, ATokenWithoutARecordLeavesTheLossAndIsCounted) {
  auto model = make_tiny("qwen3_moe");
  Trainer trainer(*model, nullptr, options(), kClock);
  auto samples = rollouts(*model, 2, 3);
  double tokens = 0;
  for (const Sample& s : samples) tokens += static_cast<double>(s.response_tokens());
  samples[0].logprobs.back() = std::numeric_limits<float>::quiet_NaN();
  samples[4].logprobs.back() = 0.5F;
  const Metrics metrics = trainer.grpo_step(samples, 0);
  EXPECT_EQ(metrics.at("mismatch/missing_logprobs_total"), 2);
  EXPECT_EQ(metrics.at("policy/trained_tokens"), tokens - 2);
  EXPECT_TRUE(std::isfinite(metrics.at("policy/loss")));
}

TEST(TrainerGrpo, GreedySamplesAreRefused) {
  auto model = make_tiny("qwen3_moe");
  Trainer trainer(*model, nullptr, options(), kClock);
  auto samples = rollouts(*model, 1, 2);
  samples[0].temperature = 0;
  EXPECT_THROW(trainer.grpo_step(samples, 0), ConfigError);
}

TEST(TrainerGrpo, TheReferenceHoldsThePolicy) {
  const auto reference = make_tiny("qwen3_moe");
  const auto distance = [&](double kl_coef, const std::string& kl_in) {
    auto model = make_tiny("qwen3_moe");
    TrainerOptions o = options();
    o.optimizer.lr = 3e-3;
    o.algorithm.kl_coef = kl_coef;
    o.algorithm.kl_in = kl_in;
    o.algorithm.kl = kl_in == "reward" ? "k1" : "k2";
    Trainer trainer(*model, reference.get(), o, kClock);
    std::vector<double> kl;
    for (int step = 0; step < 12; ++step) {
      const Metrics metrics = trainer.grpo_step(rollouts(*model, 2, 4), 0);
      if (kl_coef > 0) kl.push_back(metrics.at("policy/kl_ref"));
    }
    EXPECT_TRUE(kl.empty() || std::abs(kl.front()) < 1e-12);
    double squares = 0;
    for (size_t i = 0; i < model->parameters().size(); ++i) {
      const at::Tensor d = model->parameters()[i]->value - reference->parameters()[i]->value;
      squares += (d * d).sum().item<double>();
    }
    return squares;
  };
  const double without = distance(0, "loss");
  EXPECT_LT(distance(20, "loss"), without);
  EXPECT_NE(distance(1, "reward"), without);
}

TEST(TrainerGrpo, AdaptiveKlMovesItsCoefficient) {
  const auto reference = make_tiny("qwen3_moe", at::kFloat, 2);
  auto model = make_tiny("qwen3_moe");
  TrainerOptions o = options();
  o.algorithm.kl_coef = 0.1;
  o.algorithm.kl_target = 1e-3;  // Far below the distance to another random model.
  o.algorithm.kl_horizon = 100;
  Trainer trainer(*model, reference.get(), o, kClock);
  EXPECT_EQ(trainer.grpo_step(rollouts(*model, 2, 5), 0).at("policy/kl_coef"), 0.1);
  EXPECT_NEAR(trainer.grpo_step(rollouts(*model, 2, 5), 0).at("policy/kl_coef"),
              0.1 * (1 + 0.2 * 10 / 100), 1e-12);
}

// A one-token answer, rewarded when it is token 7.
TEST(TrainerGrpo, LearnsABandit) {
  auto model = make_tiny("qwen3_moe");
  TrainerOptions o = options();
  o.strict = true;
  o.optimizer.lr = 1e-2;
  Trainer trainer(*model, nullptr, o, kClock);
  Rng rng(4);
  const std::vector<int32_t> prompt = {3, 1, 4};
  const auto probabilities = [&] {
    std::vector<std::vector<int32_t>> tokens;
    std::vector<TrainSequence> sequences(kTinyVocab);
    std::vector<const TrainSequence*> views;
    for (int32_t v = 0; v < kTinyVocab; ++v) {
      tokens.push_back(prompt);
      tokens.back().push_back(v);
    }
    for (size_t v = 0; v < sequences.size(); ++v) {
      sequences[v].tokens = tokens[v];
      sequences[v].positions = {3};
      views.push_back(&sequences[v]);
    }
    std::vector<float> out;
    for (const auto& list : score(*model, views, 1000)) out.push_back(list[0]);
    return out;
  };
  const double before = std::exp(probabilities()[7]);
  for (int step = 0; step < 30; ++step) {
    const std::vector<float> logprobs = probabilities();
    std::vector<Sample> samples;
    for (int i = 0; i < 32; ++i) {
      double u = rng.uniform();
      int32_t token = 0;
      while (token + 1 < kTinyVocab && (u -= std::exp(logprobs[static_cast<size_t>(token)])) > 0)
        ++token;
      Sample s;
      s.group_id = static_cast<uint64_t>(step);
      s.tokens = prompt;
      s.tokens.push_back(token);
      s.prompt_tokens = 3;
      s.loss_mask = {0, 0, 0, 1};
      const float nan = std::numeric_limits<float>::quiet_NaN();
      s.logprobs = {nan, nan, nan, logprobs[static_cast<size_t>(token)]};
      s.versions = {{3, 4, step}};
      s.reward = token == 7 ? 1.0F : 0.0F;
      s.finish = FinishReason::kEos;
      samples.push_back(std::move(s));
    }
    trainer.grpo_step(samples, step);
  }
  EXPECT_LT(before, 0.3);
  EXPECT_GT(std::exp(probabilities()[7]), 0.9);
}

}  // namespace
}  // namespace quadrille::learn
