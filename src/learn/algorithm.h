// [algorithm]: which estimator, which loss, which denominators. Formulas and names: docs/rl.md.
//
// A preset is a set of defaults: keys that the user wrote win over it. What is not built yet has
// its name here and is refused by validate(), so that a configuration written for another tool says
// what is missing instead of training something else.
#pragma once

#include <cstdint>
#include <string>

#include "base/config.h"
#include "learn/advantages.h"
#include "learn/microbatch.h"
#include "learn/policy_loss.h"

namespace quadrille::learn {

struct AlgorithmConfig {
  std::string preset = "grpo";

  // The batch.
  int64_t group_size = 8;
  int64_t prompts_per_step = 32;
  int64_t epochs = 1;
  int64_t mini_batches = 1;
  int64_t micro_batch_tokens = 8192;
  bool recompute = false;

  // Advantages.
  std::string advantage = "grpo";
  double advantage_eps = 1e-6;
  bool drop_zero_variance = true;
  bool overlong_filter = false;
  int64_t overlong_buffer = 0;
  double overlong_factor = 1.0;

  // The policy loss.
  std::string loss = "ppo";
  double clip_low = 0.2;
  double clip_high = 0.2;
  double dual_clip = 3.0;
  std::string old_logprobs = "auto";
  std::string mismatch = "none";
  std::string aggregation = "token_mean";
  int64_t norm_length = 0;
  double entropy_coef = 0;

  // Distance to the reference policy.
  std::string kl_in = "loss";
  std::string kl = "k3+";
  double kl_coef = 0;
  bool kl_bias_correction = false;
  double kl_target = 0;
  int64_t kl_horizon = 10000;

  // The router of a mixture of experts.
  double load_balance_coef = 0;
  std::string load_balance_scope = "global";
  double z_loss_coef = 0;
  double router_bias_rate = 0;

  bool is_sft() const { return preset == "sft"; }
  bool kl_as_loss() const { return !is_sft() && kl_coef > 0 && kl_in == "loss"; }
  bool kl_as_reward() const { return !is_sft() && kl_coef > 0 && kl_in == "reward"; }
  bool needs_reference() const { return kl_as_loss() || kl_as_reward(); }
  // Optimizer steps made of one rollout batch. An SFT step is always one.
  int64_t steps_per_batch() const { return is_sft() ? 1 : epochs * mini_batches; }
  bool recomputes_old_logprobs() const;

  // Throws ConfigError: names that are not available yet, numbers that contradict each other.
  void validate() const;
};

// Fields of the current section; call binder.section("algorithm", …) before.
void bind(AlgorithmConfig& config, ConfigBinder& binder);
// Fills what the preset decides and nobody wrote. `max_response_tokens` is the run's limit (0:
// unknown): the default of norm_length. Call it once, after the file and every --set are read.
void apply_preset(AlgorithmConfig& config, const ConfigBinder& binder, int64_t max_response_tokens);

AdvantageOptions advantage_options(const AlgorithmConfig& config);
PolicyLossOptions policy_loss_options(const AlgorithmConfig& config);
Aggregation aggregation(const AlgorithmConfig& config);

}  // namespace quadrille::learn
