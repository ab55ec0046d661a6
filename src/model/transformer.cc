#include "model/transformer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <map>
#include <utility>

#include "base/error.h"
#include "model/blocks.h"
#include "model/layout.h"
#include "model/recompute.h"
#include "model/rope.h"
#include "tensor/ops.h"

namespace quadrille::model {

using tensor::Param;
using tensor::ParamPtr;

namespace {

// Where forward stands between two blocks: the residual stream, and its norm for the block to come.
// One pass computes both (add_rms_norm), which is why a block ends with the norm of the next.
struct Seam {
  at::Tensor x_TD;
  at::Tensor normed_TD;
};

struct Layer {
  std::unique_ptr<Attention> attention;
  std::unique_ptr<FeedForward> feed_forward;
  ParamPtr attention_norm;
  ParamPtr ffn_norm;
  ParamPtr next_norm;  // Of the layer after it, or the model's last.
  int64_t moe_index = -1;
};

}  // namespace

struct Transformer::Impl {
  ModelConfig config;
  at::ScalarType dtype;
  at::Device device;
  std::vector<ParameterPlan> plans;
  std::vector<ParamPtr> parameters;
  ParamPtr embed, norm, head;
  std::vector<Layer> layers;
  bool recompute = false;
  bool gradients = false;
  // Grows with the longest sequence seen: the full table of a long-context model is large and
  // rarely needed.
  tensor::RopeTable rope;

  Impl(ModelConfig given, at::ScalarType compute, at::Device where)
      : config(std::move(given)), dtype(compute), device(where) {
    config.validate();
    QD_CHECK(dtype == at::kFloat || dtype == at::kBFloat16, "compute dtype {}",
             c10::toString(dtype));
    plans = plan_parameters(config);
    std::map<std::string, ParamPtr> by_name;
    for (const auto& plan : plans) {
      auto param = std::make_shared<Param>();
      param->name = plan.name;
      param->value =
          at::empty(plan.shape,
                    at::TensorOptions().dtype(plan.held_fp32 ? at::kFloat : dtype).device(device));
      parameters.push_back(param);
      QD_CHECK(by_name.emplace(plan.name, param).second, "two parameters named {}", plan.name);
    }
    embed = by_name.at("embed");
    norm = by_name.at("norm");
    head = config.tied ? embed : by_name.at("head");

    const auto moe_index = config.moe_index();
    for (size_t l = 0; l < config.layers.size(); ++l) {
      const LayerParams params = [&](const std::string& name) -> ParamPtr {
        const auto found = by_name.find(fmt::format("layers.{}.{}", l, name));
        return found == by_name.end() ? nullptr : found->second;
      };
      Layer layer;
      const auto index = static_cast<int64_t>(l);
      layer.attention = make_attention(config, index, params);
      layer.feed_forward = make_feed_forward(config, index, params);
      layer.attention_norm = params("attention_norm");
      layer.ffn_norm = params("ffn_norm");
      layer.moe_index = moe_index[l];
      layers.push_back(std::move(layer));
    }
    for (size_t l = 0; l < layers.size(); ++l) {
      layers[l].next_norm = l + 1 < layers.size() ? layers[l + 1].attention_norm : norm;
    }
  }

  void ensure_rope(const Batch& batch) {
    int64_t needed = batch.max_seqlen;
    if (batch.paged != nullptr) {
      needed = std::max(needed, batch.paged->block_table_SP.size(1) * tensor::kPageTokens);
    }
    const int64_t have = rope.cos.defined() ? rope.cos.size(0) : 0;
    if (needed <= have) return;
    int64_t size = std::max<int64_t>(have, 1024);
    while (size < needed) size *= 2;
    rope = make_rope_table(config.rope, config.rope_dim(), size, device);
  }

  Seam run_layer(const Layer& layer, const Seam& in, const BlockContext& context,
                 const at::Tensor& replay_TK, Routed* routed) const {
    const at::Tensor mixed = layer.attention->forward(in.normed_TD, context);
    const auto [x, h] = tensor::add_rms_norm(mixed, in.x_TD, layer.ffn_norm, config.norm_eps);
    const at::Tensor fed = layer.feed_forward->forward(h, replay_TK, routed);
    auto [next_x, next_h] = tensor::add_rms_norm(fed, x, layer.next_norm, config.norm_eps);
    return {std::move(next_x), std::move(next_h)};
  }

  // The same layer, of which only x survives until backward. Router logits are an output like the
  // others, since a loss may hang on them.
  Seam run_layer_again(const Layer& layer, const Seam& in, const Batch& batch,
                       const at::Tensor& replay_TK, Routed* routed) const {
    const auto chosen = std::make_shared<at::Tensor>(replay_TK);
    const bool with_logits = routed != nullptr && layer.moe_index >= 0;
    Stretch stretch;
    stretch.norm = [this, &layer](const at::Tensor& x) {
      return tensor::rms_norm(x, layer.attention_norm, config.norm_eps);
    };
    // The batch is copied (its tensors are shared): backward may outlive the caller's.
    stretch.run = [this, &layer, batch, chosen, with_logits](const at::Tensor& x,
                                                             const at::Tensor& normed, bool again) {
      Routed here;
      const Seam out = run_layer(layer, {x, normed}, {batch, rope}, *chosen, &here);
      if (!again && here.ids_TK.defined()) *chosen = here.ids_TK;
      std::vector<at::Tensor> outputs = {out.x_TD, out.normed_TD};
      if (with_logits) outputs.push_back(here.logits_TE);
      return outputs;
    };
    const auto outputs = recompute_in_backward(in.x_TD, in.normed_TD, std::move(stretch));
    if (with_logits) *routed = {*chosen, outputs[2]};
    return {outputs[0], outputs[1]};
  }
};

Transformer::Transformer(ModelConfig config, at::ScalarType dtype, at::Device device)
    : impl_(std::make_unique<Impl>(std::move(config), dtype, device)) {}
Transformer::~Transformer() = default;

at::Tensor Transformer::forward(const Batch& batch, ForwardExtras* extras) const {
  Impl& m = *impl_;
  QD_CHECK(batch.tokens_T.scalar_type() == at::kLong &&
               batch.positions_T.scalar_type() == at::kLong &&
               batch.cu_seqlens_S1.scalar_type() == at::kInt,
           "tokens and positions are int64, cu_seqlens int32");
  const bool with_graph = m.gradients && at::GradMode::is_enabled();
  QD_CHECK(batch.paged == nullptr || !with_graph,
           "paged attention has no gradient: disable it to generate");
  m.ensure_rope(batch);

  at::Tensor replay_LTK;
  if (batch.replay_TLK.defined()) {
    QD_CHECK(batch.replay_TLK.size(0) == batch.tokens_T.size(0) &&
                 batch.replay_TLK.size(1) == m.config.moe_layers() &&
                 batch.replay_TLK.size(2) == m.config.top_k,
             "replay is [T, moe_layers, K]");
    replay_LTK = batch.replay_TLK.transpose(0, 1).contiguous();
  }
  const bool tell = extras != nullptr && (extras->want_routes || extras->want_router_logits);
  if (extras != nullptr) {
    extras->routes_TK.clear();
    extras->router_logits_TE.clear();
  }

  Seam seam;
  seam.x_TD = tensor::embedding(batch.tokens_T, m.embed);
  seam.normed_TD = tensor::rms_norm(seam.x_TD, m.layers[0].attention_norm, m.config.norm_eps);
  const BlockContext context{batch, m.rope};
  for (const Layer& layer : m.layers) {
    const bool moe = layer.moe_index >= 0;
    at::Tensor replay_TK;
    if (moe && replay_LTK.defined()) replay_TK = replay_LTK.select(0, layer.moe_index);
    Routed routed;
    Routed* ask = tell && moe ? &routed : nullptr;
    seam = m.recompute && with_graph ? m.run_layer_again(layer, seam, batch, replay_TK, ask)
                                     : m.run_layer(layer, seam, context, replay_TK, ask);
    if (ask != nullptr && extras->want_routes) extras->routes_TK.push_back(routed.ids_TK);
    if (ask != nullptr && extras->want_router_logits)
      extras->router_logits_TE.push_back(routed.logits_TE);
  }
  return seam.normed_TD;
}

const ModelConfig& Transformer::config() const {
  return impl_->config;
}
at::ScalarType Transformer::dtype() const {
  return impl_->dtype;
}
at::Device Transformer::device() const {
  return impl_->device;
}
const std::vector<ParamPtr>& Transformer::parameters() const {
  return impl_->parameters;
}
const std::vector<ParameterPlan>& Transformer::plans() const {
  return impl_->plans;
}
const ParamPtr& Transformer::head() const {
  return impl_->head;
}

tensor::KvShape Transformer::kv_shape() const {
  const ModelConfig& c = impl_->config;
  return {static_cast<int64_t>(c.layers.size()), c.kv_heads, c.key_dim(), c.value_dim()};
}

void Transformer::enable_gradients() {
  for (size_t i = 0; i < impl_->parameters.size(); ++i) {
    if (!impl_->plans[i].trainable) continue;
    Param& param = *impl_->parameters[i];
    param.grad = at::zeros(param.value.sizes(), param.value.options().dtype(at::kFloat));
  }
  impl_->gradients = true;
}

void Transformer::zero_gradients() {
  for (const auto& param : impl_->parameters) {
    if (param->grad.defined()) param->grad.zero_();
  }
}

bool Transformer::gradients_enabled() const {
  return impl_->gradients;
}
void Transformer::set_recompute(bool recompute) {
  impl_->recompute = recompute;
}

int64_t Transformer::parameter_count() const {
  int64_t count = 0;
  for (size_t i = 0; i < impl_->plans.size(); ++i) {
    if (impl_->plans[i].trainable) count += impl_->parameters[i]->value.numel();
  }
  return count;
}

int64_t Transformer::active_parameter_count() const {
  int64_t count = 0;
  for (size_t i = 0; i < impl_->plans.size(); ++i) {
    const auto& plan = impl_->plans[i];
    const int64_t size = impl_->parameters[i]->value.numel();
    if (plan.trainable)
      count += plan.by_expert ? size / impl_->config.experts * impl_->config.top_k : size;
  }
  return count;
}

}  // namespace quadrille::model
