// Worked examples of docs/rl.md: 14.4 (KL), 14.5 (policy losses and aggregations), the metrics
// of 14.6.
#include "learn/policy_loss.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <cmath>

#include "learn/microbatch.h"

namespace quadrille::learn {
namespace {

using Values = std::vector<double>;

at::Tensor vec(const Values& values) {
  return at::tensor(values, at::kDouble);
}

Values host(const at::Tensor& tensor) {
  const at::Tensor t = tensor.detach().to(at::kDouble).contiguous();
  return {t.const_data_ptr<double>(), t.const_data_ptr<double>() + t.numel()};
}

void expect_near(const at::Tensor& got, const Values& expected, double tolerance = 1e-6) {
  const Values values = host(got);
  ASSERT_EQ(values.size(), expected.size());
  for (size_t i = 0; i < values.size(); ++i)
    EXPECT_NEAR(values[i], expected[i], tolerance) << "token " << i;
}

// Three sequences of 4, 2 and 3 tokens.
const int64_t kLengths[] = {4, 2, 3};
const Values kOld = {0.4, 0.5, 0.5, 0.2, 0.1, 0.5, 0.4, 0.5, 0.5};
const Values kNew = {0.6, 0.25, 0.55, 0.2, 0.4, 0.45, 0.5, 0.35, 0.55};
const Values kBehaviour = {0.5, 0.5, 0.5, 0.25, 0.05, 0.5, 0.4, 0.4, 0.5};

struct Outcome {
  PolicyLoss loss;
  at::Tensor gradient;
};

Outcome run(const PolicyLossOptions& options, Aggregation aggregation,
            at::ScalarType dtype = at::kDouble) {
  Counts counts;
  counts.trained_tokens = 9;
  counts.sequences = 3;
  Values weights;
  Values advantages;
  const double advantage[] = {1, -1, 0.5};
  for (int i = 0; i < 3; ++i) {
    for (int64_t t = 0; t < kLengths[i]; ++t) {
      weights.push_back(token_weight(aggregation, kLengths[i], counts, /*norm_length=*/4));
      advantages.push_back(advantage[i]);
    }
  }
  at::Tensor logprobs = vec(kNew).log().to(dtype);
  logprobs.set_requires_grad(true);
  Outcome out;
  out.loss = policy_loss(
      {logprobs, vec(kOld).log().to(dtype), vec(advantages), vec(weights), {}, {}}, options);
  out.loss.loss.backward();
  out.gradient = logprobs.grad();
  return out;
}

TEST(PolicyLoss, PpoWithATokenMean) {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat}) {
    const Outcome r = run({}, Aggregation::kTokenMean, dtype);
    EXPECT_NEAR(r.loss.loss.item<double>(), -0.044444, 2e-6);
    expect_near(r.loss.token_loss, {-1.2, -0.5, -1.1, -1, 4, 0.9, -0.6, -0.35, -0.55}, 2e-6);
    expect_near(r.gradient,
                {0, -0.055556, -0.122222, -0.111111, 0.444444, 0.1, 0, -0.038889, -0.061111}, 2e-6);
  }
}

TEST(PolicyLoss, PpoMetrics) {
  const Outcome r = run({}, Aggregation::kTokenMean);
  const Values sums = host(r.loss.sums);
  EXPECT_EQ(sums[kSumTokens], 9);
  EXPECT_NEAR(sums[kSumClipHigh] / 9, 0.222222, 1e-6);
  EXPECT_EQ(sums[kSumClipLow], 0);
  EXPECT_NEAR(sums[kSumDualClip] / 9, 0.111111, 1e-6);
  EXPECT_NEAR(sums[kSumKlOld] / 9, -0.116705, 1e-6);
  EXPECT_NEAR(sums[kSumK3Old] / 9, 0.222184, 1e-6);
  EXPECT_NEAR(sums[kSumPolicyLoss], -0.044444, 1e-6);
  const Values maxima = host(r.loss.maxima);
  EXPECT_NEAR(maxima[kMaxRatio], 4, 1e-9);
  EXPECT_NEAR(maxima[kMaxInverseRatio], 2, 1e-9);
}

TEST(PolicyLoss, ClipLowCountsNegativeAdvantagesOnly) {
  PolicyLossInput input;
  input.logprobs = vec({0.1, 0.1}).log();
  input.old_logprobs = vec({0.5, 0.5}).log();
  input.advantages = vec({-1, 1});
  input.weights = vec({0.5, 0.5});
  const PolicyLoss loss = policy_loss(input, {});
  EXPECT_EQ(host(loss.sums)[kSumClipLow], 1);
  expect_near(loss.token_loss, {0.8, -0.2});
}

TEST(PolicyLoss, SeqMeanTokenMean) {
  const Outcome r = run({}, Aggregation::kSeqMeanTokenMean);
  EXPECT_NEAR(r.loss.loss.item<double>(), 0.333333, 1e-6);
  expect_near(r.gradient,
              {0, -0.041667, -0.091667, -0.083333, 0.666667, 0.15, 0, -0.038889, -0.061111});
}

TEST(PolicyLoss, SeqMeanTokenSum) {
  const Outcome r = run({}, Aggregation::kSeqMeanTokenSum);
  EXPECT_NEAR(r.loss.loss.item<double>(), -0.133333, 1e-6);
  expect_near(r.gradient,
              {0, -0.166667, -0.366667, -0.333333, 1.333333, 0.3, 0, -0.116667, -0.183333});
}

TEST(PolicyLoss, SeqMeanTokenSumNorm) {
  const Outcome r = run({}, Aggregation::kSeqMeanTokenSumNorm);
  EXPECT_NEAR(r.loss.loss.item<double>(), -0.033333, 1e-6);
  expect_near(r.gradient * 4,
              {0, -0.166667, -0.366667, -0.333333, 1.333333, 0.3, 0, -0.116667, -0.183333}, 4e-6);
}

TEST(PolicyLoss, DualClip) {
  PolicyLossOptions options;
  options.loss = PolicyLossKind::kDualClip;
  const Outcome r = run(options, Aggregation::kTokenMean);
  EXPECT_NEAR(r.loss.loss.item<double>(), -0.155556, 1e-6);
  expect_near(r.loss.token_loss, {-1.2, -0.5, -1.1, -1, 3, 0.9, -0.6, -0.35, -0.55});
  expect_near(r.gradient, {0, -0.055556, -0.122222, -0.111111, 0, 0.1, 0, -0.038889, -0.061111});
}

TEST(PolicyLoss, ClipHigher) {
  PolicyLossOptions options;
  options.clip_high = 0.28;
  const Outcome r = run(options, Aggregation::kTokenMean);
  EXPECT_NEAR(r.loss.loss.item<double>(), -0.056111, 1e-6);
  expect_near(r.loss.token_loss, {-1.28, -0.5, -1.1, -1, 4, 0.9, -0.625, -0.35, -0.55});
  expect_near(r.gradient,
              {0, -0.055556, -0.122222, -0.111111, 0.444444, 0.1, -0.069444, -0.038889, -0.061111});
}

TEST(PolicyLoss, OnPolicyTheRatioIsExactlyOneAndNothingClips) {
  PolicyLossInput input;
  input.logprobs = vec(kNew).log().to(at::kFloat);
  input.old_logprobs = input.logprobs.clone();
  input.advantages = vec({1, -1, 1, -1, 1, -1, 1, -1, 1});
  input.weights = at::ones_like(input.advantages) / 9;
  const PolicyLoss loss = policy_loss(input, {});
  const Values sums = host(loss.sums);
  EXPECT_EQ(sums[kSumClipLow] + sums[kSumClipHigh] + sums[kSumK3Old] + sums[kSumKlOld], 0);
  EXPECT_EQ(host(loss.maxima), (Values{1, 1}));
}

TEST(PolicyLoss, TheLogRatioIsClampedWithoutGradientBeyond) {
  at::Tensor logprobs = vec({-1, -40, -1});
  logprobs.set_requires_grad(true);
  PolicyLossInput input;
  input.logprobs = logprobs;
  input.old_logprobs = vec({-30, -1, -1});
  input.advantages = vec({-1, 1, 1});
  input.weights = vec({1, 1, 1});
  const PolicyLoss loss = policy_loss(input, {});
  loss.loss.backward();
  EXPECT_NEAR(host(loss.token_loss)[0], std::exp(20.0), 1);
  expect_near(logprobs.grad(), {0, 0, -1});
}

// ---- KL to the reference ----

const Values kPi = {0.6, 0.25, 0.55, 0.2};
const Values kRef = {0.4, 0.4, 0.5, 0.25};

struct Kl {
  at::Tensor value;
  at::Tensor gradient;
};
Kl kl(KlKind kind, at::Tensor logprobs, const at::Tensor& ref) {
  logprobs.set_requires_grad(true);
  const at::Tensor value = token_kl(kind, logprobs, ref);
  value.sum().backward();
  return {value.detach(), logprobs.grad()};
}
Kl kl(KlKind kind) {
  return kl(kind, vec(kPi).log(), vec(kRef).log());
}

TEST(TokenKl, K1) {
  expect_near(kl(KlKind::kK1).value, {0.405465, -0.470004, 0.095310, -0.223144});
}

TEST(TokenKl, K2) {
  const Kl k = kl(KlKind::kK2);
  expect_near(k.value, {0.082201, 0.110452, 0.004542, 0.024897});
  expect_near(k.gradient, {0.405465, -0.470004, 0.095310, -0.223144});
}

TEST(TokenKl, K3) {
  const Kl k = kl(KlKind::kK3);
  expect_near(k.value, {0.072132, 0.129996, 0.004401, 0.026856});
  expect_near(k.gradient, {0.333333, -0.6, 0.090909, -0.25});
}

TEST(TokenKl, K3PlusHasTheValueOfK3AndTheGradientOfK2) {
  const Kl k = kl(KlKind::kK3Plus);
  expect_near(k.value, {0.072132, 0.129996, 0.004401, 0.026856});
  expect_near(k.gradient, {0.405465, -0.470004, 0.095310, -0.223144});
}

TEST(TokenKl, K3StopsAtItsClamps) {
  const Kl k = kl(KlKind::kK3, vec({-30, -3, -1}), vec({-1, -1, -25}));
  expect_near(k.value, {10, std::exp(2) - 3, 10});
  expect_near(k.gradient, {0, 1 - std::exp(2), 0});
}

PolicyLossInput kl_input(at::Tensor& logprobs) {
  logprobs = vec(kPi).log();
  logprobs.set_requires_grad(true);
  PolicyLossInput input;
  input.logprobs = logprobs;
  input.old_logprobs = (vec(kPi) * 0.8).log();
  input.advantages = at::zeros_like(logprobs).detach();
  input.weights = at::ones_like(input.advantages) / 4;
  input.ref_logprobs = vec(kRef).log();
  return input;
}

TEST(PolicyLoss, KlAsALossIsWeightedLikeTheTokens) {
  at::Tensor logprobs;
  const PolicyLossInput input = kl_input(logprobs);
  PolicyLossOptions options;
  options.kl = KlKind::kK2;
  options.kl_coef = 0.1;
  const PolicyLoss loss = policy_loss(input, options);
  EXPECT_NEAR(loss.loss.item<double>(), 0.1 * (0.082201 + 0.110452 + 0.004542 + 0.024897) / 4,
              1e-7);
  EXPECT_NEAR(host(loss.sums)[kSumKlRef], 0.222092, 1e-6);
  EXPECT_NEAR(host(loss.sums)[kSumKlLoss], 0.222092 / 4, 1e-6);
  loss.loss.backward();
  expect_near(logprobs.grad() * 40, {0.405465, -0.470004, 0.095310, -0.223144});
}

TEST(PolicyLoss, BiasCorrectionMultipliesTheKlByTheRatioWithoutItsGradient) {
  at::Tensor logprobs;
  const PolicyLossInput input = kl_input(logprobs);
  PolicyLossOptions options;
  options.kl = KlKind::kK2;
  options.kl_coef = 0.1;
  options.kl_bias_correction = true;
  const PolicyLoss loss = policy_loss(input, options);
  EXPECT_NEAR(host(loss.sums)[kSumKlRef], 0.222092, 1e-6);  // The metric stays the plain estimate.
  loss.loss.backward();
  expect_near(logprobs.grad() * 40 / 1.25, {0.405465, -0.470004, 0.095310, -0.223144});
}

TEST(PolicyLoss, AReferenceWithoutACoefficientIsOnlyMeasured) {
  at::Tensor logprobs;
  const PolicyLoss loss = policy_loss(kl_input(logprobs), {});
  EXPECT_EQ(loss.loss.item<double>(), 0);
  EXPECT_NEAR(host(loss.sums)[kSumKlRef], 0.072132 + 0.129996 + 0.004401 + 0.026856, 2e-6);
}

// ---- Agreement with the sampler ----

TEST(Mismatch, MeasuresWhatTheExampleSays) {
  const Mismatch m = mismatch(vec(kOld).log(), vec(kBehaviour).log());
  const Values sums = host(m.sums);
  EXPECT_EQ(sums[kSumMismatchTokens], 9);
  EXPECT_NEAR(sums[kSumMismatchK3] / 9, 0.042222, 1e-6);
  EXPECT_NEAR(sums[kSumMultProbError] / 9, 1.194444, 1e-6);
  EXPECT_NEAR(sums[kSumRho] * sums[kSumRho] / (9 * sums[kSumRhoSquared]), 0.910304, 1e-6);
  EXPECT_NEAR(m.max_abs.item<double>(), std::log(2.0), 1e-9);
}

}  // namespace
}  // namespace quadrille::learn
