#include "learn/router_losses.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/sign.h>
#include <ATen/ops/softmax.h>
#include <c10/core/GradMode.h>

namespace quadrille::learn {

at::Tensor load_balance_loss(const at::Tensor& logits_TE, model::RouterKind router,
                             const at::Tensor& counts_E, int64_t top_k, double counted_tokens,
                             double all_tokens) {
  at::Tensor probs_TE;
  if (router == model::RouterKind::kSoftmax) {
    probs_TE = at::softmax(logits_TE, /*dim=*/-1);
  } else {
    const at::Tensor scores_TE = at::sigmoid(logits_TE);
    probs_TE = scores_TE / scores_TE.sum(/*dim=*/-1, /*keepdim=*/true);
  }
  const at::Tensor share_E =
      counts_E.to(at::kDouble) / (counted_tokens * static_cast<double>(top_k));
  const at::Tensor mean_prob_E = probs_TE.to(at::kDouble).sum(/*dim=*/0) / all_tokens;
  return (share_E * mean_prob_E).sum() * static_cast<double>(logits_TE.size(-1));
}

at::Tensor router_z_loss(const at::Tensor& logits_TE, double all_tokens) {
  const at::Tensor lse_T = at::logsumexp(logits_TE.to(at::kDouble), /*dim=*/-1);
  return (lse_T * lse_T).sum() / all_tokens;
}

double max_violation(const at::Tensor& counts_E) {
  const at::Tensor counts = counts_E.to(at::kDouble);
  const double sum = counts.sum().item<double>();
  if (sum == 0) return 0;
  return counts.max().item<double>() * static_cast<double>(counts.numel()) / sum - 1;
}

void update_selection_bias(at::Tensor& bias_E, const at::Tensor& counts_E, double rate) {
  const c10::NoGradGuard no_grad;
  const at::Tensor counts = counts_E.to(at::kDouble);
  bias_E.add_(at::sign(counts.mean() - counts).to(bias_E.scalar_type()), rate);
}

}  // namespace quadrille::learn
