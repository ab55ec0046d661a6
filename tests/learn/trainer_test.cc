#include "learn/trainer.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>

#include "base/error.h"
#include "learn/score.h"
#include "learn/tiny_model.h"

namespace quadrille::learn {
namespace {

const SystemClock kClock;

std::vector<SftExample> examples(int count, uint64_t seed = 5) {
  Rng rng(seed);
  std::vector<SftExample> out;
  for (int i = 0; i < count; ++i) {
    const int64_t prompt = 2 + static_cast<int64_t>(rng.below(4));
    const int64_t total = prompt + 1 + static_cast<int64_t>(rng.below(9));
    SftExample e;
    for (int64_t t = 0; t < total; ++t) {
      e.tokens.push_back(static_cast<int32_t>(rng.below(kVocab)));
      e.weights.push_back(t < prompt ? 0.0F : 1.0F);
    }
    out.push_back(std::move(e));
  }
  return out;
}

// A rollout batch with the model's own log-probabilities, as a sampler of the same runtime records
// them.
std::vector<Sample> rollouts(const model::Transformer& model, int groups, int group_size,
                             uint64_t seed = 9, int64_t version = 0) {
  Rng rng(seed);
  std::vector<Sample> samples;
  for (int g = 0; g < groups; ++g) {
    const int64_t prompt = 2 + static_cast<int64_t>(rng.below(4));
    std::vector<int32_t> head;
    for (int64_t t = 0; t < prompt; ++t) head.push_back(static_cast<int32_t>(rng.below(kVocab)));
    for (int m = 0; m < group_size; ++m) {
      Sample s;
      s.group_id = static_cast<uint64_t>(1000 + g);
      s.tokens = head;
      s.prompt_tokens = prompt;
      const int64_t length = 1 + static_cast<int64_t>(rng.below(9));
      for (int64_t t = 0; t < length; ++t)
        s.tokens.push_back(static_cast<int32_t>(rng.below(kVocab)));
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

TrainerOptions options(const std::string& preset = "grpo") {
  TrainerOptions o;
  o.algorithm.preset = preset;
  o.algorithm.micro_batch_tokens = 64;
  o.optimizer.lr = 1e-3;
  o.optimizer.weight_decay = 0;
  o.total_steps = 100;
  o.max_response_tokens = 16;
  return o;
}

std::map<std::string, at::Tensor> values_of(const model::Transformer& model) {
  std::map<std::string, at::Tensor> out;
  for (const auto& param : model.parameters()) out[param->name] = param->value.clone();
  return out;
}

void expect_same_weights(const model::Transformer& a, const model::Transformer& b) {
  for (size_t i = 0; i < a.parameters().size(); ++i) {
    EXPECT_TRUE(at::equal(a.parameters()[i]->value, b.parameters()[i]->value))
        << a.parameters()[i]->name;
  }
}

// Metrics but times.
Metrics plain(Metrics metrics) {
  std::erase_if(metrics, [](const auto& entry) { return entry.first.starts_with("time/"); });
  return metrics;
}

// ---- SFT ----

TEST(TrainerSft, LossIsTheMeanOverTrainedTokens) {
  auto model = tiny_model();
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
  auto model = tiny_model();
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
  auto model = tiny_model();
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
  auto model = tiny_model(1, at::kBFloat16);
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
  auto model = tiny_model();
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
  const auto reference = tiny_model(2);
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

// ---- GRPO ----

TEST(TrainerGrpo, FreshSamplesHaveARatioOfExactlyOne) {
  auto model = tiny_model();
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
    auto model = tiny_model();
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
  auto model = tiny_model();
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
  auto model = tiny_model();
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
  auto model = tiny_model();
  TrainerOptions o = options();
  o.algorithm.overlong_filter = true;
  auto samples = rollouts(*model, 2, 5);
  samples[0].finish = FinishReason::kAborted;
  samples[1].reward = std::numeric_limits<float>::quiet_NaN();
  samples[2].finish = FinishReason::kLength;
  std::vector<Sample> rest(samples.begin() + 3, samples.end());
  Trainer trainer(*model, nullptr, o, kClock);
  const Metrics all = trainer.grpo_step(samples, 0);
  auto other = tiny_model();
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
  auto model = tiny_model();
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
  auto model = tiny_model();
  Trainer trainer(*model, nullptr, options(), kClock);
  auto samples = rollouts(*model, 1, 2);
  samples[0].temperature = 0;
  EXPECT_THROW(trainer.grpo_step(samples, 0), ConfigError);
}

TEST(TrainerGrpo, TheReferenceHoldsThePolicy) {
  const auto reference = tiny_model();
  const auto distance = [&](double kl_coef, const std::string& kl_in) {
    auto model = tiny_model();
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
  const auto reference = tiny_model(2);
  auto model = tiny_model();
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
  auto model = tiny_model();
  TrainerOptions o = options();
  o.strict = true;
  o.optimizer.lr = 1e-2;
  Trainer trainer(*model, nullptr, o, kClock);
  Rng rng(4);
  const std::vector<int32_t> prompt = {3, 1, 4};
  const auto probabilities = [&] {
    std::vector<std::vector<int32_t>> tokens;
    std::vector<TrainSequence> sequences(kVocab);
    std::vector<const TrainSequence*> views;
    for (int32_t v = 0; v < kVocab; ++v) {
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
      while (token + 1 < kVocab && (u -= std::exp(logprobs[static_cast<size_t>(token)])) > 0)
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

// ---- Set-up and state ----

TEST(Trainer, RefusesWhatTheModelCannotDo) {
  auto model = tiny_model();
  TrainerOptions o = options();
  o.algorithm.kl_coef = 0.1;
  EXPECT_THROW(Trainer(*model, nullptr, o, kClock), ConfigError);
  o = options();
  o.algorithm.router_bias_rate = 1e-3;
  EXPECT_THROW(Trainer(*model, nullptr, o, kClock), ConfigError);
  model::ModelConfig dense = tiny_config();
  for (auto& layer : dense.layers) layer.feed_forward = model::FeedForwardKind::kDense;
  auto without_experts = tiny_model(1, at::kFloat, dense);
  o = options();
  o.algorithm.load_balance_coef = 0.01;
  EXPECT_THROW(Trainer(*without_experts, nullptr, o, kClock), ConfigError);
}

TEST(Trainer, TheSelectionBiasMovesTowardsBalanceAndIsPartOfTheState) {
  model::ModelConfig config = tiny_config();
  config.family = "deepseek_v3";
  config.qk_norm = model::QkNormKind::kNone;
  config.attention = model::AttentionKind::kLatent;
  config.kv_heads = config.heads;
  config.q_lora_rank = 8;
  config.kv_lora_rank = 8;
  config.qk_nope_dim = 4;
  config.qk_rope_dim = 4;
  config.v_head_dim = 4;
  config.router = model::RouterKind::kSigmoidGrouped;
  config.router_fp32 = true;
  config.weights_stay_fp32 = true;
  config.selection_bias = true;
  auto model = tiny_model(1, at::kFloat, config);
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
  auto model = tiny_model();
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
    auto straight = tiny_model(1, dtype);
    Trainer one(*straight, nullptr, o, kClock);
    std::vector<Metrics> expected;
    for (int s = 0; s < 6; ++s) expected.push_back(step(one, *straight, s));

    auto first = tiny_model(1, dtype);
    Trainer before(*first, nullptr, o, kClock);
    for (int s = 0; s < 3; ++s)
      EXPECT_EQ(step(before, *first, s), expected[static_cast<size_t>(s)]);
    const Saved saved = save(before);
    auto second = tiny_model(77, dtype);
    Trainer after(*second, nullptr, o, kClock);
    after.load([&](const std::string& name) { return saved.tensors.at(name); }, saved.state);
    for (int s = 3; s < 6; ++s)
      EXPECT_EQ(step(after, *second, s), expected[static_cast<size_t>(s)]) << s;
    expect_same_weights(*straight, *second);
  }
}

TEST(Trainer, RefusesADamagedState) {
  auto model = tiny_model();
  Trainer trainer(*model, nullptr, options(), kClock);
  const auto find = [](const std::string&) -> at::Tensor { throw FormatError("none"); };
  EXPECT_THROW(trainer.load(find, "{"), FormatError);
  EXPECT_THROW(trainer.load(find, "{}"), FormatError);
}

}  // namespace
}  // namespace quadrille::learn
