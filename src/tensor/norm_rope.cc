// RMSNorm and the way from the fused q/k/v projection to rotated heads.
#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

#include "tensor/args.h"
#include "tensor/autograd.h"
#include "tensor/cpu/norm.h"
#include "tensor/ops.h"

namespace quadrille::tensor {
namespace {

using Grads = std::vector<at::Tensor>;

at::Tensor like(const at::Tensor& x) {
  return cpu::empty(x.sizes(), x.scalar_type());
}

// Gradient of the normalised x; dsum is what flows into x besides the norm.
at::Tensor norm_backward(const at::Tensor& dy, const at::Tensor& dsum, const at::Tensor& x,
                         const at::Tensor& rstd, const ParamPtr& weight, bool want_dx) {
  if (!dy.defined()) return dsum;
  at::Tensor dx = want_dx ? like(x) : at::Tensor();
  const int64_t cols = x.size(-1);
  const at::Tensor dy_c = dy.contiguous();
  const at::Tensor dsum_c = dsum.defined() ? dsum.contiguous() : dsum;
  by_dtype(x.scalar_type(), [&](auto t) {
    using T = decltype(t);
    cpu::rms_norm_backward(data<const T>(dy_c), data<const T>(dsum_c), data<const T>(x),
                           data<const T>(weight->value), data<const float>(rstd),
                           cols == 0 ? 0 : x.numel() / cols, cols, data<T>(dx),
                           data<float>(weight->grad));
  });
  return dx;
}

// sum is x itself without a residual; rstd only where a backward will need it.
struct Normed {
  at::Tensor sum;
  at::Tensor y;
  at::Tensor rstd;
};
Normed norm_forward(const at::Tensor& x_in, const at::Tensor& residual_in, const ParamPtr& weight,
                    double eps, bool want_rstd) {
  const int64_t cols = x_in.size(-1);
  QD_CHECK(weight->value.numel() == cols, "norm weight {} has {} numbers, rows have {}",
           weight->name, weight->value.numel(), cols);
  const at::Tensor x = cpu::plain(x_in);
  const at::Tensor residual = residual_in.defined() ? cpu::plain(residual_in) : at::Tensor();
  QD_CHECK(!residual.defined() || residual.sizes() == x.sizes(), "residual and x differ in shape");
  const int64_t rows = cols == 0 ? 0 : x.numel() / cols;
  Normed out{residual.defined() ? like(x) : x, like(x), {}};
  if (want_rstd) out.rstd = cpu::empty({rows}, at::kFloat);
  by_dtype(x.scalar_type(), [&](auto t) {
    using T = decltype(t);
    cpu::rms_norm_forward(data<const T>(x), data<const T>(residual), data<const T>(weight->value),
                          rows, cols, static_cast<float>(eps),
                          residual.defined() ? data<T>(out.sum) : nullptr, data<T>(out.y),
                          data<float>(out.rstd));
  });
  return out;
}

}  // namespace

at::Tensor rms_norm(const at::Tensor& x_TD, const ParamPtr& weight_D, double eps) {
  const bool node = wants_node({x_TD}, {weight_D});
  const Normed out = norm_forward(x_TD, {}, weight_D, eps, node);
  if (node) {
    record("rms_norm", {x_TD}, {out.y},
           [x = out.sum, rstd = out.rstd, weight_D,
            want_dx = x_TD.requires_grad()](const Grads& grads) {
             return Grads{norm_backward(grads[0], {}, x, rstd, weight_D, want_dx)};
           });
  }
  return out.y;
}

std::pair<at::Tensor, at::Tensor> add_rms_norm(const at::Tensor& x_TD,
                                               const at::Tensor& residual_TD,
                                               const ParamPtr& weight_D, double eps) {
  const bool node = wants_node({x_TD, residual_TD}, {weight_D});
  const Normed out = norm_forward(x_TD, residual_TD, weight_D, eps, node);
  if (node) {
    const bool want_dx = x_TD.requires_grad() || residual_TD.requires_grad();
    record("add_rms_norm", {x_TD, residual_TD}, {out.sum, out.y},
           [sum = out.sum.detach(), rstd = out.rstd, weight_D, want_dx](const Grads& grads) {
             const at::Tensor dx = norm_backward(grads[1], grads[0], sum, rstd, weight_D, want_dx);
             return Grads{dx, dx};
           });
  }
  return {out.sum, out.y};
}

namespace {

cpu::RopeRows rows_of(const RopeTable& rope, const at::Tensor& positions_T) {
  return {data<const float>(rope.cos), data<const float>(rope.sin),
          data<const int64_t>(positions_T)};
}

void check_rope(const RopeTable& rope, const at::Tensor& positions_T, int64_t dim, int64_t tokens) {
  QD_CHECK(rope.cos.size(-1) * 2 == dim, "rope table rotates {} numbers, heads have {}",
           rope.cos.size(-1) * 2, dim);
  QD_CHECK(positions_T.numel() == tokens, "{} positions for {} tokens", positions_T.numel(),
           tokens);
  const int64_t* positions = data<const int64_t>(positions_T);
  for (int64_t t = 0; t < tokens; ++t) {
    QD_CHECK(positions[t] >= 0 && positions[t] < rope.cos.size(0),
             "position {} of token {}; the table has {}", positions[t], t, rope.cos.size(0));
  }
}

}  // namespace

Qkv prepare_qkv(const at::Tensor& qkv_TC, const QkvSpec& spec, const RopeTable& rope,
                const at::Tensor& positions_T) {
  cpu::QkvShape shape;
  shape.tokens = qkv_TC.size(0);
  shape.heads = spec.heads;
  shape.kv_heads = spec.kv_heads;
  shape.head_dim = spec.head_dim;
  shape.eps = static_cast<float>(spec.norm_eps);
  shape.clip = static_cast<float>(spec.clip);
  shape.interleaved = rope.interleaved;
  if (spec.norm != QkNorm::kNone) {
    const bool whole = spec.norm == QkNorm::kWhole;
    shape.norm_heads_q = whole ? spec.heads : 1;
    shape.norm_heads_k = whole ? spec.kv_heads : 1;
    QD_CHECK(spec.q_norm && spec.k_norm, "q/k norm without weights");
    QD_CHECK(spec.q_norm->value.numel() == shape.norm_heads_q * spec.head_dim &&
                 spec.k_norm->value.numel() == shape.norm_heads_k * spec.head_dim,
             "q/k norm weights have {} and {} numbers", spec.q_norm->value.numel(),
             spec.k_norm->value.numel());
  }
  QD_CHECK(qkv_TC.dim() == 2 && qkv_TC.size(1) == (spec.heads + 2 * spec.kv_heads) * spec.head_dim,
           "qkv has {} columns, need ({} + 2 * {}) * {}", qkv_TC.size(1), spec.heads, spec.kv_heads,
           spec.head_dim);
  check_rope(rope, positions_T, spec.head_dim, shape.tokens);

  const at::Tensor qkv = cpu::plain(qkv_TC);
  const at::ScalarType dtype = qkv.scalar_type();
  Qkv out{cpu::empty({shape.tokens, spec.heads, spec.head_dim}, dtype),
          cpu::empty({shape.tokens, spec.kv_heads, spec.head_dim}, dtype),
          cpu::empty({shape.tokens, spec.kv_heads, spec.head_dim}, dtype)};
  const bool norm = spec.norm != QkNorm::kNone;
  const ParamPtr q_norm = norm ? spec.q_norm : nullptr;
  const ParamPtr k_norm = norm ? spec.k_norm : nullptr;
  by_dtype(qkv.scalar_type(), [&](auto t) {
    using T = decltype(t);
    cpu::prepare_qkv_forward(shape, rows_of(rope, positions_T), data<const T>(qkv),
                             norm ? data<const T>(q_norm->value) : nullptr,
                             norm ? data<const T>(k_norm->value) : nullptr, data<T>(out.q_THd),
                             data<T>(out.k_TGd), data<T>(out.v_TGd));
  });
  if (wants_node({qkv_TC}, {q_norm, k_norm})) {
    record("prepare_qkv", {qkv_TC}, {out.q_THd, out.k_TGd, out.v_TGd},
           [qkv, shape, q_norm, k_norm, rope, positions_T](const Grads& grads) {
             at::Tensor dqkv = like(qkv);
             Grads dy;
             for (const at::Tensor& grad : grads)
               dy.push_back(grad.defined() ? grad.contiguous() : grad);
             by_dtype(qkv.scalar_type(), [&](auto t) {
               using T = decltype(t);
               cpu::prepare_qkv_backward(shape, rows_of(rope, positions_T), data<const T>(qkv),
                                         q_norm ? data<const T>(q_norm->value) : nullptr,
                                         k_norm ? data<const T>(k_norm->value) : nullptr,
                                         data<const T>(dy[0]), data<const T>(dy[1]),
                                         data<const T>(dy[2]), data<T>(dqkv),
                                         q_norm ? data<float>(q_norm->grad) : nullptr,
                                         k_norm ? data<float>(k_norm->grad) : nullptr);
             });
             return Grads{dqkv};
           });
  }
  return out;
}

at::Tensor apply_rope(const at::Tensor& x_THr, const RopeTable& rope,
                      const at::Tensor& positions_T) {
  check_rope(rope, positions_T, x_THr.size(2), x_THr.size(0));
  const auto rotate = [rope, positions_T](const at::Tensor& x, bool back) {
    at::Tensor y = like(x);
    by_dtype(x.scalar_type(), [&](auto t) {
      using T = decltype(t);
      cpu::rope(rows_of(rope, positions_T), data<const T>(x), x.size(0), x.size(1), x.size(2),
                rope.interleaved, back, data<T>(y));
    });
    return y;
  };
  at::Tensor y = rotate(cpu::plain(x_THr), false);
  if (wants_node({x_THr}, {})) {
    record("apply_rope", {x_THr}, {y},
           [rotate](const Grads& grads) { return Grads{rotate(grads[0].contiguous(), true)}; });
  }
  return y;
}

}  // namespace quadrille::tensor
