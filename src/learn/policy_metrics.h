// Sums of the policy loss over the micro-batches of a rollout batch, and the metrics made of them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "base/metrics.h"
#include "learn/policy_loss.h"

namespace quadrille::learn {

// Numerators are gathered on the device and divided once, at the end: never a mean of means.
struct PolicyTotals {
  explicit PolicyTotals(at::Device device);

  void add(const PolicyLoss& loss);
  void add(const Mismatch& m);
  // Of the first optimizer step, whose weights are those that the batch began with.
  void add_first(const PolicyLoss& loss);

  // policy/* and mismatch/*. `with_kl`: a reference policy is in the loss.
  void add_metrics(int64_t mini_batches, bool with_kl, Metrics& metrics) const;

  at::Tensor sums;             // [kPolicySums]
  at::Tensor maxima;           // [kPolicyMaxima]
  at::Tensor mismatch_sums;    // [kMismatchSums]
  at::Tensor mismatch_max;     // Scalar.
  at::Tensor first_log_ratio;  // Scalar: the largest.
};

}  // namespace quadrille::learn
