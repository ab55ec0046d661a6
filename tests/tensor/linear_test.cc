#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/silu.h>

#include "tensor/check.h"
#include "tensor/ops.h"
#include "tensor/threads.h"

namespace quadrille::tensor {
namespace {

double epsilon(at::ScalarType dtype) {
  return dtype == at::kFloat ? 2e-6 : 1.2e-2;
}

TEST(Linear, ValuesAndGradients) {
  uint64_t seed = 1;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const int64_t rows : {1, 3, 13, 33, 200}) {
      for (const bool with_bias : {false, true}) {
        const int64_t in = 31 + 2 * rows % 60;
        const int64_t out = 7 + 13 * (rows % 5);
        seed += 10;
        SCOPED_TRACE("seed " + std::to_string(seed) + " rows " + std::to_string(rows));
        const ParamPtr w = weight({out, in}, seed, 0.3, dtype);
        const ParamPtr b = with_bias ? weight({out}, seed + 1, 1, dtype) : nullptr;
        at::Tensor x = normal({rows, in}, seed + 2).to(dtype).set_requires_grad(true);
        const at::Tensor dy = normal({rows, out}, seed + 3).to(dtype);

        const at::Tensor x64 = leaf(x);
        const at::Tensor w64 = leaf(w->value);
        const at::Tensor b64 = with_bias ? leaf(b->value) : at::Tensor();
        const at::Tensor y64 = at::linear(x64, w64, b64);
        y64.backward(dy.to(at::kDouble));

        const at::Tensor y = linear(x, w, b);
        EXPECT_EQ(y.scalar_type(), dtype);
        y.backward(dy);
        expect_close(y, y64, epsilon(dtype), "y");
        expect_close(x.grad(), x64.grad(), epsilon(dtype), "dx");
        expect_close(w->grad, w64.grad(), 1e-5, "dW");
        if (with_bias) expect_close(b->grad, b64.grad(), 1e-5, "db");

        // A second backward adds.
        linear(x.detach(), w, b).backward(dy);
        expect_close(w->grad, 2 * w64.grad(), 1e-5, "dW twice");
      }
    }
  }
}

TEST(Linear, LeadingDimensionsAndEmptyInput) {
  const ParamPtr w = weight({5, 6}, 1);
  EXPECT_EQ(linear(normal({2, 3, 6}, 2), w).sizes(), at::IntArrayRef({2, 3, 5}));
  EXPECT_EQ(linear(normal({0, 6}, 2), w).sizes(), at::IntArrayRef({0, 5}));
  // A transposed input is copied, not misread.
  const at::Tensor x = normal({6, 4}, 3).t();
  expect_same_bits(linear(x, w), linear(x.contiguous(), w), "strided");
}

TEST(Linear, Fp32OfBf16) {
  const ParamPtr w = weight({8, 40}, 4, 0.3, at::kBFloat16);
  const at::Tensor x = normal({30, 40}, 5).to(at::kBFloat16).set_requires_grad(true);
  const at::Tensor x64 = leaf(x);
  const at::Tensor w64 = leaf(w->value);
  const at::Tensor dy = normal({30, 8}, 6);
  at::linear(x64, w64).backward(dy.to(at::kDouble));
  const at::Tensor y = linear_fp32(x, w);
  EXPECT_EQ(y.scalar_type(), at::kFloat);
  expect_close(y, at::linear(x64, w64), 2e-6, "y");
  y.backward(dy);
  EXPECT_EQ(x.grad().scalar_type(), at::kBFloat16);
  expect_close(x.grad(), x64.grad(), 1.2e-2, "dx");
  expect_close(w->grad, w64.grad(), 1e-5, "dW");
}

TEST(Linear, RowsAreIndependent) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const ParamPtr w = weight({96, 64}, 7, 1, dtype);
    const ParamPtr b = weight({96}, 8, 1, dtype);
    const at::Tensor x = normal({40, 64}, 9).to(dtype);
    const at::Tensor whole = linear(x, w, b);
    for (int64_t rows = 1; rows <= 40; ++rows) {
      expect_same_bits(linear(x.narrow(0, 40 - rows, rows), w, b), whole.narrow(0, 40 - rows, rows),
                       std::to_string(rows) + " rows");
    }
  }
}

TEST(Linear, ThreadsDoNotChangeGradients) {
  const auto gradients = [](int count) {
    set_threads(count);
    const ParamPtr w = weight({130, 128}, 10);
    const ParamPtr b = weight({130}, 11);
    at::Tensor x = normal({700, 128}, 12).set_requires_grad(true);
    linear(x, w, b).backward(normal({700, 130}, 13));
    return std::vector<at::Tensor>{w->grad, b->grad, x.grad()};
  };
  const int before = threads();
  const auto one = gradients(1);
  const auto two = gradients(2);
  set_threads(before);
  for (size_t i = 0; i < one.size(); ++i) expect_same_bits(one[i], two[i], std::to_string(i));
}

TEST(Linear, NodesOnlyWhereSomebodyAsks) {
  const ParamPtr frozen = weight({4, 4}, 14, 1, at::kFloat, false);
  const ParamPtr trained = weight({4, 4}, 15);
  const at::Tensor x = normal({2, 4}, 16);
  EXPECT_FALSE(linear(x, frozen).requires_grad());
  EXPECT_TRUE(linear(x, trained).requires_grad());
  {
    const at::NoGradGuard no_grad;
    EXPECT_FALSE(linear(x, trained).requires_grad());
  }
  // Through a frozen weight the gradient still flows to the input, and the weight gets none.
  at::Tensor asks = normal({2, 4}, 17).set_requires_grad(true);
  linear(asks, frozen).sum().backward();
  expect_close(asks.grad(), frozen->value.sum(0).expand({2, 4}), 1e-6, "dx");
  EXPECT_FALSE(frozen->grad.defined());
}

TEST(Linear, PackedWeightFollowsTheVersion) {
  const ParamPtr w = weight({5, 7}, 18);
  const at::Tensor x = normal({3, 7}, 19);
  const at::Tensor before = linear(x, w);
  w->value.mul_(2);
  w->changed();
  expect_same_bits(linear(x, w), before * 2, "after change");
}

TEST(Linear, LogitsAreWhatLinearGives) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const ParamPtr head = weight({49, 32}, 20, 1, dtype);
    const at::Tensor x = normal({9, 32}, 21).to(dtype);
    const at::Tensor z = logits(x, head);
    EXPECT_EQ(z.scalar_type(), at::kFloat);
    expect_same_bits(z, linear(x, head).detach().to(at::kFloat), "logits");
  }
}

TEST(Embedding, RowsAndGradient) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const ParamPtr table = weight({11, 70}, 22, 1, dtype);
    const at::Tensor tokens = at::tensor({3, 10, 3, 0, 3}, at::kLong);
    const at::Tensor x = embedding(tokens, table);
    expect_same_bits(x.detach(), table->value.index_select(0, tokens), "rows");
    const at::Tensor dy = normal({5, 70}, 23).to(dtype);
    x.backward(dy);
    at::Tensor expected = at::zeros({11, 70}, at::kDouble);
    expected.index_add_(0, tokens, dy.to(at::kDouble));
    expect_close(table->grad, expected, 1e-6, "gradient");
  }
  const ParamPtr table = weight({4, 3}, 24);
  EXPECT_ANY_THROW(embedding(at::tensor({4}, at::kLong), table));
  EXPECT_EQ(embedding(at::zeros({0}, at::kLong), table).size(0), 0);
}

TEST(SiluMul, ValuesAndGradients) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const int64_t width : {1, 7, 16, 33, 200}) {
      at::Tensor x = normal({5, 2 * width}, 25, 3).to(dtype).set_requires_grad(true);
      const at::Tensor dy = normal({5, width}, 26).to(dtype);
      const at::Tensor x64 = leaf(x);
      const at::Tensor y64 = at::silu(x64.narrow(1, 0, width)) * x64.narrow(1, width, width);
      y64.backward(dy.to(at::kDouble));
      const at::Tensor y = silu_mul(x);
      y.backward(dy);
      expect_close(y, y64, epsilon(dtype), "y");
      expect_close(x.grad(), x64.grad(), epsilon(dtype), "dx");
    }
  }
}

}  // namespace
}  // namespace quadrille::tensor
