// The loss of the policy, token by token. Formulas and clamps: docs/rl.md, sections 4, 6 and 8.
//
// Inputs hold trained tokens only: what is masked was never selected, so no 0 * NaN can arise.
// Everything is computed in fp64 (N is small beside the model), on the device of the inputs, by
// operations that autograd knows. `weights` carries mask and aggregation at once
// (learn/microbatch.h): a micro-batch's loss is its plain weighted sum, and the sums of all
// micro-batches add up to the loss of the mini-batch whatever the cut.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

namespace quadrille::learn {

enum class PolicyLossKind { kPpo, kDualClip };
// k3+: the value of k3 with the gradient of k2.
enum class KlKind { kK1, kK2, kK3, kK3Plus };

KlKind kl_kind(const std::string& name);

struct PolicyLossOptions {
  PolicyLossKind loss = PolicyLossKind::kPpo;
  double clip_low = 0.2;
  double clip_high = 0.2;
  double dual_clip = 3;
  KlKind kl = KlKind::kK3Plus;
  double kl_coef = 0;               // As a loss; 0: off.
  bool kl_bias_correction = false;  // Times the ratio, without its gradient.
  double entropy_coef = 0;
};

// All [N], one entry a trained token of the micro-batch.
struct PolicyLossInput {
  at::Tensor logprobs;      // Of the policy being trained; may carry a graph.
  at::Tensor old_logprobs;  // Denominator of the ratio.
  at::Tensor advantages;
  at::Tensor weights;       // Sum over the mini-batch of weight * loss is the loss.
  at::Tensor ref_logprobs;  // Undefined: no reference.
  at::Tensor entropy;       // Undefined: not asked for. May carry a graph.
};

// What metrics are made of: sums over tokens, to be added over micro-batches and divided once.
enum PolicySum : int64_t {
  kSumTokens,
  kSumPolicyLoss,  // weight * token loss.
  kSumKlLoss,      // weight * token KL, without its coefficient.
  kSumClipLow,
  kSumClipHigh,
  kSumDualClip,  // Tokens with a negative advantage and a ratio beyond dual_clip.
  kSumKlOld,     // log pi_old - log pi.
  kSumK3Old,     // r - 1 - log r.
  kSumKlRef,
  kSumEntropy,
  kPolicySums
};
enum PolicyMax : int64_t { kMaxRatio, kMaxInverseRatio, kPolicyMaxima };

struct PolicyLoss {
  at::Tensor loss;        // Scalar fp64: this micro-batch's part of the mini-batch's loss.
  at::Tensor token_loss;  // [N] what the aggregation sums, KL and entropy apart. No graph.
  at::Tensor token_kl;    // [N], undefined without a reference. No graph.
  at::Tensor log_ratio;   // [N] unclamped. No graph.
  at::Tensor sums;        // fp64 [kPolicySums].
  at::Tensor maxima;      // fp64 [kPolicyMaxima].
};

PolicyLoss policy_loss(const PolicyLossInput& input, const PolicyLossOptions& options);

// Supervised fine-tuning: the weighted sum of negative log-probabilities. Weights hold the
// denominator already.
at::Tensor sft_loss(const at::Tensor& logprobs, const at::Tensor& weights);

// The estimator token by token, from fp64 log-probabilities; differentiable in the first.
at::Tensor token_kl(KlKind kind, const at::Tensor& logprobs, const at::Tensor& ref_logprobs);

// Agreement of the sampler's log-probabilities with the trainer's: two [N] tensors, for metrics.
enum MismatchSum : int64_t {
  kSumMismatchTokens,
  kSumMismatchK3,     // rho - 1 - log rho.
  kSumMultProbError,  // exp |difference|.
  kSumAbsDiff,
  kSumRho,
  kSumRhoSquared,
  kMismatchSums
};
struct Mismatch {
  at::Tensor sums;     // fp64 [kMismatchSums].
  at::Tensor max_abs;  // fp64 scalar.
};
Mismatch mismatch(const at::Tensor& old_logprobs, const at::Tensor& behaviour_logprobs);

}  // namespace quadrille::learn
