#include "learn/algorithm.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "base/error.h"

namespace quadrille::learn {
namespace {

using Names = std::vector<std::string>;

// A setting's names: those built, and those known but not built.
struct Choice {
  const char* key;
  Names available;
  Names later;

  Names all() const {
    Names names = available;
    names.insert(names.end(), later.begin(), later.end());
    return names;
  }
  void check(const std::string& value) const {
    if (std::find(later.begin(), later.end(), value) != later.end()) {
      throw ConfigError("algorithm.{} = \"{}\" is not available yet; this version has {}", key,
                        value, fmt::join(available, ", "));
    }
    if (std::find(available.begin(), available.end(), value) == available.end()) {
      throw ConfigError("algorithm.{} = \"{}\" is not known; use one of {}", key, value,
                        fmt::join(available, ", "));
    }
  }
};

const Choice kPreset = {"preset",
                        {"sft", "grpo", "dr_grpo", "rloo", "dapo"},
                        {"pretrain", "ppo", "gspo", "cispo", "reinforce_pp"}};
const Choice kAdvantage = {"advantage",
                           {"grpo", "dr_grpo", "rloo"},
                           {"reinforce_pp", "reinforce_pp_baseline", "opo", "gae"}};
const Choice kLoss = {
    "loss", {"ppo", "dual_clip"}, {"gspo", "cispo", "decoupled", "dppo", "reinforce"}};
const Choice kMismatch = {
    "mismatch",
    {"none"},
    {"tis", "icepop", "seq_tis", "seq_mis", "geo_rs", "k3_rs", "seq_kl_mask"}};
const Choice kAggregation = {
    "aggregation",
    {"token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "seq_mean_token_sum_norm"},
    {}};
const Choice kKl = {"kl", {"k1", "k2", "k3", "k3+"}, {}};
const Choice kKlIn = {"kl_in", {"loss", "reward"}, {}};
const Choice kOldLogprobs = {"old_logprobs", {"auto", "behaviour", "recompute"}, {}};
const Choice kBalanceScope = {"load_balance_scope", {"global", "micro_batch"}, {}};

void at_least(const char* key, double value, double least) {
  if (!(value >= least))
    throw ConfigError("algorithm.{} = {} must be at least {}", key, value, least);
}

}  // namespace

bool AlgorithmConfig::recomputes_old_logprobs() const {
  if (is_sft()) return false;
  return old_logprobs == "recompute" || (old_logprobs == "auto" && steps_per_batch() > 1);
}

void AlgorithmConfig::validate() const {
  kPreset.check(preset);
  kAdvantage.check(advantage);
  kLoss.check(loss);
  kMismatch.check(mismatch);
  kAggregation.check(aggregation);
  kKl.check(kl);
  kKlIn.check(kl_in);
  kOldLogprobs.check(old_logprobs);
  kBalanceScope.check(load_balance_scope);

  at_least("micro_batch_tokens", static_cast<double>(micro_batch_tokens), 1);
  at_least("prompts_per_step", static_cast<double>(prompts_per_step), 1);
  at_least("load_balance_coef", load_balance_coef, 0);
  at_least("z_loss_coef", z_loss_coef, 0);
  at_least("router_bias_rate", router_bias_rate, 0);
  at_least("entropy_coef", entropy_coef, 0);
  if (is_sft()) {
    if (aggregation != "token_mean") {
      throw ConfigError(
          "algorithm.aggregation = \"{}\": SFT is a mean over trained tokens, \"token_mean\"",
          aggregation);
    }
    return;
  }

  at_least("epochs", static_cast<double>(epochs), 1);
  at_least("mini_batches", static_cast<double>(mini_batches), 1);
  if (group_size < 2) {
    throw ConfigError(
        "algorithm.group_size = {}: advantage \"{}\" compares the answers of a group, so it needs "
        "at least 2",
        group_size, advantage);
  }
  if (prompts_per_step % mini_batches != 0) {
    throw ConfigError(
        "algorithm.prompts_per_step = {} is not a multiple of algorithm.mini_batches = {}",
        prompts_per_step, mini_batches);
  }
  if (!(advantage_eps > 0))
    throw ConfigError("algorithm.advantage_eps = {} must be above 0", advantage_eps);
  if (!(clip_low > 0 && clip_low < 1)) {
    throw ConfigError(
        "algorithm.clip_low = {} must lie between 0 and 1: the ratio is kept above 1 - clip_low",
        clip_low);
  }
  if (!(clip_high > 0)) throw ConfigError("algorithm.clip_high = {} must be above 0", clip_high);
  if (loss == "dual_clip" && !(dual_clip > 1 + clip_high)) {
    throw ConfigError("algorithm.dual_clip = {} must be above 1 + clip_high = {}", dual_clip,
                      1 + clip_high);
  }
  if (aggregation == "seq_mean_token_sum_norm" && norm_length < 1) {
    throw ConfigError(
        "algorithm.norm_length = {}: aggregation \"seq_mean_token_sum_norm\" divides by a constant "
        "length; set "
        "it, or rollout.max_new_tokens",
        norm_length);
  }
  at_least("overlong_buffer", static_cast<double>(overlong_buffer), 0);
  at_least("overlong_factor", overlong_factor, 0);
  if (overlong_filter && overlong_buffer > 0) {
    throw ConfigError(
        "algorithm.overlong_filter and algorithm.overlong_buffer = {}: answers cut off at the "
        "limit are either "
        "left out or penalised, not both",
        overlong_buffer);
  }
  at_least("kl_coef", kl_coef, 0);
  if (kl_as_loss() && kl == "k1") {
    throw ConfigError(
        "algorithm.kl = \"k1\" as a loss has a gradient of mean zero and holds nothing back; use "
        "\"k2\" or "
        "\"k3+\", or kl_in = \"reward\"");
  }
  if (kl_as_reward() && kl == "k3+") {
    throw ConfigError(
        "algorithm.kl = \"k3+\" differs from \"k3\" in its gradient alone, and a reward has none; "
        "use \"k1\"");
  }
  if (kl_bias_correction && kl_as_reward()) {
    throw ConfigError("algorithm.kl_bias_correction is for kl_in = \"loss\"; kl_in is \"reward\"");
  }
  at_least("kl_target", kl_target, 0);
  if (kl_target > 0 && !needs_reference()) {
    throw ConfigError(
        "algorithm.kl_target = {} steers kl_coef, which is 0: give it a starting value", kl_target);
  }
  at_least("kl_horizon", static_cast<double>(kl_horizon), 1);
}

void bind(AlgorithmConfig& c, ConfigBinder& b) {
  b.field("preset", c.preset,
          "Fills the defaults of a known method; any other key here overrides it.", kPreset.all());
  b.field("group_size", c.group_size, "Answers per prompt; they are compared with each other.");
  b.field("prompts_per_step", c.prompts_per_step,
          "Prompts of one rollout batch; for SFT, examples of one optimizer step.");
  b.field("epochs", c.epochs, "Passes over a rollout batch.");
  b.field("mini_batches", c.mini_batches, "Optimizer steps a pass is cut into, by whole groups.");
  b.field(
      "micro_batch_tokens", c.micro_batch_tokens,
      "Tokens of one forward and backward; lower it when memory is short. It changes no result.");
  b.field("recompute", c.recompute,
          "Keep only the inputs of each block and run it again in backward: less memory, a third "
          "more work.");
  b.field("advantage", c.advantage,
          "grpo divides by the group's standard deviation, dr_grpo does not, rloo leaves the "
          "answer itself out of "
          "the mean.",
          kAdvantage.all());
  b.field("advantage_eps", c.advantage_eps, "Added to the standard deviation of a group.");
  b.field(
      "drop_zero_variance", c.drop_zero_variance,
      "Leave out groups whose answers all have the same reward; kept, they still divide the loss.");
  b.field("overlong_filter", c.overlong_filter,
          "Leave out answers that were cut off at the length limit.");
  b.field("overlong_buffer", c.overlong_buffer,
          "Tokens before the length limit over which a penalty grows to -1; 0: no penalty.");
  b.field("overlong_factor", c.overlong_factor, "Multiplies that penalty.");
  b.field("loss", c.loss, "Policy loss of one token.", kLoss.all());
  b.field("clip_low", c.clip_low, "The ratio counts no lower than 1 - clip_low.");
  b.field("clip_high", c.clip_high, "The ratio counts no higher than 1 + clip_high.");
  b.field("dual_clip", c.dual_clip,
          "For loss = \"dual_clip\": a negative advantage counts at most this many times.");
  b.field("old_logprobs", c.old_logprobs,
          "Denominator of the ratio: those recorded while sampling, or a forward pass of the "
          "trainer before its "
          "first step. auto: recompute when a batch makes more than one step.",
          kOldLogprobs.all());
  b.field("mismatch", c.mismatch, "Weight against differences between sampling and training.",
          kMismatch.all());
  b.field("aggregation", c.aggregation, "How token losses become one number.", kAggregation.all());
  b.field("norm_length", c.norm_length,
          "Constant that seq_mean_token_sum_norm divides by; 0: rollout.max_new_tokens.");
  b.field("entropy_coef", c.entropy_coef, "Weight of the entropy bonus.");
  b.field("kl_in", c.kl_in, "Where the distance to the reference policy enters.", kKlIn.all());
  b.field("kl", c.kl, "Estimator of that distance.", kKl.all());
  b.field("kl_coef", c.kl_coef, "Weight of that distance; 0: no reference policy is loaded.");
  b.field("kl_bias_correction", c.kl_bias_correction, "Multiply the KL loss by the ratio.");
  b.field("kl_target", c.kl_target, "Steer kl_coef towards this distance; 0: kl_coef is fixed.");
  b.field("kl_horizon", c.kl_horizon, "Answers over which kl_coef adapts.");
  b.field("load_balance_coef", c.load_balance_coef, "Weight of the experts' load-balance loss.");
  b.field("load_balance_scope", c.load_balance_scope,
          "Over what expert loads are counted; global takes one more forward pass when the weight "
          "is not 0.",
          kBalanceScope.all());
  b.field("z_loss_coef", c.z_loss_coef, "Weight of the loss on large router logits.");
  b.field("router_bias_rate", c.router_bias_rate,
          "Step by which a router's selection bias moves towards balance after each optimizer "
          "step; 0: never.");
}

void apply_preset(AlgorithmConfig& c, const ConfigBinder& binder, int64_t max_response_tokens) {
  const auto fill = [&](const char* key, auto& field, auto value) {
    if (!binder.was_set("algorithm", key)) field = value;
  };
  if (c.preset == "dr_grpo") {
    fill("advantage", c.advantage, "dr_grpo");
    fill("aggregation", c.aggregation, "seq_mean_token_sum_norm");
  } else if (c.preset == "rloo") {
    fill("advantage", c.advantage, "rloo");
    fill("kl_in", c.kl_in, "reward");
    fill("kl_coef", c.kl_coef, 0.05);
  } else if (c.preset == "dapo") {
    fill("clip_high", c.clip_high, 0.28);
    fill("drop_zero_variance", c.drop_zero_variance, true);
  }
  if (c.kl_in == "reward") fill("kl", c.kl, "k1");
  if (c.norm_length == 0) c.norm_length = max_response_tokens;
}

AdvantageOptions advantage_options(const AlgorithmConfig& config) {
  AdvantageOptions options;
  options.method = config.advantage == "rloo"      ? AdvantageMethod::kRloo
                   : config.advantage == "dr_grpo" ? AdvantageMethod::kDrGrpo
                                                   : AdvantageMethod::kGrpo;
  options.eps = config.advantage_eps;
  options.drop_zero_variance = config.drop_zero_variance;
  return options;
}

PolicyLossOptions policy_loss_options(const AlgorithmConfig& config) {
  PolicyLossOptions options;
  options.loss = config.loss == "dual_clip" ? PolicyLossKind::kDualClip : PolicyLossKind::kPpo;
  options.clip_low = config.clip_low;
  options.clip_high = config.clip_high;
  options.dual_clip = config.dual_clip;
  options.kl = kl_kind(config.kl);
  options.kl_coef = config.kl_as_loss() ? config.kl_coef : 0.0;
  options.kl_bias_correction = config.kl_bias_correction;
  options.entropy_coef = config.entropy_coef;
  return options;
}

Aggregation aggregation(const AlgorithmConfig& config) {
  if (config.aggregation == "seq_mean_token_mean") return Aggregation::kSeqMeanTokenMean;
  if (config.aggregation == "seq_mean_token_sum") return Aggregation::kSeqMeanTokenSum;
  if (config.aggregation == "seq_mean_token_sum_norm") return Aggregation::kSeqMeanTokenSumNorm;
  return Aggregation::kTokenMean;
}

}  // namespace quadrille::learn
