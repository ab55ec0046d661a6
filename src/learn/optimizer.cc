#include "learn/optimizer.h"

#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.h"
#include "tensor/ops.h"

namespace quadrille::learn {

void OptimizerConfig::validate() const {
  if (!(lr >= 0)) throw ConfigError("optimizer.lr = {} must not be negative", lr);
  if (betas.size() != 2)
    throw ConfigError("optimizer.betas has {} numbers, expected 2", betas.size());
  for (const double beta : betas) {
    if (!(beta >= 0 && beta < 1)) throw ConfigError("optimizer.betas: {} is outside [0, 1)", beta);
  }
  if (!(eps > 0)) throw ConfigError("optimizer.eps = {} must be above 0", eps);
  if (!(weight_decay >= 0))
    throw ConfigError("optimizer.weight_decay = {} must not be negative", weight_decay);
  if (!(clip_norm >= 0))
    throw ConfigError("optimizer.clip_norm = {} must not be negative (0: off)", clip_norm);
  if (schedule != "constant" && schedule != "linear" && schedule != "cosine") {
    throw ConfigError("optimizer.schedule = \"{}\" is not known; use constant, linear, cosine",
                      schedule);
  }
  if (warmup_steps < 0)
    throw ConfigError("optimizer.warmup_steps = {} must not be negative", warmup_steps);
  if (!(min_lr_ratio >= 0 && min_lr_ratio <= 1)) {
    throw ConfigError("optimizer.min_lr_ratio = {} is outside [0, 1]", min_lr_ratio);
  }
}

void bind(OptimizerConfig& c, ConfigBinder& b) {
  b.field("lr", c.lr, "Peak learning rate.");
  b.field("betas", c.betas, "How slowly the means of gradient and squared gradient move.");
  b.field("eps", c.eps, "Added to the root of the squared gradient's mean.");
  b.field("weight_decay", c.weight_decay,
          "Decoupled decay of matrices; norms and biases do not decay.");
  b.field("clip_norm", c.clip_norm, "Longest gradient that is used as it is; 0: no limit.");
  b.field("schedule", c.schedule, "Learning rate after the warm-up.",
          {"constant", "linear", "cosine"});
  b.field("warmup_steps", c.warmup_steps,
          "Optimizer steps over which the learning rate rises to its peak.");
  b.field("min_lr_ratio", c.min_lr_ratio, "Share of the peak that linear and cosine end at.");
}

double scheduled_lr(const OptimizerConfig& config, int64_t step, int64_t total) {
  const auto warmup = static_cast<double>(config.warmup_steps);
  const auto at = static_cast<double>(step);
  if (at < warmup) return config.lr * at / warmup;
  if (config.schedule == "constant") return config.lr;
  const double peak = std::max(1.0, warmup);
  const double done =
      std::clamp((at - peak) / std::max(1.0, static_cast<double>(total) + 1 - peak), 0.0, 1.0);
  const double share =
      config.schedule == "linear" ? 1 - done : 0.5 * (1 + std::cos(std::numbers::pi * done));
  return config.lr * (config.min_lr_ratio + (1 - config.min_lr_ratio) * share);
}

Optimizer::Optimizer(const std::vector<tensor::ParamPtr>& parameters, OptimizerConfig config)
    : config_(std::move(config)) {
  config_.validate();
  for (const tensor::ParamPtr& param : parameters) {
    if (!param->grad.defined()) continue;
    const at::TensorOptions fp32 = param->value.options().dtype(at::kFloat);
    // `to` gives back the same tensor when it is fp32 already.
    slots_.push_back({param, param->value.to(at::kFloat), at::zeros(param->value.sizes(), fp32),
                      at::zeros(param->value.sizes(), fp32)});
  }
  std::sort(slots_.begin(), slots_.end(),
            [](const Slot& a, const Slot& b) { return a.param->name < b.param->name; });
}

Optimizer::Result Optimizer::step(double lr) {
  const c10::NoGradGuard no_grad;
  Result result;
  if (slots_.empty()) return result;
  // One copy to the host for all of them, then a sum in name order: the same bits on every run and
  // machine count.
  std::vector<at::Tensor> squares;
  for (const Slot& slot : slots_) squares.push_back(tensor::sum_of_squares(slot.param->grad));
  const at::Tensor host = at::stack(squares).cpu();
  const double* square = host.const_data_ptr<double>();
  double sum = 0;
  for (size_t i = 0; i < slots_.size(); ++i) {
    if (!std::isfinite(square[i]) && result.bad_parameter.empty()) {
      result.bad_parameter = slots_[i].param->name;
    }
    sum += square[i];
  }
  result.grad_norm = std::sqrt(sum);
  if (!std::isfinite(result.grad_norm)) {
    result.skipped = true;
    return result;
  }

  ++steps_;
  tensor::AdamW options;
  options.lr = lr;
  options.beta1 = config_.betas[0];
  options.beta2 = config_.betas[1];
  options.eps = config_.eps;
  options.step = steps_;
  // The 1e-6 is torch.nn.utils.clip_grad_norm_'s, so that runs compare.
  options.grad_scale =
      config_.clip_norm > 0 ? std::min(1.0, config_.clip_norm / (result.grad_norm + 1e-6)) : 1.0;
  for (Slot& slot : slots_) {
    options.weight_decay = slot.param->value.dim() >= 2 ? config_.weight_decay : 0.0;
    tensor::adamw_step(slot.master, slot.param->value, slot.param->grad, slot.m, slot.v, options);
    slot.param->changed();
  }
  return result;
}

NamedTensors Optimizer::moments() const {
  NamedTensors out;
  for (const Slot& slot : slots_) {
    out.emplace_back("m." + slot.param->name, slot.m);
    out.emplace_back("v." + slot.param->name, slot.v);
  }
  return out;
}

NamedTensors Optimizer::masters() const {
  NamedTensors out;
  for (const Slot& slot : slots_) out.emplace_back(slot.param->name, slot.master);
  return out;
}

void Optimizer::load(const std::function<at::Tensor(const std::string&)>& find, int64_t steps) {
  const c10::NoGradGuard no_grad;
  const auto copy = [&](at::Tensor& to, const std::string& name) {
    const at::Tensor from = find(name);
    if (from.sizes() != to.sizes()) {
      throw FormatError(
          "checkpoint tensor {} has {} numbers, the model has {}: it is another model's", name,
          from.numel(), to.numel());
    }
    to.copy_(from);
  };
  for (Slot& slot : slots_) {
    copy(slot.master, slot.param->name);
    copy(slot.m, "m." + slot.param->name);
    copy(slot.v, "v." + slot.param->name);
    if (!slot.master.is_same(slot.param->value)) slot.param->value.copy_(slot.master);
    slot.param->changed();
  }
  steps_ = steps;
}

}  // namespace quadrille::learn
