// Losses and measures that keep a router's experts in use. Formulas: docs/rl.md, section 11.
//
// Their denominator is the number of input tokens of the mini-batch, prompt tokens included: a
// router works on those too. Each MoE layer has its own loss with the full coefficient, as in
// Megatron; what is reported is the mean over layers, without the coefficient, so that a balanced
// router reads 1.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "model/config.h"

namespace quadrille::learn {

// A micro-batch's part of E * sum_e f_e * P_e for one layer. `counts_E` are assignments (any
// integer or float type) over whatever `counted_tokens` the scope takes; gradient flows through the
// probabilities alone.
at::Tensor load_balance_loss(const at::Tensor& logits_TE, model::RouterKind router,
                             const at::Tensor& counts_E, int64_t top_k, double counted_tokens,
                             double all_tokens);

// A micro-batch's part of mean_t (logsumexp_e z_te)^2 for one layer.
at::Tensor router_z_loss(const at::Tensor& logits_TE, double all_tokens);

// max_e c_e * E / sum(c) - 1: 0 when balanced, E/K - 1 at worst. 0 for no assignments.
double max_violation(const at::Tensor& counts_E);

// One step of balancing without a loss: an expert below the mean load is chosen more easily. In
// place, fp32.
void update_selection_bias(at::Tensor& bias_E, const at::Tensor& counts_E, double rate);

}  // namespace quadrille::learn
