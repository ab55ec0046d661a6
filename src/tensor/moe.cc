// Routing, and the local dispatch and combine around the experts.
#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>

#include <vector>

#include "tensor/args.h"
#include "tensor/autograd.h"
#include "tensor/cpu/route.h"
#include "tensor/ops.h"

namespace quadrille::tensor {
namespace {

using Grads = std::vector<at::Tensor>;

void check_ids(const at::Tensor& ids_TK, int64_t experts) {
  const int32_t* ids = data<const int32_t>(ids_TK);
  for (int64_t i = 0; i < ids_TK.numel(); ++i) {
    QD_CHECK(ids[i] >= -1 && ids[i] < experts, "assignment {}: expert {} of {}", i, ids[i],
             experts);
  }
}

}  // namespace

Routes route(const at::Tensor& logits_TE, const RouterSpec& spec, const at::Tensor& replay_TK) {
  cpu::RouteShape shape;
  shape.tokens = logits_TE.size(0);
  shape.experts = logits_TE.size(1);
  shape.top_k = spec.top_k;
  shape.sigmoid = spec.score == RouterScore::kSigmoid;
  shape.normalize = spec.normalize;
  shape.normalize_eps = static_cast<float>(spec.normalize_eps);
  shape.scaling = static_cast<float>(spec.scaling);
  shape.groups = spec.groups;
  shape.groups_kept = spec.groups_kept;
  QD_CHECK(spec.top_k >= 1 && spec.top_k <= shape.experts, "top {} of {} experts", spec.top_k,
           shape.experts);
  QD_CHECK(spec.groups >= 1 && shape.experts % spec.groups == 0 && spec.groups_kept >= 1 &&
               spec.groups_kept <= spec.groups &&
               spec.groups_kept * (shape.experts / spec.groups) >= spec.top_k,
           "{} experts in {} groups, {} kept, top {}", shape.experts, spec.groups, spec.groups_kept,
           spec.top_k);
  QD_CHECK(!spec.selection_bias_E.defined() || spec.selection_bias_E.numel() == shape.experts,
           "selection bias of {} for {} experts", spec.selection_bias_E.numel(), shape.experts);
  if (replay_TK.defined()) {
    QD_CHECK(replay_TK.size(0) == shape.tokens && replay_TK.size(1) == shape.top_k,
             "replay is [{}, {}], need [{}, {}]", replay_TK.size(0), replay_TK.size(1),
             shape.tokens, shape.top_k);
    check_ids(replay_TK, shape.experts);
  }
  const at::Tensor logits = cpu::plain(logits_TE);
  Routes routes{cpu::empty({shape.tokens, shape.top_k}, at::kInt),
                cpu::empty({shape.tokens, shape.top_k}, logits.scalar_type())};
  cpu::route_forward(shape, data<const float>(logits), data<const float>(spec.selection_bias_E),
                     data<const int32_t>(replay_TK), data<int32_t>(routes.ids_TK),
                     data<float>(routes.weights_TK));
  if (wants_node({logits_TE}, {})) {
    record("route", {logits_TE}, {routes.weights_TK},
           [logits, ids = routes.ids_TK, shape](const Grads& grads) {
             at::Tensor dlogits = cpu::empty(logits.sizes(), logits.scalar_type());
             const at::Tensor dweights = grads[0].contiguous();
             cpu::route_backward(shape, data<const float>(logits), data<const int32_t>(ids),
                                 data<const float>(dweights), data<float>(dlogits));
             return Grads{dlogits};
           });
  }
  return routes;
}

Dispatched dispatch_local(const at::Tensor& x_TD, const at::Tensor& ids_TK, int64_t experts) {
  const int64_t tokens = x_TD.size(0);
  const int64_t cols = x_TD.size(1);
  const int64_t top_k = ids_TK.size(1);
  QD_CHECK(ids_TK.size(0) == tokens, "{} rows of ids for {} tokens", ids_TK.size(0), tokens);
  const at::Tensor x = cpu::plain(x_TD);
  Dispatched out{cpu::empty({tokens * top_k, cols}, x.scalar_type()),
                 cpu::empty({experts + 1}, at::kLong), cpu::empty({tokens, top_k}, at::kLong)};
  const int64_t wrong =
      cpu::dispatch_plan(data<const int32_t>(ids_TK), tokens * top_k, experts,
                         data<int64_t>(out.offsets_E1), data<int64_t>(out.row_of_TK));
  QD_CHECK(wrong < 0, "assignment {}: expert {} of {}", wrong, data<const int32_t>(ids_TK)[wrong],
           experts);
  by_dtype(x.scalar_type(), [&](auto t) {
    using T = decltype(t);
    cpu::dispatch_forward(data<const T>(x), data<const int64_t>(out.row_of_TK), tokens, top_k, cols,
                          data<const int64_t>(out.offsets_E1)[experts], data<T>(out.x_RD));
  });
  if (wants_node({x_TD}, {})) {
    record("dispatch_local", {x_TD}, {out.x_RD},
           [row_of = out.row_of_TK, tokens, top_k, cols](const Grads& grads) {
             const at::Tensor drows = grads[0].contiguous();
             at::Tensor dx = cpu::empty({tokens, cols}, drows.scalar_type());
             by_dtype(drows.scalar_type(), [&](auto t) {
               using T = decltype(t);
               cpu::dispatch_backward(data<const T>(drows), data<const int64_t>(row_of), tokens,
                                      top_k, cols, data<T>(dx));
             });
             return Grads{dx};
           });
  }
  return out;
}

at::Tensor combine_local(const at::Tensor& y_RD, const at::Tensor& row_of_TK,
                         const at::Tensor& weights_TK) {
  const int64_t tokens = row_of_TK.size(0);
  const int64_t top_k = row_of_TK.size(1);
  const int64_t cols = y_RD.size(1);
  QD_CHECK(weights_TK.size(0) == tokens && weights_TK.size(1) == top_k,
           "weights [{}, {}], rows [{}, {}]", weights_TK.size(0), weights_TK.size(1), tokens,
           top_k);
  const int64_t* row_of = data<const int64_t>(row_of_TK);
  int64_t named = 0;
  for (int64_t i = 0; i < tokens * top_k; ++i) {
    QD_CHECK(row_of[i] >= -1 && row_of[i] < y_RD.size(0), "assignment {}: row {} of {}", i,
             row_of[i], y_RD.size(0));
    named += row_of[i] >= 0 ? 1 : 0;
  }
  const at::Tensor y = cpu::plain(y_RD);
  const at::Tensor weights = cpu::plain(weights_TK);
  at::Tensor out = cpu::empty({tokens, cols}, y.scalar_type());
  by_dtype(y.scalar_type(), [&](auto t) {
    using T = decltype(t);
    cpu::combine_forward(data<const T>(y), row_of, data<const float>(weights), tokens, top_k, cols,
                         data<T>(out));
  });
  if (wants_node({y_RD, weights_TK}, {})) {
    const bool all_named = named == y.size(0);
    record("combine_local", {y_RD, weights_TK}, {out},
           [y, weights, row_of_TK, tokens, top_k, cols, all_named, want_dy = y_RD.requires_grad(),
            want_dw = weights_TK.requires_grad()](const Grads& grads) {
             const at::Tensor dout = grads[0].contiguous();
             at::Tensor dy;
             at::Tensor dweights;
             if (want_dy)
               dy = all_named ? cpu::empty(y.sizes(), y.scalar_type())
                              : at::zeros(y.sizes(), y.options());
             if (want_dw) dweights = cpu::empty(weights.sizes(), weights.scalar_type());
             by_dtype(y.scalar_type(), [&](auto t) {
               using T = decltype(t);
               cpu::combine_backward(data<const T>(dout), data<const T>(y),
                                     data<const int64_t>(row_of_TK), data<const float>(weights),
                                     tokens, top_k, cols, data<T>(dy), data<float>(dweights));
             });
             return Grads{dy, dweights};
           });
  }
  return out;
}

at::Tensor expert_counts(const at::Tensor& ids_TK, int64_t experts) {
  check_ids(ids_TK, experts);
  at::Tensor counts = at::zeros({experts}, ids_TK.options().dtype(at::kLong));
  int64_t* count = data<int64_t>(counts);
  const int32_t* ids = data<const int32_t>(ids_TK);
  for (int64_t i = 0; i < ids_TK.numel(); ++i) {
    if (ids[i] >= 0) ++count[ids[i]];
  }
  return counts;
}

}  // namespace quadrille::tensor
