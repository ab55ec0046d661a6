#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/tensor.h>

#include <cmath>

#include "tensor/check.h"
#include "tensor/ops.h"
#include "tensor/threads.h"

namespace quadrille::tensor {
namespace {

// docs: rl.md 14.8. The head is the identity, so hidden rows are logits.
struct Rows {
  at::Tensor hidden = at::tensor({2.F, 1.F, 0.F, -1.F, 0.F, 0.F, 0.F, 0.F, 1.F, 3.F, 1.F, 0.F})
                          .view({3, 4})
                          .set_requires_grad(true);
  at::Tensor targets = at::tensor({0, 2, 1}, at::kLong);
  ParamPtr head = weight({4, 4}, 1);
  Rows() { head->value = at::eye(4, at::kFloat); }
};

TEST(TokenLogprobs, KnownValues) {
  Rows r;
  const TokenLogprobs out = token_logprobs(r.hidden, r.head, r.targets, 1.0, true);
  expect_close(out.logprobs_N, at::tensor({-0.440190, -1.386294, -0.277978}), 5e-7, "log π");
  expect_close(out.entropy_N, at::tensor({0.947537, 1.386294, 0.801056}), 5e-7, "H");
  const TokenLogprobs warm = token_logprobs(r.hidden, r.head, r.targets, 0.7, false);
  expect_close(warm.logprobs_N, at::tensor({-0.270674, -1.386294, -0.121004}), 5e-7, "τ 0.7");
  EXPECT_FALSE(warm.entropy_N.defined());
}

TEST(TokenLogprobs, KnownGradients) {
  Rows sft;
  const TokenLogprobs out = token_logprobs(sft.hidden, sft.head, sft.targets, 1.0, false);
  const at::Tensor loss = -out.logprobs_N.narrow(0, 0, 2).mean();
  EXPECT_NEAR(loss.item<double>(), 0.913242, 1e-6);
  loss.backward();
  expect_close(sft.hidden.grad(),
               at::tensor({-0.178043, 0.118441, 0.043572, 0.016029, 0.125, 0.125, -0.375, 0.125,
                           0.0, 0.0, 0.0, 0.0})
                   .view({3, 4}),
               5e-7, "SFT");

  Rows entropy;
  const TokenLogprobs h = token_logprobs(entropy.hidden, entropy.head, entropy.targets, 1.0, true);
  const at::Tensor mean = h.entropy_N.narrow(0, 0, 2).mean();
  EXPECT_NEAR(mean.item<double>(), 1.166916, 1e-6);
  mean.backward();
  expect_close(entropy.hidden.grad()[0], at::tensor({-0.163344, 0.058350, 0.065038, 0.039955}),
               5e-7, "entropy");
}

struct Reference {
  at::Tensor logprobs, entropy;
};
Reference reference(const at::Tensor& hidden, const at::Tensor& head, const at::Tensor& targets,
                    double temperature) {
  const at::Tensor logp = at::log_softmax(at::linear(hidden, head) / temperature, -1);
  return {logp.gather(1, targets.unsqueeze(1)).squeeze(1), -(logp.exp() * logp).sum(1)};
}

at::Tensor random_targets(int64_t count, int64_t vocabulary, uint64_t seed) {
  Rng rng(seed);
  at::Tensor t = at::zeros({count}, at::kLong);
  for (int64_t i = 0; i < count; ++i) {
    t.mutable_data_ptr<int64_t>()[i] =
        static_cast<int64_t>(rng.below(static_cast<uint64_t>(vocabulary)));
  }
  return t;
}

void check(int64_t rows, int64_t hidden, int64_t vocabulary, double temperature, uint64_t seed,
           at::ScalarType dtype) {
  SCOPED_TRACE("seed " + std::to_string(seed) + " rows " + std::to_string(rows) + " vocabulary " +
               std::to_string(vocabulary));
  const ParamPtr head = weight({vocabulary, hidden}, seed, 0.4, dtype);
  at::Tensor x = normal({rows, hidden}, seed + 1).to(dtype).set_requires_grad(true);
  const at::Tensor targets = random_targets(rows, vocabulary, seed + 2);
  const at::Tensor da = normal({rows}, seed + 3);
  const at::Tensor db = normal({rows}, seed + 4);
  const at::Tensor x64 = leaf(x);
  const at::Tensor head64 = leaf(head->value);
  const Reference expected = reference(x64, head64, targets, temperature);
  (expected.logprobs * da + expected.entropy * db).sum().backward();

  const double tolerance = dtype == at::kFloat ? 4e-6 : 3e-2;
  const TokenLogprobs out = token_logprobs(x, head, targets, temperature, true);
  EXPECT_EQ(out.logprobs_N.scalar_type(), at::kFloat);
  expect_close(out.logprobs_N, expected.logprobs, tolerance, "log π");
  expect_close(out.entropy_N, expected.entropy, tolerance, "H");
  (out.logprobs_N * da + out.entropy_N * db).sum().backward();
  expect_close(x.grad(), x64.grad(), tolerance, "dx");
  expect_close(head->grad, head64.grad(), tolerance, "d head");

  // Without entropy, without a gradient for the input, and a second time into the same gradient.
  head->grad.zero_();
  const at::Tensor head_only = leaf(head->value);
  (reference(x64.detach(), head_only, targets, temperature).logprobs * da).sum().backward();
  for (int i = 0; i < 2; ++i) {
    (token_logprobs(x.detach(), head, targets, temperature, false).logprobs_N * da)
        .sum()
        .backward();
  }
  expect_close(head->grad, 2 * head_only.grad(), tolerance, "d head twice");
}

TEST(TokenLogprobs, ValuesAndGradients) {
  uint64_t seed = 10;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    check(1, 3, 2, 1.0, seed += 10, dtype);
    check(5, 16, 49, 0.7, seed += 10, dtype);
    check(57, 33, 31, 1.3, seed += 10, dtype);
    check(130, 64, 257, 1.0, seed += 10, dtype);
    check(0, 8, 10, 1.0, seed += 10, dtype);
  }
}

// More logits than are kept: backward makes them again.
TEST(TokenLogprobs, LargeVocabularyIsRecomputed) {
  check(70, 8, 70001, 0.9, 500, at::kFloat);
}

TEST(TokenLogprobs, RowsAndThreadsDoNotMatter) {
  const ParamPtr head = weight({49, 128}, 600, 0.3);
  const at::Tensor x = normal({300, 128}, 601);
  const at::Tensor targets = random_targets(300, 49, 602);
  const at::NoGradGuard no_grad;
  const int before = threads();
  set_threads(1);
  const TokenLogprobs one = token_logprobs(x, head, targets, 0.8, true);
  set_threads(2);
  const TokenLogprobs two = token_logprobs(x, head, targets, 0.8, true);
  set_threads(before);
  expect_same_bits(one.logprobs_N, two.logprobs_N, "threads");
  expect_same_bits(one.entropy_N, two.entropy_N, "threads");
  for (int64_t rows = 1; rows <= 40; ++rows) {
    const TokenLogprobs part =
        token_logprobs(x.narrow(0, 100, rows), head, targets.narrow(0, 100, rows), 0.8, true);
    expect_same_bits(part.logprobs_N, one.logprobs_N.narrow(0, 100, rows), std::to_string(rows));
  }
}

// The double reference itself against finite differences.
TEST(TokenLogprobs, ReferenceAgreesWithFiniteDifferences) {
  const at::Tensor head = normal({7, 4}, 700).to(at::kDouble);
  const at::Tensor targets = random_targets(3, 7, 701);
  const at::Tensor x = leaf(normal({3, 4}, 702));
  const auto loss = [&](const at::Tensor& at_x) {
    const Reference r = reference(at_x, head, targets, 0.7);
    return r.logprobs.sum() + 0.5 * r.entropy.sum();
  };
  loss(x).backward();
  constexpr double kStep = 1e-5;
  for (int64_t i = 0; i < x.numel(); ++i) {
    at::Tensor up = x.detach().clone();
    at::Tensor down = x.detach().clone();
    up.view({-1})[i] += kStep;
    down.view({-1})[i] -= kStep;
    const double slope = (loss(up) - loss(down)).item<double>() / (2 * kStep);
    EXPECT_NEAR(x.grad().view({-1})[i].item<double>(), slope, 1e-8) << i;
  }
}

TEST(TokenLogprobs, RefusesForeignTargets) {
  Rows r;
  EXPECT_ANY_THROW(token_logprobs(r.hidden, r.head, at::tensor({0, 4, 1}, at::kLong), 1.0, false));
  EXPECT_ANY_THROW(token_logprobs(r.hidden, r.head, r.targets, 0.0, false));
}

TEST(TokenLogprobs, SecondBackwardIsRefused) {
  Rows r;
  const at::Tensor sum = token_logprobs(r.hidden, r.head, r.targets, 1.0, false).logprobs_N.sum();
  sum.backward();
  EXPECT_ANY_THROW(sum.backward());
}

}  // namespace
}  // namespace quadrille::tensor
