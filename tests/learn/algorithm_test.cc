#include "learn/algorithm.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace quadrille::learn {
namespace {

AlgorithmConfig resolved(const std::string& toml, int64_t max_response_tokens = 64) {
  AlgorithmConfig config;
  ConfigBinder binder;
  binder.section("algorithm", "What is learned.");
  bind(config, binder);
  binder.read_text("[algorithm]\n" + toml, "run.toml");
  apply_preset(config, binder, max_response_tokens);
  return config;
}

std::string refusal(const std::string& toml, int64_t max_response_tokens = 64) {
  try {
    resolved(toml, max_response_tokens).validate();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(Algorithm, EveryPresetIsValidAsItStands) {
  for (const char* preset : {"sft", "grpo", "dr_grpo", "rloo", "dapo"}) {
    EXPECT_EQ(refusal(std::string("preset = '") + preset + "'"), "") << preset;
  }
}

TEST(Algorithm, PresetsFillWhatNobodyWrote) {
  const AlgorithmConfig grpo = resolved("preset = 'grpo'");
  EXPECT_EQ(grpo.advantage, "grpo");
  EXPECT_EQ(grpo.aggregation, "token_mean");
  EXPECT_FALSE(grpo.needs_reference());

  const AlgorithmConfig dr = resolved("preset = 'dr_grpo'", 512);
  EXPECT_EQ(dr.advantage, "dr_grpo");
  EXPECT_EQ(dr.aggregation, "seq_mean_token_sum_norm");
  EXPECT_EQ(dr.norm_length, 512);

  const AlgorithmConfig rloo = resolved("preset = 'rloo'");
  EXPECT_EQ(rloo.advantage, "rloo");
  EXPECT_TRUE(rloo.kl_as_reward());
  EXPECT_EQ(rloo.kl, "k1");
  EXPECT_EQ(rloo.kl_coef, 0.05);

  const AlgorithmConfig dapo = resolved("preset = 'dapo'");
  EXPECT_EQ(dapo.clip_low, 0.2);
  EXPECT_EQ(dapo.clip_high, 0.28);
}

TEST(Algorithm, WrittenKeysWinOverThePreset) {
  const AlgorithmConfig c =
      resolved("preset = 'dapo'\nclip_high = 0.4\naggregation = 'seq_mean_token_mean'");
  EXPECT_EQ(c.clip_high, 0.4);
  EXPECT_EQ(c.aggregation, "seq_mean_token_mean");
  EXPECT_EQ(resolved("preset = 'dr_grpo'\nnorm_length = 10").norm_length, 10);
}

TEST(Algorithm, TheResolvedConfigurationReadsBackToItself) {
  AlgorithmConfig config = resolved("preset = 'rloo'\nkl_coef = 0.1");
  ConfigBinder out;
  out.section("algorithm", "");
  bind(config, out);
  const std::string text = out.to_toml();
  AlgorithmConfig again;
  ConfigBinder in;
  in.section("algorithm", "");
  bind(again, in);
  in.read_text(text, "resolved.toml");
  apply_preset(again, in, 999);
  ConfigBinder once_more;
  once_more.section("algorithm", "");
  bind(again, once_more);
  EXPECT_EQ(once_more.to_toml(), text);
}

TEST(Algorithm, KnownNamesThatAreNotBuiltSaySo) {
  EXPECT_EQ(refusal("loss = 'gspo'"),
            "algorithm.loss = \"gspo\" is not available yet; this version has ppo, dual_clip");
  EXPECT_EQ(
      refusal("advantage = 'gae'"),
      "algorithm.advantage = \"gae\" is not available yet; this version has grpo, dr_grpo, rloo");
  EXPECT_EQ(refusal("preset = 'ppo'"),
            "algorithm.preset = \"ppo\" is not available yet; this version has sft, grpo, dr_grpo, "
            "rloo, dapo");
  EXPECT_EQ(refusal("mismatch = 'tis'"),
            "algorithm.mismatch = \"tis\" is not available yet; this version has none");
}

TEST(Algorithm, ContradictionsNameTheirNumbers) {
  EXPECT_EQ(refusal("prompts_per_step = 10\nmini_batches = 4"),
            "algorithm.prompts_per_step = 10 is not a multiple of algorithm.mini_batches = 4");
  EXPECT_EQ(refusal("group_size = 1"),
            "algorithm.group_size = 1: advantage \"grpo\" compares the answers of a group, so it "
            "needs at least 2");
  EXPECT_EQ(refusal("loss = 'dual_clip'\ndual_clip = 1.1"),
            "algorithm.dual_clip = 1.1 must be above 1 + clip_high = 1.2");
  EXPECT_NE(refusal("kl_coef = 0.1\nkl = 'k1'").find("gradient of mean zero"), std::string::npos);
  EXPECT_EQ(refusal("kl = 'k1'"), "");  // Without a weight the estimator is only a metric's.
  EXPECT_NE(refusal("kl_coef = 0.1\nkl_in = 'reward'\nkl = 'k3+'").find("a reward has none"),
            std::string::npos);
  EXPECT_EQ(refusal("kl_coef = 0.1\nkl_in = 'reward'"), "");
  EXPECT_NE(refusal("preset = 'dr_grpo'", 0).find("algorithm.norm_length = 0"), std::string::npos);
  EXPECT_EQ(
      refusal("clip_low = 1.5"),
      "algorithm.clip_low = 1.5 must lie between 0 and 1: the ratio is kept above 1 - clip_low");
  EXPECT_NE(refusal("overlong_filter = true\noverlong_buffer = 4").find("not both"),
            std::string::npos);
  EXPECT_NE(refusal("kl_target = 0.1").find("kl_target = 0.1 steers kl_coef"), std::string::npos);
  EXPECT_NE(refusal("preset = 'sft'\naggregation = 'seq_mean_token_sum'").find("SFT is a mean"),
            std::string::npos);
}

TEST(Algorithm, OldLogprobsAreRecomputedWhenABatchMakesSeveralSteps) {
  EXPECT_FALSE(resolved("").recomputes_old_logprobs());
  EXPECT_TRUE(resolved("epochs = 2").recomputes_old_logprobs());
  EXPECT_TRUE(resolved("mini_batches = 4").recomputes_old_logprobs());
  EXPECT_FALSE(resolved("epochs = 2\nold_logprobs = 'behaviour'").recomputes_old_logprobs());
  EXPECT_TRUE(resolved("old_logprobs = 'recompute'").recomputes_old_logprobs());
  EXPECT_FALSE(resolved("preset = 'sft'\nepochs = 3").recomputes_old_logprobs());
}

}  // namespace
}  // namespace quadrille::learn
