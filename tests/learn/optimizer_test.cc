#include "learn/optimizer.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>

#include "base/error.h"

namespace quadrille::learn {
namespace {

tensor::ParamPtr param(const std::string& name, const std::vector<double>& values,
                       at::IntArrayRef shape, at::ScalarType dtype = at::kFloat) {
  auto p = std::make_shared<tensor::Param>();
  p->name = name;
  p->value = at::tensor(values, at::kDouble).view(shape).to(dtype);
  p->grad = at::zeros(shape, at::kFloat);
  return p;
}

std::vector<double> host(const at::Tensor& tensor) {
  const at::Tensor t = tensor.to(at::kDouble).contiguous();
  return {t.const_data_ptr<double>(), t.const_data_ptr<double>() + t.numel()};
}

OptimizerConfig config() {
  OptimizerConfig c;
  c.betas = {0.9, 0.95};
  c.weight_decay = 0.1;
  c.clip_norm = 0;
  return c;
}

// AdamW as its paper has it, one number at a time.
struct PlainAdamW {
  double value, m = 0, v = 0;
  int64_t step = 0;
  void update(double grad, double lr, const OptimizerConfig& c, bool decays) {
    ++step;
    m = c.betas[0] * m + (1 - c.betas[0]) * grad;
    v = c.betas[1] * v + (1 - c.betas[1]) * grad * grad;
    const double m_hat = m / (1 - std::pow(c.betas[0], static_cast<double>(step)));
    const double v_hat = v / (1 - std::pow(c.betas[1], static_cast<double>(step)));
    if (decays) value -= lr * c.weight_decay * value;
    value -= lr * m_hat / (std::sqrt(v_hat) + c.eps);
  }
};

TEST(Optimizer, FollowsThePlainFormulaAndSparesVectorsFromDecay) {
  const std::vector<double> start = {0.5, -1.25, 2.0, 0.03};
  auto matrix = param("a", start, {2, 2});
  auto vector = param("b", start, {4});
  Optimizer optimizer({vector, matrix}, config());
  std::vector<PlainAdamW> plain_matrix, plain_vector;
  for (const double x : start) {
    plain_matrix.push_back({x});
    plain_vector.push_back({x});
  }
  for (int step = 1; step <= 20; ++step) {
    for (int i = 0; i < 4; ++i) {
      const double grad = std::sin(step * 1.7 + i) * (i + 1);
      matrix->grad.view(-1)[i].fill_(grad);
      vector->grad[i].fill_(grad);
      plain_matrix[static_cast<size_t>(i)].update(grad, 0.01, config(), true);
      plain_vector[static_cast<size_t>(i)].update(grad, 0.01, config(), false);
    }
    EXPECT_FALSE(optimizer.step(0.01).skipped);
  }
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_NEAR(host(matrix->value)[i], plain_matrix[i].value, 2e-6);
    EXPECT_NEAR(host(vector->value)[i], plain_vector[i].value, 2e-6);
  }
  EXPECT_EQ(optimizer.steps(), 20);
}

// Reference: torch.optim.AdamW(lr=0.1, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1), two steps.
TEST(Optimizer, GivesTorchsNumbers) {
  auto p = param("w", {1.0, -2.0}, {1, 2});
  Optimizer optimizer({p}, config());
  p->grad.copy_(at::tensor({0.5, -0.25}).view({1, 2}));
  optimizer.step(0.1);
  EXPECT_NEAR(host(p->value)[0], 0.89, 1e-6);
  EXPECT_NEAR(host(p->value)[1], -1.88, 1e-6);
  p->grad.copy_(at::tensor({-0.1, 0.3}).view({1, 2}));
  optimizer.step(0.1);
  EXPECT_NEAR(host(p->value)[0], 0.829393621780, 1e-6);
  EXPECT_NEAR(host(p->value)[1], -1.875462186587, 1e-6);
}

TEST(Optimizer, ClipsByTheNormOfAllParameters) {
  OptimizerConfig c = config();
  c.clip_norm = 1;
  c.betas = {0, 0};
  c.eps = 1;  // The update then shows the gradient: g / (|g| + 1).
  c.weight_decay = 0;
  auto a = param("a", {0}, {1});
  auto b = param("b", {0}, {1});
  Optimizer optimizer({a, b}, c);
  a->grad.fill_(3);
  b->grad.fill_(-4);
  const Optimizer::Result result = optimizer.step(1);
  EXPECT_NEAR(result.grad_norm, 5, 1e-12);
  EXPECT_NEAR(host(a->value)[0], -0.6 / 1.6, 1e-5);
  EXPECT_NEAR(host(b->value)[0], 0.8 / 1.8, 1e-5);
}

TEST(Optimizer, SkipsAStepWithoutAFiniteNormAndNamesTheParameter) {
  auto a = param("a", {1, 1}, {2});
  auto b = param("b", {1, 1}, {2});
  Optimizer optimizer({b, a}, config());
  a->grad.fill_(1);
  b->grad[1].fill_(std::numeric_limits<double>::infinity());
  const Optimizer::Result result = optimizer.step(0.1);
  EXPECT_TRUE(result.skipped);
  EXPECT_EQ(result.bad_parameter, "b");
  EXPECT_EQ(host(a->value), (std::vector<double>{1, 1}));
  EXPECT_EQ(optimizer.steps(), 0);
  EXPECT_EQ(host(optimizer.moments()[0].second), (std::vector<double>{0, 0}));
}

TEST(Optimizer, KeepsAnFp32MasterOfBf16Weights) {
  OptimizerConfig c = config();
  c.weight_decay = 0;
  auto p = param("w", {1.0}, {1}, at::kBFloat16);
  Optimizer optimizer({p}, c);
  const uint64_t version = p->version;
  // Each step is a tenth of bf16's resolution at 1: without a master nothing would ever move.
  for (int i = 0; i < 20; ++i) {
    p->grad.fill_(-1);
    optimizer.step(4e-4);
  }
  EXPECT_NEAR(host(optimizer.masters()[0].second)[0], 1.008, 1e-5);
  EXPECT_EQ(host(p->value)[0], 1.0078125);
  EXPECT_EQ(p->version, version + 20);
}

TEST(Optimizer, LeavesFrozenParametersOut) {
  auto frozen = param("f", {1}, {1});
  frozen->grad = at::Tensor();
  auto trained = param("t", {1}, {1});
  Optimizer optimizer({frozen, trained}, config());
  EXPECT_EQ(optimizer.masters().size(), 1U);
}

TEST(Optimizer, LoadsWhatItGaveAway) {
  const auto make = [] { return param("w", {1, 2, 3, 4}, {2, 2}, at::kBFloat16); };
  const auto train = [](Optimizer& o, const tensor::ParamPtr& p, int from, int to) {
    for (int step = from; step < to; ++step) {
      p->grad.fill_(std::cos(step));
      o.step(0.01);
    }
  };
  auto straight = make();
  Optimizer one({straight}, config());
  train(one, straight, 0, 6);

  auto first = make();
  Optimizer before({first}, config());
  train(before, first, 0, 3);
  std::map<std::string, at::Tensor> saved;
  for (const auto& list : {before.moments(), before.masters()}) {
    for (const auto& [name, tensor] : list) saved[name] = tensor.clone();
  }
  auto second = make();
  Optimizer after({second}, config());
  after.load([&](const std::string& name) { return saved.at(name); }, before.steps());
  train(after, second, 3, 6);
  EXPECT_TRUE(at::equal(straight->value, second->value));
  EXPECT_TRUE(at::equal(one.masters()[0].second, after.masters()[0].second));
}

TEST(Optimizer, RefusesAnotherModelsState) {
  auto p = param("w", {1, 2}, {2});
  Optimizer optimizer({p}, config());
  EXPECT_THROW(optimizer.load([](const std::string&) { return at::zeros({3}); }, 1), FormatError);
}

TEST(Schedule, WarmsUpThenHolds) {
  OptimizerConfig c;
  c.lr = 1;
  c.warmup_steps = 4;
  EXPECT_DOUBLE_EQ(scheduled_lr(c, 1, 100), 0.25);
  EXPECT_DOUBLE_EQ(scheduled_lr(c, 4, 100), 1);
  EXPECT_DOUBLE_EQ(scheduled_lr(c, 100, 100), 1);
}

TEST(Schedule, FallsToItsMinimumOneStepAfterTheLast) {
  OptimizerConfig c;
  c.lr = 1;
  c.min_lr_ratio = 0.1;
  for (const char* name : {"linear", "cosine"}) {
    c.schedule = name;
    c.warmup_steps = 0;
    EXPECT_DOUBLE_EQ(scheduled_lr(c, 1, 10), 1);
    EXPECT_GT(scheduled_lr(c, 10, 10), 0.1);
    EXPECT_DOUBLE_EQ(scheduled_lr(c, 11, 10), 0.1);
    EXPECT_DOUBLE_EQ(scheduled_lr(c, 50, 10), 0.1);
    EXPECT_NEAR(scheduled_lr(c, 6, 10), 0.55, 1e-12);
    c.warmup_steps = 4;
    EXPECT_DOUBLE_EQ(scheduled_lr(c, 4, 10), 1);
    EXPECT_LT(scheduled_lr(c, 5, 10), 1);
  }
}

TEST(OptimizerConfig, SaysWhatIsWrong) {
  const auto message = [](auto change) -> std::string {
    OptimizerConfig c;
    change(c);
    try {
      c.validate();
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(message([](auto&) {}), "");
  EXPECT_EQ(message([](auto& c) { c.betas = {0.9}; }), "optimizer.betas has 1 numbers, expected 2");
  EXPECT_EQ(message([](auto& c) { c.betas = {0.9, 1}; }), "optimizer.betas: 1 is outside [0, 1)");
  EXPECT_EQ(message([](auto& c) { c.min_lr_ratio = 2; }),
            "optimizer.min_lr_ratio = 2 is outside [0, 1]");
}

}  // namespace
}  // namespace quadrille::learn
