// Shared by the tests of the tensor room: seeded tensors, tolerances, gradients against a double
// oracle.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/rng.h"
#include "tensor/param.h"

namespace quadrille::tensor::testing {

// Standard normal numbers times `scale`, fp32.
inline at::Tensor normal(Rng& rng, at::IntArrayRef shape, double scale = 1.0) {
  at::Tensor x = at::empty(shape, at::kFloat);
  auto* p = x.data_ptr<float>();
  for (int64_t i = 0; i < x.numel(); ++i) p[i] = static_cast<float>(rng.normal() * scale);
  return x;
}

inline ParamPtr param(const at::Tensor& value, bool trainable = true) {
  auto p = std::make_shared<Param>();
  p->name = "test";
  p->value = value;
  if (trainable) p->grad = at::empty(value.sizes(), at::kFloat).zero_();
  return p;
}

// Largest |got - want| / (atol + rtol * |want|); at most 1 is good.
inline double badness(const at::Tensor& got, const at::Tensor& want, double rtol, double atol) {
  if (got.sizes() != want.sizes()) return INFINITY;
  if (got.numel() == 0) return 0;
  const at::Tensor a = got.detach().to(at::kDouble).contiguous();
  const at::Tensor b = want.detach().to(at::kDouble).contiguous();
  double worst = 0;
  for (int64_t i = 0; i < a.numel(); ++i) {
    const double x = a.data_ptr<double>()[i];
    const double y = b.data_ptr<double>()[i];
    const double bad = x == y ? 0 : std::abs(x - y) / (atol + rtol * std::abs(y));
    if (!(bad <= worst)) worst = bad;
  }
  return worst;
}

#define EXPECT_TENSOR_NEAR(got, want, rtol, atol) \
  EXPECT_LE(::quadrille::tensor::testing::badness(got, want, rtol, atol), 1.0)

inline bool same_bits(const at::Tensor& a_in, const at::Tensor& b_in) {
  const at::Tensor a = a_in.detach().contiguous();
  const at::Tensor b = b_in.detach().contiguous();
  return a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type() &&
         (a.nbytes() == 0 || std::memcmp(a.data_ptr(), b.data_ptr(), a.nbytes()) == 0);
}

// Central differences of the scalar f at x (double), one number at a time.
inline at::Tensor finite_difference(const at::Tensor& x,
                                    const std::function<double(const at::Tensor&)>& f,
                                    double step = 1e-5) {
  at::NoGradGuard no_grad;
  at::Tensor at_x = x.detach().to(at::kDouble).clone();
  at::Tensor grad = at::empty(at_x.sizes(), at::kDouble);
  auto* p = at_x.data_ptr<double>();
  for (int64_t i = 0; i < at_x.numel(); ++i) {
    const double keep = p[i];
    p[i] = keep + step;
    const double up = f(at_x);
    p[i] = keep - step;
    const double down = f(at_x);
    p[i] = keep;
    grad.data_ptr<double>()[i] = (up - down) / (2 * step);
  }
  return grad;
}

}  // namespace quadrille::tensor::testing
