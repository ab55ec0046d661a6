#include "learn/policy_loss.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/max.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <vector>

#include "base/error.h"

namespace quadrille::learn {
namespace {

constexpr double kMaxLogRatio =
    20;  // exp(20) is far beyond any clip; a clamp has no gradient beyond it.
constexpr double kMaxK3 = 10;

at::Tensor ratio_of(const at::Tensor& log_ratio) {
  return log_ratio.clamp(-kMaxLogRatio, kMaxLogRatio).exp();
}

}  // namespace

KlKind kl_kind(const std::string& name) {
  if (name == "k1") return KlKind::kK1;
  if (name == "k2") return KlKind::kK2;
  if (name == "k3") return KlKind::kK3;
  QD_CHECK(name == "k3+", "kl {}", name);
  return KlKind::kK3Plus;
}

at::Tensor token_kl(KlKind kind, const at::Tensor& logprobs, const at::Tensor& ref_logprobs) {
  const at::Tensor d = logprobs - ref_logprobs;
  if (kind == KlKind::kK1) return d;
  const at::Tensor k2 = d * d * 0.5;
  if (kind == KlKind::kK2) return k2;
  const at::Tensor minus_d = (-d).clamp(-kMaxLogRatio, kMaxLogRatio);
  const at::Tensor k3 = (minus_d.exp() - minus_d - 1).clamp(-kMaxK3, kMaxK3);
  if (kind == KlKind::kK3) return k3;
  return k2 - k2.detach() + k3.detach();
}

PolicyLoss policy_loss(const PolicyLossInput& input, const PolicyLossOptions& options) {
  const int64_t count = input.logprobs.numel();
  QD_CHECK(input.old_logprobs.numel() == count && input.advantages.numel() == count &&
               input.weights.numel() == count,
           "{} log-probs, {} old, {} advantages, {} weights", count, input.old_logprobs.numel(),
           input.advantages.numel(), input.weights.numel());
  QD_CHECK(options.kl_coef == 0 || input.ref_logprobs.defined());
  QD_CHECK(options.entropy_coef == 0 || input.entropy.defined());

  const at::Tensor logprobs = input.logprobs.to(at::kDouble);
  const at::Tensor old_logprobs = input.old_logprobs.to(at::kDouble);
  const at::Tensor advantages = input.advantages.to(at::kDouble);
  const at::Tensor weights = input.weights.to(at::kDouble);

  const at::Tensor log_ratio = logprobs - old_logprobs;
  const at::Tensor ratio = ratio_of(log_ratio);
  const at::Tensor up = advantages > 0;
  const at::Tensor down = advantages < 0;
  const at::Tensor clip_high = up & (ratio > 1 + options.clip_high);
  const at::Tensor clip_low = down & (ratio < 1 - options.clip_low);
  const at::Tensor beyond_dual = down & (ratio > options.dual_clip);

  // max(-r A, -clip(r) A), written by cases: at a tie max() would share the gradient between its
  // sides.
  at::Tensor bounded = at::where(clip_high, at::ones_like(ratio) * (1 + options.clip_high), ratio);
  bounded = at::where(clip_low, at::ones_like(ratio) * (1 - options.clip_low), bounded);
  if (options.loss == PolicyLossKind::kDualClip) {
    bounded = at::where(beyond_dual, at::ones_like(ratio) * options.dual_clip, bounded);
  }
  const at::Tensor token_loss = -(bounded * advantages);

  at::Tensor loss = (weights * token_loss).sum();
  PolicyLoss out;
  out.token_loss = token_loss.detach();
  out.log_ratio = log_ratio.detach();
  const at::Tensor zero = at::zeros({}, weights.options());
  std::vector<at::Tensor> sums(kPolicySums, zero);
  sums[kSumPolicyLoss] = loss.detach();

  if (input.ref_logprobs.defined()) {
    at::Tensor kl = token_kl(options.kl, logprobs, input.ref_logprobs.to(at::kDouble));
    sums[kSumKlRef] = kl.detach().sum();
    if (options.kl_bias_correction) kl = kl * ratio.detach();
    out.token_kl = kl.detach();
    const at::Tensor weighted = (weights * kl).sum();
    sums[kSumKlLoss] = weighted.detach();
    if (options.kl_coef != 0) loss = loss + weighted * options.kl_coef;
  }
  if (input.entropy.defined()) {
    const at::Tensor entropy = input.entropy.to(at::kDouble);
    sums[kSumEntropy] = entropy.detach().sum();
    if (options.entropy_coef != 0) loss = loss - (weights * entropy).sum() * options.entropy_coef;
  }
  out.loss = loss;

  const c10::NoGradGuard no_grad;
  sums[kSumTokens] = zero + static_cast<double>(count);
  sums[kSumClipLow] = clip_low.sum().to(at::kDouble);
  sums[kSumClipHigh] = clip_high.sum().to(at::kDouble);
  sums[kSumDualClip] = beyond_dual.sum().to(at::kDouble);
  sums[kSumKlOld] = -out.log_ratio.sum();
  sums[kSumK3Old] = (ratio.detach() - 1 - out.log_ratio).sum();
  out.sums = at::stack(sums);
  const at::Tensor largest = count > 0 ? out.log_ratio.max() : zero;
  const at::Tensor smallest = count > 0 ? out.log_ratio.min() : zero;
  out.maxima = at::stack({largest, -smallest}).exp();
  return out;
}

at::Tensor sft_loss(const at::Tensor& logprobs, const at::Tensor& weights) {
  return -(weights * logprobs.to(at::kDouble)).sum();
}

Mismatch mismatch(const at::Tensor& old_logprobs, const at::Tensor& behaviour_logprobs) {
  const c10::NoGradGuard no_grad;
  const at::Tensor log_rho = old_logprobs.to(at::kDouble) - behaviour_logprobs.to(at::kDouble);
  const at::Tensor rho = ratio_of(log_rho);
  const at::Tensor absolute = log_rho.abs();
  const at::Tensor zero = at::zeros({}, log_rho.options());
  Mismatch out;
  out.sums = at::stack({zero + static_cast<double>(log_rho.numel()), (rho - 1 - log_rho).sum(),
                        ratio_of(absolute).sum(), absolute.sum(), rho.sum(), (rho * rho).sum()});
  out.max_abs = log_rho.numel() > 0 ? absolute.max() : zero;
  return out;
}

}  // namespace quadrille::learn
