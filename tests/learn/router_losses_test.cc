// Worked example 14.10 of docs/rl.md.
#include "learn/router_losses.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

namespace quadrille::learn {
namespace {

at::Tensor logits() {
  at::Tensor z =
      at::tensor({2., 1., 0., 0., 2., 0., 1., 0., 1., 2., 0., 0., 2., 1., 0., 1.}, at::kDouble)
          .view({4, 4});
  z.set_requires_grad(true);
  return z;
}
const std::vector<int64_t> kCounts = {4, 3, 1, 0};
at::Tensor counts() {
  return at::tensor(kCounts, at::kLong);
}

void expect_row(const at::Tensor& row, const std::vector<double>& expected) {
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(row[static_cast<int64_t>(i)].item<double>(), expected[i], 1e-6) << i;
  }
}

TEST(LoadBalance, WorkedExample) {
  const at::Tensor z = logits();
  const at::Tensor loss = load_balance_loss(z, model::RouterKind::kSoftmax, counts(), 2, 4, 4);
  EXPECT_NEAR(loss.item<double>(), 1.465287, 1e-6);
  loss.backward();
  expect_row(z.grad()[0], {0.061234, -0.005538, -0.022686, -0.033010});
}

TEST(LoadBalance, MicroBatchesAddUp) {
  const at::Tensor z = logits();
  at::Tensor whole = load_balance_loss(z, model::RouterKind::kSoftmax, counts(), 2, 4, 4);
  at::Tensor parts = at::zeros({}, at::kDouble);
  for (int64_t t = 0; t < 4; ++t) {
    parts = parts +
            load_balance_loss(z.slice(0, t, t + 1), model::RouterKind::kSoftmax, counts(), 2, 4, 4);
  }
  EXPECT_NEAR(whole.item<double>(), parts.item<double>(), 1e-12);
}

TEST(LoadBalance, ABalancedRouterReadsOne) {
  const at::Tensor z = at::zeros({8, 4});
  const at::Tensor even = at::tensor({4, 4, 4, 4}, at::kLong);
  for (const auto kind : {model::RouterKind::kSoftmax, model::RouterKind::kSigmoidGrouped}) {
    EXPECT_NEAR(load_balance_loss(z, kind, even, 2, 8, 8).item<double>(), 1, 1e-6);
  }
}

TEST(ZLoss, WorkedExample) {
  const at::Tensor z = logits();
  const at::Tensor loss = router_z_loss(z, 4);
  EXPECT_NEAR(loss.item<double>(), 6.388979, 1e-6);
  loss.backward();
  expect_row(z.grad()[0], {0.760981, 0.279949, 0.102988, 0.102988});
}

TEST(MaxViolation, IsZeroWhenBalancedAndOneInTheExample) {
  EXPECT_NEAR(max_violation(counts()), 1, 1e-12);
  EXPECT_NEAR(max_violation(at::tensor({2, 2, 2, 2}, at::kLong)), 0, 1e-12);
  EXPECT_EQ(max_violation(at::tensor({0, 0}, at::kLong)), 0);
}

TEST(SelectionBias, MovesTowardsBalance) {
  at::Tensor bias = at::tensor({0., 0.01, -0.02, 0.03}, at::kFloat);
  update_selection_bias(bias, counts(), 1e-3);
  expect_row(bias, {-0.001, 0.009, -0.019, 0.031});
}

}  // namespace
}  // namespace quadrille::learn
