// AdamW in one pass over memory, and the sum of squares that clipping needs.
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/error.h"
#include "tensor/cpu/pointwise.h"
#include "tensor/cpu/tensors.h"
#include "tensor/ops.h"
#include "tensor/threads.h"

namespace quadrille::tensor {
namespace {

constexpr int64_t kStretch =
    16384;  // Numbers a thread takes at a time; decides the order of sums too.

void by_stretch(int64_t count, const std::function<void(int64_t, int64_t, int64_t)>& body) {
  const cpu::Phase phase{(count + kStretch - 1) / kStretch, [&](int64_t i) {
                           body(i, i * kStretch, std::min(kStretch, count - i * kStretch));
                         }};
  cpu::run_phases(std::span(&phase, 1), phase.count > 2 ? threads() : 1);
}

}  // namespace

void adamw_step(at::Tensor& master, at::Tensor& value, const at::Tensor& grad, at::Tensor& m,
                at::Tensor& v, const AdamW& options) {
  QD_CHECK(options.step >= 1, "step {}", options.step);
  for (const at::Tensor& t : {master, value, grad, m, v}) {
    QD_CHECK(t.is_contiguous() && t.numel() == master.numel(), "{} numbers beside {} of master",
             t.numel(), master.numel());
  }
  const double correction1 = 1 - std::pow(options.beta1, static_cast<double>(options.step));
  const double correction2 = 1 - std::pow(options.beta2, static_cast<double>(options.step));
  cpu::AdamWCoefficients c;
  c.grad_scale = static_cast<float>(options.grad_scale);
  c.beta1 = static_cast<float>(options.beta1);
  c.one_minus_beta1 = static_cast<float>(1 - options.beta1);
  c.beta2 = static_cast<float>(options.beta2);
  c.one_minus_beta2 = static_cast<float>(1 - options.beta2);
  c.decay = static_cast<float>(1 - options.lr * options.weight_decay);
  c.step_size = static_cast<float>(options.lr / correction1);
  c.root_scale = static_cast<float>(1 / std::sqrt(correction2));
  c.eps = static_cast<float>(options.eps);

  auto* w = master.mutable_data_ptr<float>();
  auto* mean = m.mutable_data_ptr<float>();
  auto* square = v.mutable_data_ptr<float>();
  const auto* g = grad.const_data_ptr<float>();
  const bool same = value.const_data_ptr() == master.const_data_ptr();
  auto* copy = same ? nullptr : static_cast<char*>(value.mutable_data_ptr());
  const cpu::Type type = cpu::type_of(value);
  const int64_t size = value.element_size();
  by_stretch(master.numel(), [&](int64_t, int64_t at, int64_t count) {
    cpu::pointwise_kernels().adamw(w + at, same ? nullptr : copy + at * size, type, g + at,
                                   mean + at, square + at, count, c);
  });
}

at::Tensor sum_of_squares(const at::Tensor& grad) {
  const at::Tensor g = cpu::plain(grad);
  const auto* numbers = g.const_data_ptr<float>();
  std::vector<double> parts(static_cast<size_t>((g.numel() + kStretch - 1) / kStretch));
  by_stretch(g.numel(), [&](int64_t i, int64_t at, int64_t count) {
    parts[static_cast<size_t>(i)] = cpu::pointwise_kernels().sum_of_squares(numbers + at, count);
  });
  at::Tensor total = cpu::empty({}, at::kDouble);
  double sum = 0;
  for (const double part : parts) sum += part;
  *total.mutable_data_ptr<double>() = sum;
  return total;
}

}  // namespace quadrille::tensor
