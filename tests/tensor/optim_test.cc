#include <ATen/core/Tensor.h>

#include <cmath>

#include "tensor/check.h"
#include "tensor/ops.h"
#include "tensor/threads.h"

namespace quadrille::tensor {
namespace {

// Three steps of AdamW as its paper writes it, in double.
TEST(AdamW, AgreesWithDouble) {
  for (const int64_t count : {1, 15, 33, 50001}) {
    at::Tensor master = normal({count}, 1);
    at::Tensor value = master.to(at::kBFloat16);
    at::Tensor m = at::zeros({count}, at::kFloat);
    at::Tensor v = at::zeros({count}, at::kFloat);
    at::Tensor w64 = master.to(at::kDouble);
    at::Tensor m64 = at::zeros({count}, at::kDouble);
    at::Tensor v64 = at::zeros({count}, at::kDouble);
    AdamW options{.lr = 0.01, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};
    options.grad_scale = 0.5;
    for (int64_t step = 1; step <= 3; ++step) {
      options.step = step;
      const at::Tensor grad = normal({count}, static_cast<uint64_t>(10 + step));
      adamw_step(master, value, grad, m, v, options);
      const at::Tensor g = grad.to(at::kDouble) * 0.5;
      m64 = 0.9 * m64 + 0.1 * g;
      v64 = 0.95 * v64 + 0.05 * g * g;
      const at::Tensor mean = m64 / (1 - std::pow(0.9, step));
      const at::Tensor square = v64 / (1 - std::pow(0.95, step));
      w64 = w64 * (1 - 0.01 * 0.1) - 0.01 * mean / (square.sqrt() + 1e-8);
    }
    expect_close(master, w64, 1e-6, "master");
    expect_close(m, m64, 1e-6, "m");
    expect_close(v, v64, 1e-6, "v");
    expect_same_bits(value, master.to(at::kBFloat16), "bf16 copy");
  }
}

TEST(AdamW, ValueMayBeTheMaster) {
  at::Tensor a = normal({100}, 1);
  at::Tensor b = a.clone();
  at::Tensor copy = a.clone();
  at::Tensor ma = at::zeros({100}), va = at::zeros({100}), mb = at::zeros({100}),
             vb = at::zeros({100});
  const at::Tensor grad = normal({100}, 2);
  adamw_step(a, a, grad, ma, va, {});
  adamw_step(b, copy, grad, mb, vb, {});
  expect_same_bits(a, b, "master");
  expect_same_bits(copy, b, "fp32 copy");
}

TEST(AdamW, NoGradientNoMove) {
  at::Tensor w = normal({40}, 3);
  const at::Tensor before = w.clone();
  at::Tensor m = at::zeros({40}), v = at::zeros({40});
  adamw_step(w, w, at::zeros({40}), m, v, {});
  expect_same_bits(w, before, "weights");
}

TEST(SumOfSquares, ExactAndIndependentOfThreads) {
  for (const int64_t count : {0, 1, 17, 16384, 100003}) {
    const at::Tensor g = normal({count}, 5);
    const int before = threads();
    set_threads(1);
    const at::Tensor one = sum_of_squares(g);
    set_threads(2);
    const at::Tensor two = sum_of_squares(g);
    set_threads(before);
    EXPECT_EQ(one.scalar_type(), at::kDouble);
    expect_same_bits(one, two, "threads");
    const at::Tensor exact = g.to(at::kDouble).pow(2).sum();
    EXPECT_NEAR(one.item<double>(), exact.item<double>(), 1e-10 * (1 + exact.item<double>()));
  }
}

}  // namespace
}  // namespace quadrille::tensor
