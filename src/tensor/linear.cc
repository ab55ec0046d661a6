// Embedding, linear layers and the activation between them.
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "tensor/autograd.h"
#include "tensor/cpu/packed.h"
#include "tensor/cpu/pointwise.h"
#include "tensor/cpu/tensors.h"
#include "tensor/ops.h"
#include "tensor/threads.h"

namespace quadrille::tensor {
namespace {

using cpu::Gemm;
using cpu::Phase;
using cpu::Type;

// Calls body(begin, end) over stretches of `count` things of `cost` nanoseconds each.
void parallel(int64_t count, double cost, const std::function<void(int64_t, int64_t)>& body) {
  constexpr double kGrain = 20e3;
  const int64_t stretch = std::max<int64_t>(1, static_cast<int64_t>(kGrain / cost));
  const Phase phase{(count + stretch - 1) / stretch,
                    [&](int64_t i) { body(i * stretch, std::min(count, (i + 1) * stretch)); }};
  cpu::run_phases(std::span(&phase, 1), phase.count > 1 ? threads() : 1);
}

struct LinearShape {
  int64_t rows = 0;
  int64_t in = 0;
  int64_t out = 0;
};
LinearShape shape_of(const at::Tensor& x, const ParamPtr& weight) {
  QD_CHECK(weight->value.dim() == 2 && x.dim() >= 1 && x.size(-1) == weight->value.size(1),
           "{}: last dimension of x is {}, weight is [{}, {}]", weight->name, x.size(-1),
           weight->value.size(0), weight->value.size(1));
  const int64_t in = x.size(-1);
  return {in == 0 ? 0 : x.numel() / in, in, weight->value.size(0)};
}

// y = x · Wᵀ + b, with products of type `compute`.
at::Tensor forward(const at::Tensor& x, const ParamPtr& weight, const ParamPtr& bias, Type compute,
                   at::ScalarType result) {
  const LinearShape shape = shape_of(x, weight);
  at::DimVector sizes(x.sizes());
  sizes.back() = shape.out;
  at::Tensor y = cpu::empty(sizes, result);
  const auto packed = cpu::packed(*weight, shape.out, compute, threads());
  std::vector<float> bias_fp32;
  Gemm g{.m = shape.rows, .n = shape.out, .k = shape.in, .compute = compute};
  g.a = x.const_data_ptr();
  g.a_type = cpu::type_of(x);
  g.a_row = shape.in;
  g.b = packed->matrix(0);
  g.b_packed = true;
  g.c = y.data_ptr();
  g.c_type = cpu::type_of(y);
  g.c_row = shape.out;
  if (bias && bias->value.scalar_type() == at::kFloat) {
    g.bias = bias->value.const_data_ptr<float>();
  } else if (bias) {
    bias_fp32.resize(static_cast<size_t>(shape.out));
    cpu::pointwise_kernels().convert(bias->value.const_data_ptr(), Type::kBf16, bias_fp32.data(),
                                     Type::kFp32, shape.out);
    g.bias = bias_fp32.data();
  }
  cpu::run(g, threads());
  return y;
}

// Adds dyᵀ · x to the weight's gradient and the column sums of dy to the bias's; returns dy · W if
// asked for.
at::Tensor backward(const at::Tensor& x, const at::Tensor& dy, const ParamPtr& weight,
                    const ParamPtr& bias, Type compute, bool needs_dx) {
  const LinearShape shape = shape_of(x, weight);
  at::Tensor dx;
  std::vector<Gemm> products;
  if (needs_dx) {
    dx = cpu::empty(x.sizes(), x.scalar_type());
    Gemm g{.m = shape.rows, .n = shape.in, .k = shape.out, .compute = compute};
    g.a = dy.const_data_ptr();
    g.a_type = cpu::type_of(dy);
    g.a_row = shape.out;
    g.b = weight->value.const_data_ptr();
    g.b_type = cpu::type_of(weight->value);
    g.b_row = shape.in;
    g.c = dx.data_ptr();
    g.c_type = cpu::type_of(dx);
    g.c_row = shape.in;
    products.push_back(g);
  }
  if (weight->grad.defined()) {
    Gemm g{.m = shape.out, .n = shape.in, .k = shape.rows, .compute = compute};
    g.a = dy.const_data_ptr();
    g.a_type = cpu::type_of(dy);
    g.a_row = 1;
    g.a_col = shape.out;
    g.b = x.const_data_ptr();
    g.b_type = cpu::type_of(x);
    g.b_row = shape.in;
    g.c = weight->grad.mutable_data_ptr<float>();
    g.c_row = shape.in;
    g.accumulate = true;
    products.push_back(g);
  }
  cpu::run(products, threads());
  if (bias && bias->grad.defined()) {
    // Columns go to threads, tokens stay in order.
    constexpr int64_t kStretch = 64;
    auto* sum = bias->grad.mutable_data_ptr<float>();
    const auto* rows = static_cast<const char*>(dy.const_data_ptr());
    const Type type = cpu::type_of(dy);
    const int64_t size = dy.element_size();
    const Phase phase{(shape.out + kStretch - 1) / kStretch, [&](int64_t i) {
                        const int64_t begin = i * kStretch;
                        const int64_t count = std::min(kStretch, shape.out - begin);
                        for (int64_t t = 0; t < shape.rows; ++t) {
                          cpu::pointwise_kernels().add(
                              sum + begin, rows + (t * shape.out + begin) * size, type, count);
                        }
                      }};
    const double flops = 40.0 * static_cast<double>(shape.rows * shape.out);
    cpu::run_phases(std::span(&phase, 1), cpu::threads_for(flops, threads()));
  }
  return dx;
}

at::Tensor differentiable(const char* name, const at::Tensor& x, const ParamPtr& weight,
                          const ParamPtr& bias, Type compute, at::ScalarType result) {
  const at::Tensor input = cpu::plain(x);
  at::Tensor y = forward(input, weight, bias, compute, result);
  if (wants_node({x}, {weight, bias})) {
    const bool needs_dx = x.requires_grad();
    record(name, {x}, {y}, [=](const auto& grads) {
      return std::vector<at::Tensor>{
          backward(input, cpu::plain(grads[0]), weight, bias, compute, needs_dx)};
    });
  }
  return y;
}

}  // namespace

at::Tensor linear(const at::Tensor& x_TI, const ParamPtr& weight_OI, const ParamPtr& bias_O) {
  QD_CHECK(x_TI.scalar_type() == weight_OI->value.scalar_type(), "{} is {}, x is {}",
           weight_OI->name, c10::toString(weight_OI->value.scalar_type()),
           c10::toString(x_TI.scalar_type()));
  return differentiable("linear", x_TI, weight_OI, bias_O, cpu::type_of(x_TI), x_TI.scalar_type());
}

at::Tensor linear_fp32(const at::Tensor& x_TI, const ParamPtr& weight_OI) {
  return differentiable("linear_fp32", x_TI, weight_OI, nullptr, Type::kFp32, at::kFloat);
}

at::Tensor logits(const at::Tensor& hidden_BD, const ParamPtr& head_VD) {
  const at::Tensor hidden = cpu::plain(hidden_BD);
  const LinearShape shape = shape_of(hidden, head_VD);
  const Type compute = cpu::type_of(hidden);
  at::Tensor z_BV = cpu::empty({shape.rows, shape.out}, at::kFloat);
  const auto packed = cpu::packed(*head_VD, shape.out, compute, threads());
  Gemm g{.m = shape.rows, .n = shape.out, .k = shape.in, .compute = compute};
  g.a = hidden.const_data_ptr();
  g.a_type = compute;
  g.a_row = shape.in;
  g.b = packed->matrix(0);
  g.b_packed = true;
  g.c = z_BV.data_ptr();
  g.c_row = shape.out;
  g.round_to_bf16 = compute == Type::kBf16;
  cpu::run(g, threads());
  return z_BV;
}

at::Tensor embedding(const at::Tensor& tokens_T, const ParamPtr& table_VD) {
  const at::Tensor tokens = cpu::plain(tokens_T);
  const int64_t vocabulary = table_VD->value.size(0);
  const int64_t width = table_VD->value.size(1);
  const int64_t count = tokens.numel();
  const auto* ids = tokens.const_data_ptr<int64_t>();
  for (int64_t t = 0; t < count; ++t) {
    QD_CHECK(ids[t] >= 0 && ids[t] < vocabulary, "token {} at {}, vocabulary {}", ids[t], t,
             vocabulary);
  }
  at::Tensor x_TD = cpu::empty({count, width}, table_VD->value.scalar_type());
  const int64_t bytes = width * x_TD.element_size();
  const auto* table = static_cast<const char*>(table_VD->value.const_data_ptr());
  auto* x = static_cast<char*>(x_TD.data_ptr());
  parallel(count, 5.0 + static_cast<double>(bytes) / 20, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      std::memcpy(x + t * bytes, table + ids[t] * bytes, static_cast<size_t>(bytes));
    }
  });
  if (wants_node({}, {table_VD})) {
    record("embedding", {}, {x_TD}, [=](const auto& grads) {
      const at::Tensor dx_TD = cpu::plain(grads[0]);
      const auto* dx = static_cast<const char*>(dx_TD.const_data_ptr());
      const auto* id = tokens.template const_data_ptr<int64_t>();
      auto* sum = table_VD->grad.template mutable_data_ptr<float>();
      const Type type = cpu::type_of(dx_TD);
      const int64_t size = dx_TD.element_size();
      // Columns go to threads, tokens stay in order.
      constexpr int64_t kStretch = 64;
      const Phase phase{(width + kStretch - 1) / kStretch, [&](int64_t i) {
                          const int64_t begin = i * kStretch;
                          const int64_t lanes = std::min(kStretch, width - begin);
                          for (int64_t t = 0; t < count; ++t) {
                            cpu::pointwise_kernels().add(sum + id[t] * width + begin,
                                                         dx + (t * width + begin) * size, type,
                                                         lanes);
                          }
                        }};
      const double flops = 40.0 * static_cast<double>(count * width);
      cpu::run_phases(std::span(&phase, 1), cpu::threads_for(flops, threads()));
      return std::vector<at::Tensor>{};
    });
  }
  return x_TD;
}

at::Tensor silu_mul(const at::Tensor& gate_up_T2F) {
  const at::Tensor gate_up = cpu::plain(gate_up_T2F);
  QD_CHECK(gate_up.size(-1) % 2 == 0, "width {} is odd", gate_up.size(-1));
  const int64_t width = gate_up.size(-1) / 2;
  const int64_t rows = width == 0 ? 0 : gate_up.numel() / (2 * width);
  const Type type = cpu::type_of(gate_up);
  const int64_t bytes = width * gate_up.element_size();
  at::DimVector sizes(gate_up.sizes());
  sizes.back() = width;
  at::Tensor h_TF = cpu::empty(sizes, gate_up.scalar_type());
  const auto* in = static_cast<const char*>(gate_up.const_data_ptr());
  auto* out = static_cast<char*>(h_TF.data_ptr());
  const double cost = 10.0 + static_cast<double>(width);
  parallel(rows, cost, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const char* gate = in + 2 * t * bytes;
      cpu::pointwise_kernels().silu_mul(gate, gate + bytes, out + t * bytes, type, width);
    }
  });
  if (wants_node({gate_up_T2F}, {})) {
    record("silu_mul", {gate_up_T2F}, {h_TF}, [=](const auto& grads) {
      const at::Tensor dh_TF = cpu::plain(grads[0]);
      at::Tensor d_gate_up = cpu::empty(gate_up.sizes(), gate_up.scalar_type());
      const auto* from = static_cast<const char*>(gate_up.const_data_ptr());
      const auto* dh = static_cast<const char*>(dh_TF.const_data_ptr());
      auto* to = static_cast<char*>(d_gate_up.data_ptr());
      parallel(rows, cost, [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t) {
          const char* gate = from + 2 * t * bytes;
          char* d_gate = to + 2 * t * bytes;
          cpu::pointwise_kernels().silu_mul_backward(gate, gate + bytes, dh + t * bytes, d_gate,
                                                     d_gate + bytes, nullptr, type, width);
        }
      });
      return std::vector<at::Tensor>{d_gate_up};
    });
  }
  return h_TF;
}

}  // namespace quadrille::tensor
