// Worked example 14.8 of docs/rl.md: from logits to SFT loss, entropy and temperature, through the
// kernels the trainer uses. The head is the identity, so hidden states are logits.
#include <ATen/TensorOperators.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include "learn/policy_loss.h"
#include "tensor/ops.h"

namespace quadrille::learn {
namespace {

struct Rows {
  at::Tensor logits;
  tensor::TokenLogprobs out;
};

Rows rows(double temperature, bool want_entropy) {
  Rows r;
  r.logits = at::tensor({2., 1., 0., -1., 0., 0., 0., 0., 1., 3., 1., 0.}, at::kFloat).view({3, 4});
  r.logits.set_requires_grad(true);
  auto head = std::make_shared<tensor::Param>();
  head->name = "head";
  head->value = at::eye(4, at::kFloat);
  r.out = tensor::token_logprobs(r.logits, head, at::tensor({0, 2, 1}, at::kLong), temperature,
                                 want_entropy);
  return r;
}

void expect_near(const at::Tensor& got, const std::vector<double>& expected) {
  const at::Tensor flat = got.detach().contiguous().view(-1);
  ASSERT_EQ(flat.numel(), static_cast<int64_t>(expected.size()));
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(flat[static_cast<int64_t>(i)].item<double>(), expected[i], 2e-6) << i;
  }
}

TEST(TokenLoss, LogprobsAndEntropy) {
  const Rows r = rows(1, true);
  expect_near(r.out.logprobs_N, {-0.440190, -1.386294, -0.277978});
  expect_near(r.out.entropy_N, {0.947537, 1.386294, 0.801056});
}

TEST(TokenLoss, Temperature) {
  expect_near(rows(0.7, false).out.logprobs_N, {-0.270674, -1.386294, -0.121004});
}

TEST(TokenLoss, Sft) {
  const Rows r = rows(1, false);
  const at::Tensor loss = sft_loss(r.out.logprobs_N, at::tensor({0.5, 0.5, 0.}, at::kDouble));
  EXPECT_NEAR(loss.item<double>(), 0.913242, 1e-6);
  loss.backward();
  expect_near(r.logits.grad()[0], {-0.178043, 0.118441, 0.043572, 0.016029});
  expect_near(r.logits.grad()[1], {0.125, 0.125, -0.375, 0.125});
  expect_near(r.logits.grad()[2], {0, 0, 0, 0});
}

TEST(TokenLoss, EntropyBonus) {
  const Rows r = rows(1, true);
  PolicyLossInput input;
  input.logprobs = r.out.logprobs_N;
  input.old_logprobs = r.out.logprobs_N.detach();
  input.advantages = at::tensor({0., 0., 0.}, at::kDouble);
  input.weights = at::tensor({0.5, 0.5, 0.}, at::kDouble);
  input.entropy = r.out.entropy_N;
  PolicyLossOptions options;
  options.entropy_coef = 1;
  const PolicyLoss loss = policy_loss(input, options);
  EXPECT_NEAR(loss.loss.item<double>(), -1.166916, 1e-6);
  loss.loss.backward();
  // The bonus is taken off the loss: minus the gradient of the mean.
  expect_near(r.logits.grad()[0], {0.163344, -0.058350, -0.065038, -0.039955});
}

}  // namespace
}  // namespace quadrille::learn
