// What the tests of tensor share: seeded numbers, weights, and comparison with a double reference.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "base/rng.h"
#include "tensor/param.h"

namespace quadrille::tensor {

// Standard normal numbers times `scale`, a function of the seed alone.
inline at::Tensor normal(at::IntArrayRef shape, uint64_t seed, double scale = 1) {
  at::Tensor t = at::zeros(shape, at::kFloat);
  Rng rng(seed);
  auto* p = t.mutable_data_ptr<float>();
  for (int64_t i = 0; i < t.numel(); ++i) p[i] = static_cast<float>(scale * rng.normal());
  return t;
}

inline ParamPtr weight(at::IntArrayRef shape, uint64_t seed, double scale = 1,
                       at::ScalarType dtype = at::kFloat, bool trained = true) {
  auto param = std::make_shared<Param>();
  param->name = "weight " + std::to_string(seed);
  param->value = normal(shape, seed, scale).to(dtype);
  if (trained) param->grad = at::zeros(shape, at::kFloat);
  return param;
}

// A leaf of the double reference with the same values.
inline at::Tensor leaf(const at::Tensor& t) {
  return t.detach().to(at::kDouble).clone().set_requires_grad(true);
}

// |actual - expected| <= tolerance * (1 + largest |expected|) everywhere.
inline void expect_close(const at::Tensor& actual, const at::Tensor& expected, double tolerance,
                         const std::string& what) {
  ASSERT_TRUE(actual.defined() && expected.defined()) << what;
  ASSERT_EQ(actual.sizes(), expected.sizes()) << what;
  if (actual.numel() == 0) return;
  const at::Tensor a = actual.detach().to(at::kDouble);
  const at::Tensor e = expected.detach().to(at::kDouble);
  const double error = (a - e).abs().max().item<double>();
  const double size = 1 + e.abs().max().item<double>();
  EXPECT_LE(error, tolerance * size) << what << ": error " << error << " beside " << size;
  EXPECT_FALSE(a.isnan().any().item<bool>()) << what << ": NaN";
}

inline void expect_same_bits(const at::Tensor& a, const at::Tensor& b, const std::string& what) {
  ASSERT_EQ(a.sizes(), b.sizes()) << what;
  EXPECT_TRUE(a.equal(b)) << what;
}

}  // namespace quadrille::tensor
