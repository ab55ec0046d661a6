// The expert layer of a mixture: every row through the two matrices of its own expert.
//
// All experts are one team's work, cut into blocks of similar size: an expert with three rows and
// one with three thousand need no padding and no call of their own. Only the pre-activations are
// kept for backward; the activation is computed again where its gradient is.
#include <ATen/core/Tensor.h>

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

using cpu::Block;
using cpu::Gemm;
using cpu::Phase;
using cpu::Type;

// What both directions share. All tensors have the dtype of x.
struct Experts {
  int64_t experts = 0;
  int64_t rows = 0;
  int64_t hidden = 0;
  int64_t width = 0;
  Type type = Type::kFp32;
  int64_t size = 4;  // Bytes of an element.
  const int64_t* offsets = nullptr;

  int64_t begin(int64_t e) const { return offsets[e]; }
  int64_t count(int64_t e) const { return offsets[e + 1] - offsets[e]; }
  double flops() const {
    return 6.0 * static_cast<double>(offsets[experts] - offsets[0]) *
           static_cast<double>(hidden * width);
  }
  // An untouched problem of expert e whose A and C are its rows of [R, k] and [R, c_row] tensors.
  Gemm problem(int64_t e, const void* a, int64_t k, void* c, int64_t n, int64_t c_row) const {
    Gemm g{.m = count(e), .n = n, .k = k, .compute = type};
    g.a = static_cast<const char*>(a) + begin(e) * k * size;
    g.a_type = type;
    g.a_row = k;
    g.b_type = type;
    g.c = static_cast<char*>(c) + begin(e) * c_row * size;
    g.c_type = type;
    g.c_row = c_row;
    return g;
  }
};

Experts describe(const at::Tensor& x_RD, const at::Tensor& offsets_E1, const ParamPtr& gate_up,
                 const ParamPtr& down) {
  Experts s;
  s.experts = offsets_E1.size(0) - 1;
  s.rows = x_RD.size(0);
  s.hidden = x_RD.size(1);
  s.width = down->value.size(2);
  s.type = cpu::type_of(x_RD);
  s.size = x_RD.element_size();
  s.offsets = offsets_E1.const_data_ptr<int64_t>();
  QD_CHECK(gate_up->value.sizes() == at::IntArrayRef({s.experts, 2 * s.width, s.hidden}) &&
               down->value.sizes() == at::IntArrayRef({s.experts, s.hidden, s.width}),
           "{}: x is [{}, {}], {} experts of width {}", gate_up->name, s.rows, s.hidden, s.experts,
           s.width);
  QD_CHECK(gate_up->value.scalar_type() == x_RD.scalar_type() &&
               down->value.scalar_type() == x_RD.scalar_type(),
           "{}: dtype is not that of x", gate_up->name);
  QD_CHECK(s.offsets[0] >= 0 && s.offsets[s.experts] <= s.rows, "offsets {} .. {} of {} rows",
           s.offsets[0], s.offsets[s.experts], s.rows);
  for (int64_t e = 0; e < s.experts; ++e) QD_CHECK(s.count(e) >= 0, "offsets fall at {}", e);
  return s;
}

// Rows that belong to no expert.
void clear_unowned(const Experts& s, at::Tensor& y_RD) {
  auto* y = static_cast<char*>(y_RD.data_ptr());
  const int64_t row = s.hidden * s.size;
  const int64_t end = s.offsets[s.experts];
  std::memset(y, 0, static_cast<size_t>(s.offsets[0] * row));
  std::memset(y + end * row, 0, static_cast<size_t>((s.rows - end) * row));
}

Phase over(const std::vector<Block>& blocks, std::function<void(const Block&)> body) {
  return {static_cast<int64_t>(blocks.size()),
          [&blocks, body = std::move(body)](int64_t i) { body(blocks[static_cast<size_t>(i)]); }};
}

void forward(const Experts& s, const at::Tensor& x_RD, Param& gate_up, Param& down,
             at::Tensor& gate_up_R2F, at::Tensor& y_RD) {
  const int team = threads();
  const auto first = cpu::packed(gate_up, s.width, s.type, team);  // Gate and up of e: 2e, 2e + 1.
  const auto second = cpu::packed(down, s.hidden, s.type, team);
  at::Tensor h_RF = cpu::empty({s.rows, s.width}, x_RD.scalar_type());
  auto* h = static_cast<char*>(h_RF.data_ptr());

  std::vector<Gemm> gates;
  std::vector<Gemm> downs;
  for (int64_t e = 0; e < s.experts; ++e) {
    Gemm gate =
        s.problem(e, x_RD.const_data_ptr(), s.hidden, gate_up_R2F.data_ptr(), s.width, 2 * s.width);
    gate.b = first->matrix(2 * e);
    gate.b_packed = true;
    gates.push_back(gate);
    Gemm out = s.problem(e, h, s.width, y_RD.data_ptr(), s.hidden, s.hidden);
    out.b = second->matrix(e);
    out.b_packed = true;
    downs.push_back(out);
  }
  const int used = cpu::threads_for(s.flops(), team);
  const std::vector<Block> gate_blocks = cpu::plan(gates, used);
  const std::vector<Block> down_blocks = cpu::plan(downs, used);
  const Phase phases[] = {
      over(gate_blocks,
           [&](const Block& block) {
             Gemm gate = gates[static_cast<size_t>(block.problem)];
             cpu::run_block(gate, block);
             auto* out = static_cast<char*>(gate.c);
             gate.b = first->matrix(2 * block.problem + 1);
             gate.c = out + s.width * s.size;
             cpu::run_block(gate, block);
             const int64_t cols = block.col_end - block.col_begin;
             for (int64_t r = block.row_begin; r < block.row_end; ++r) {
               const char* row = out + (2 * r * s.width + block.col_begin) * s.size;
               const int64_t at = (s.begin(block.problem) + r) * s.width + block.col_begin;
               cpu::pointwise_kernels().silu_mul(row, row + s.width * s.size, h + at * s.size,
                                                 s.type, cols);
             }
           }),
      over(down_blocks,
           [&](const Block& block) {
             cpu::run_block(downs[static_cast<size_t>(block.problem)], block);
           }),
  };
  cpu::run_phases(phases, used);
}

void backward(const Experts& s, const at::Tensor& x_RD, const at::Tensor& gate_up_R2F,
              const at::Tensor& dy_RD, Param& gate_up, Param& down, at::Tensor& dx_RD) {
  at::Tensor d_gate_up_R2F = cpu::empty({s.rows, 2 * s.width}, x_RD.scalar_type());
  at::Tensor h_RF = cpu::empty({s.rows, s.width}, x_RD.scalar_type());
  auto* h = static_cast<char*>(h_RF.data_ptr());
  auto* d_gate_up = static_cast<char*>(d_gate_up_R2F.data_ptr());
  const auto* pre = static_cast<const char*>(gate_up_R2F.const_data_ptr());
  const auto* dy = static_cast<const char*>(dy_RD.const_data_ptr());
  const auto* x = static_cast<const char*>(x_RD.const_data_ptr());
  const auto* w1 = static_cast<const char*>(gate_up.value.const_data_ptr());
  const auto* w2 = static_cast<const char*>(down.value.const_data_ptr());

  std::vector<Gemm> dhs;
  std::vector<Gemm> rest;
  for (int64_t e = 0; e < s.experts; ++e) {
    const int64_t first = s.begin(e);
    Gemm dh = s.problem(e, dy, s.hidden, h, s.width, s.width);
    dh.b = w2 + e * s.hidden * s.width * s.size;
    dh.b_row = s.width;
    dhs.push_back(dh);
    if (dx_RD.defined()) {
      Gemm dx = s.problem(e, d_gate_up, 2 * s.width, dx_RD.data_ptr(), s.hidden, s.hidden);
      dx.b = w1 + e * 2 * s.width * s.hidden * s.size;
      dx.b_row = s.hidden;
      rest.push_back(dx);
    }
    if (s.count(e) == 0) continue;
    // Gradients of weights: k runs over the expert's rows, in order.
    const auto add_weight = [&](const char* left, int64_t m, const char* right, int64_t n,
                                float* grad) {
      Gemm g{.m = m, .n = n, .k = s.count(e), .compute = s.type};
      g.a = left + first * m * s.size;
      g.a_type = s.type;
      g.a_row = 1;
      g.a_col = m;
      g.b = right + first * n * s.size;
      g.b_type = s.type;
      g.b_row = n;
      g.c = grad + e * m * n;
      g.c_row = n;
      g.accumulate = true;
      rest.push_back(g);
    };
    if (down.grad.defined()) {
      add_weight(dy, s.hidden, h, s.width, down.grad.mutable_data_ptr<float>());
    }
    if (gate_up.grad.defined()) {
      add_weight(d_gate_up, 2 * s.width, x, s.hidden, gate_up.grad.mutable_data_ptr<float>());
    }
  }
  const int used = cpu::threads_for(2 * s.flops(), threads());
  const std::vector<Block> dh_blocks = cpu::plan(dhs, used);
  const std::vector<Block> rest_blocks = cpu::plan(rest, used);
  const Phase phases[] = {
      over(dh_blocks,
           [&](const Block& block) {
             cpu::run_block(dhs[static_cast<size_t>(block.problem)], block);
             for (int64_t r = block.row_begin; r < block.row_end; ++r) {
               const int64_t row = s.begin(block.problem) + r;
               const int64_t pair = (2 * row * s.width + block.col_begin) * s.size;
               char* dh = h + (row * s.width + block.col_begin) * s.size;
               cpu::pointwise_kernels().silu_mul_backward(pre + pair, pre + pair + s.width * s.size,
                                                          dh, d_gate_up + pair,
                                                          d_gate_up + pair + s.width * s.size, dh,
                                                          s.type, block.col_end - block.col_begin);
             }
           }),
      over(rest_blocks,
           [&](const Block& block) {
             cpu::run_block(rest[static_cast<size_t>(block.problem)], block);
           }),
  };
  cpu::run_phases(phases, used);
}

}  // namespace

at::Tensor grouped_mlp(const at::Tensor& x_RD, const at::Tensor& offsets_E1,
                       const ParamPtr& gate_up_E2FD, const ParamPtr& down_EDF) {
  const at::Tensor x = cpu::plain(x_RD);
  const at::Tensor offsets = cpu::plain(offsets_E1);
  const Experts shape = describe(x, offsets, gate_up_E2FD, down_EDF);
  at::Tensor gate_up_R2F = cpu::empty({shape.rows, 2 * shape.width}, x.scalar_type());
  at::Tensor y_RD = cpu::empty({shape.rows, shape.hidden}, x.scalar_type());
  forward(shape, x, *gate_up_E2FD, *down_EDF, gate_up_R2F, y_RD);
  clear_unowned(shape, y_RD);
  if (wants_node({x_RD}, {gate_up_E2FD, down_EDF})) {
    const bool needs_dx = x_RD.requires_grad();
    record("grouped_mlp", {x_RD}, {y_RD}, [=](const auto& grads) {
      at::Tensor dx_RD;
      if (needs_dx) dx_RD = cpu::empty(x.sizes(), x.scalar_type());
      const Experts experts = describe(x, offsets, gate_up_E2FD, down_EDF);
      backward(experts, x, gate_up_R2F, cpu::plain(grads[0]), *gate_up_E2FD, *down_EDF, dx_RD);
      if (needs_dx) clear_unowned(experts, dx_RD);
      return std::vector<at::Tensor>{dx_RD};
    });
  }
  return y_RD;
}

}  // namespace quadrille::tensor
