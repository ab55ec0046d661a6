#include "learn/policy_metrics.h"

#include <ATen/ops/maximum.h>
#include <ATen/ops/zeros.h>

#include <vector>

namespace quadrille::learn {
namespace {

at::Tensor zeros(at::IntArrayRef shape, at::Device device) {
  return at::zeros(shape, at::TensorOptions().dtype(at::kDouble).device(device));
}

std::vector<double> to_host(const at::Tensor& tensor) {
  const at::Tensor host = tensor.cpu();
  return {host.const_data_ptr<double>(), host.const_data_ptr<double>() + host.numel()};
}

}  // namespace

PolicyTotals::PolicyTotals(at::Device device)
    : sums(zeros({kPolicySums}, device)),
      maxima(zeros({kPolicyMaxima}, device)),
      mismatch_sums(zeros({kMismatchSums}, device)),
      mismatch_max(zeros({}, device)),
      first_log_ratio(zeros({}, device)) {}

void PolicyTotals::add(const PolicyLoss& loss) {
  sums.add_(loss.sums);
  maxima = at::maximum(maxima, loss.maxima);
}

void PolicyTotals::add(const Mismatch& m) {
  mismatch_sums.add_(m.sums);
  mismatch_max = at::maximum(mismatch_max, m.max_abs);
}

void PolicyTotals::add_first(const PolicyLoss& loss) {
  first_log_ratio = at::maximum(first_log_ratio, loss.log_ratio.abs().max());
}

void PolicyTotals::add_metrics(int64_t mini_batches, bool with_kl, Metrics& metrics) const {
  const std::vector<double> s = to_host(sums);
  const double tokens = s[kSumTokens];
  if (tokens == 0) return;
  const auto losses = static_cast<double>(mini_batches);
  metrics["policy/loss"] = s[kSumPolicyLoss] / losses;
  metrics["policy/clip_low_ratio"] = s[kSumClipLow] / tokens;
  metrics["policy/clip_high_ratio"] = s[kSumClipHigh] / tokens;
  metrics["policy/clip_ratio"] = (s[kSumClipLow] + s[kSumClipHigh]) / tokens;
  metrics["policy/dual_clip_ratio"] = s[kSumDualClip] / tokens;
  metrics["policy/kl_old"] = s[kSumKlOld] / tokens;
  metrics["policy/k3_old"] = s[kSumK3Old] / tokens;
  metrics["policy/entropy"] = s[kSumEntropy] / tokens;
  const std::vector<double> extremes = to_host(maxima);
  metrics["policy/ratio_max"] = extremes[kMaxRatio];
  metrics["policy/ratio_min"] = 1 / extremes[kMaxInverseRatio];
  metrics["policy/first_log_ratio_max"] = first_log_ratio.item<double>();
  if (with_kl) {
    metrics["policy/kl_ref"] = s[kSumKlRef] / tokens;
    metrics["policy/kl_loss"] = s[kSumKlLoss] / losses;
  }

  const std::vector<double> m = to_host(mismatch_sums);
  const double compared = m[kSumMismatchTokens];
  if (compared == 0) return;
  metrics["mismatch/k3"] = m[kSumMismatchK3] / compared;
  metrics["mismatch/mult_prob_error_ratio"] = m[kSumMultProbError] / compared;
  metrics["mismatch/logprob_abs_diff_mean"] = m[kSumAbsDiff] / compared;
  metrics["mismatch/logprob_abs_diff_max"] = mismatch_max.item<double>();
  metrics["mismatch/ess_ratio"] = m[kSumRho] * m[kSumRho] / (compared * m[kSumRhoSquared]);
}

}  // namespace quadrille::learn
