#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/zeros.h>

#include "tensor/check.h"
#include "tensor/ops.h"
#include "tensor/threads.h"

namespace quadrille::tensor {
namespace {

// One expert after the other, in ATen operations.
at::Tensor reference(const at::Tensor& x, const std::vector<int64_t>& offsets,
                     const at::Tensor& gate_up, const at::Tensor& down) {
  const int64_t width = down.size(2);
  std::vector<at::Tensor> parts{at::zeros({offsets[0], x.size(1)}, x.options())};
  for (size_t e = 0; e + 1 < offsets.size(); ++e) {
    const auto i = static_cast<int64_t>(e);
    const at::Tensor rows = x.narrow(0, offsets[e], offsets[e + 1] - offsets[e]);
    const at::Tensor pre = at::linear(rows, gate_up[i]);
    const at::Tensor h = at::silu(pre.narrow(1, 0, width)) * pre.narrow(1, width, width);
    parts.push_back(at::linear(h, down[i]));
  }
  parts.push_back(at::zeros({x.size(0) - offsets.back(), x.size(1)}, x.options()));
  return at::cat(parts, 0);
}

struct Case {
  int64_t hidden, width;
  std::vector<int64_t> offsets;
  int64_t rows;
};

TEST(GroupedMlp, ValuesAndGradients) {
  const Case cases[] = {
      {16, 8, {0, 4}, 4},
      {24, 5, {0, 0, 3, 3, 10}, 10},
      {33, 31, {0, 1, 1, 40, 41}, 41},
      {20, 33, {0, 7, 9}, 15},     // Rows past the end.
      {20, 65, {2, 7, 7, 9}, 12},  // And before the start.
      {128, 64, {0, 60, 61, 200, 330}, 330},
      {8, 4, {0, 0, 0}, 0},
      {8, 4, {0, 0, 0}, 3},
  };
  uint64_t seed = 1;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const Case& c : cases) {
      seed += 10;
      SCOPED_TRACE("seed " + std::to_string(seed));
      const auto experts = static_cast<int64_t>(c.offsets.size()) - 1;
      const ParamPtr gate_up = weight({experts, 2 * c.width, c.hidden}, seed, 0.3, dtype);
      const ParamPtr down = weight({experts, c.hidden, c.width}, seed + 1, 0.3, dtype);
      at::Tensor x = normal({c.rows, c.hidden}, seed + 2).to(dtype).set_requires_grad(true);
      const at::Tensor dy = normal({c.rows, c.hidden}, seed + 3).to(dtype);
      const at::Tensor offsets = at::tensor(c.offsets, at::kLong);

      const at::Tensor x64 = leaf(x);
      const at::Tensor gate_up64 = leaf(gate_up->value);
      const at::Tensor down64 = leaf(down->value);
      const at::Tensor y64 = reference(x64, c.offsets, gate_up64, down64);
      y64.backward(dy.to(at::kDouble));
      const auto or_zero = [](const at::Tensor& t) {
        return t.grad().defined() ? t.grad() : at::zeros(t.sizes(), t.options());
      };

      const double tolerance = dtype == at::kFloat ? 5e-6 : 2e-2;
      const at::Tensor y = grouped_mlp(x, offsets, gate_up, down);
      y.backward(dy);
      expect_close(y, y64, tolerance, "y");
      expect_close(x.grad(), or_zero(x64), tolerance, "dx");
      expect_close(gate_up->grad, or_zero(gate_up64), tolerance, "d gate_up");
      expect_close(down->grad, or_zero(down64), tolerance, "d down");
      grouped_mlp(x.detach(), offsets, gate_up, down).backward(dy);
      expect_close(gate_up->grad, 2 * or_zero(gate_up64), tolerance, "d gate_up twice");
      expect_close(down->grad, 2 * or_zero(down64), tolerance, "d down twice");
    }
  }
}

// A row gives the same bits alone, among its expert's rows and with other experts around.
TEST(GroupedMlp, RowsAreIndependent) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const ParamPtr gate_up = weight({3, 128, 96}, 70, 0.3, dtype);
    const ParamPtr down = weight({3, 96, 64}, 71, 0.3, dtype);
    const at::Tensor x = normal({90, 96}, 72).to(dtype);
    const at::NoGradGuard no_grad;
    const at::Tensor whole = grouped_mlp(x, at::tensor({0, 30, 31, 90}, at::kLong), gate_up, down);
    for (int64_t rows = 1; rows <= 40; ++rows) {
      const at::Tensor part = grouped_mlp(
          x.narrow(0, 31, rows), at::tensor({int64_t{0}, int64_t{0}, int64_t{0}, rows}, at::kLong),
          gate_up, down);
      expect_same_bits(part, whole.narrow(0, 31, rows), std::to_string(rows) + " rows");
    }
  }
}

// One expert that everybody goes to is a dense layer.
TEST(GroupedMlp, OneExpertIsDense) {
  const ParamPtr gate_up = weight({1, 40, 24}, 73);
  const ParamPtr down = weight({1, 24, 20}, 74);
  const ParamPtr gate_up2 = weight({40, 24}, 73);
  const ParamPtr down2 = weight({24, 20}, 74);
  const at::Tensor x = normal({17, 24}, 75);
  const at::NoGradGuard no_grad;
  expect_same_bits(grouped_mlp(x, at::tensor({0, 17}, at::kLong), gate_up, down),
                   linear(silu_mul(linear(x, gate_up2)), down2), "dense");
}

TEST(GroupedMlp, ThreadsDoNotChangeGradients) {
  const auto gradients = [](int count) {
    set_threads(count);
    const ParamPtr gate_up = weight({4, 128, 128}, 76, 0.1);
    const ParamPtr down = weight({4, 128, 64}, 77, 0.1);
    at::Tensor x = normal({600, 128}, 78).set_requires_grad(true);
    grouped_mlp(x, at::tensor({0, 100, 101, 500, 590}, at::kLong), gate_up, down)
        .backward(normal({600, 128}, 79));
    return std::vector<at::Tensor>{gate_up->grad, down->grad, x.grad()};
  };
  const int before = threads();
  const auto one = gradients(1);
  const auto two = gradients(2);
  set_threads(before);
  for (size_t i = 0; i < one.size(); ++i) expect_same_bits(one[i], two[i], std::to_string(i));
}

TEST(GroupedMlp, RefusesWrongOffsets) {
  const ParamPtr gate_up = weight({2, 8, 4}, 80);
  const ParamPtr down = weight({2, 4, 4}, 81);
  const at::Tensor x = normal({5, 4}, 82);
  EXPECT_ANY_THROW(grouped_mlp(x, at::tensor({0, 3, 6}, at::kLong), gate_up, down));
  EXPECT_ANY_THROW(grouped_mlp(x, at::tensor({0, 3, 2}, at::kLong), gate_up, down));
  EXPECT_ANY_THROW(grouped_mlp(x, at::tensor({0, 3, 4, 5}, at::kLong), gate_up, down));
}

}  // namespace
}  // namespace quadrille::tensor
