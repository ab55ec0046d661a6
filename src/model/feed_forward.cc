// The second half of a layer: a dense gated MLP, or a mixture of experts.
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/sigmoid.h>

#include <cmath>

#include "base/error.h"
#include "model/blocks.h"
#include "tensor/autograd.h"

namespace quadrille::model {
namespace {

using tensor::ParamPtr;

// Sigmoid of one number a token. libtorch's takes vectors of numbers at a time and the rest one by
// one, with another exp, so a token's gate would depend on where in the batch it stands.
at::Tensor token_gate(const at::Tensor& x_T1) {
  if (!x_T1.is_cpu()) return at::sigmoid(x_T1);
  at::Tensor gate_T1;
  {
    const at::NoGradGuard no_grad;
    const at::Tensor x = x_T1.to(at::kFloat).contiguous();
    at::Tensor gate = at::empty_like(x);
    const float* in = x.const_data_ptr<float>();
    float* out = gate.mutable_data_ptr<float>();
    for (int64_t i = 0; i < x.numel(); ++i) out[i] = 1 / (1 + std::exp(-in[i]));
    gate_T1 = gate.to(x_T1.scalar_type());
  }
  if (tensor::wants_node({x_T1}, {})) {
    tensor::record("token_gate", {x_T1}, {gate_T1}, [gate = gate_T1.detach()](const auto& grads) {
      return std::vector<at::Tensor>{grads[0].mul(gate).mul(gate.neg().add(1))};
    });
  }
  return gate_T1;
}

struct GatedMlp {
  ParamPtr gate_up, gate_up_bias, down, down_bias;

  at::Tensor operator()(const at::Tensor& h_TD) const {
    return tensor::linear(tensor::silu_mul(tensor::linear(h_TD, gate_up, gate_up_bias)), down,
                          down_bias);
  }
};

class DenseMlp final : public FeedForward {
 public:
  explicit DenseMlp(const LayerParams& params)
      : mlp_{params("mlp.gate_up"), params("mlp.gate_up_bias"), params("mlp.down"),
             params("mlp.down_bias")} {}

  at::Tensor forward(const at::Tensor& h_TD, const at::Tensor&, Routed*) const override {
    return mlp_(h_TD);
  }

 private:
  GatedMlp mlp_;
};

class Mixture final : public FeedForward {
 public:
  Mixture(const ModelConfig& config, const LayerParams& params)
      : experts_(config.experts),
        router_fp32_(config.router_fp32),
        weights_stay_fp32_(config.weights_stay_fp32),
        shared_kind_(config.shared),
        router_(params("moe.router")),
        gate_up_(params("moe.gate_up")),
        down_(params("moe.down")),
        shared_{params("moe.shared_gate_up"), nullptr, params("moe.shared_down"), nullptr},
        shared_gate_(params("moe.shared_gate")),
        selection_bias_(params("moe.selection_bias")) {
    spec_.score = config.router == RouterKind::kSoftmax ? tensor::RouterScore::kSoftmax
                                                        : tensor::RouterScore::kSigmoid;
    spec_.top_k = config.top_k;
    spec_.normalize = config.norm_topk;
    spec_.normalize_eps = config.norm_topk_eps;
    spec_.scaling = config.routed_scaling;
    spec_.groups = config.expert_groups;
    spec_.groups_kept = config.expert_groups_kept;
  }

  at::Tensor forward(const at::Tensor& h_TD, const at::Tensor& replay_TK,
                     Routed* routed) const override {
    const at::Tensor logits_TE = router_fp32_ ? tensor::linear_fp32(h_TD, router_)
                                              : tensor::linear(h_TD, router_).to(at::kFloat);
    tensor::RouterSpec spec = spec_;
    // Read at each call: the trainer moves it between steps.
    if (selection_bias_) spec.selection_bias_E = selection_bias_->value;
    auto [ids_TK, weights_TK] = tensor::route(logits_TE, spec, replay_TK);
    if (routed != nullptr) *routed = {ids_TK, logits_TE};
    if (!weights_stay_fp32_ && h_TD.scalar_type() != at::kFloat) {
      weights_TK = weights_TK.to(h_TD.scalar_type()).to(at::kFloat);
    }
    const auto rows = tensor::dispatch_local(h_TD, ids_TK, experts_);
    const at::Tensor y_RD = tensor::grouped_mlp(rows.x_RD, rows.offsets_E1, gate_up_, down_);
    const at::Tensor y_TD = tensor::combine_local(y_RD, rows.row_of_TK, weights_TK);
    switch (shared_kind_) {
      case SharedExpert::kNone:
        return y_TD;
      case SharedExpert::kPlain:
        return at::add(y_TD, shared_(h_TD));
      case SharedExpert::kGated:
        return at::add(y_TD, token_gate(tensor::linear(h_TD, shared_gate_)).mul(shared_(h_TD)));
    }
    return y_TD;
  }

 private:
  int64_t experts_;
  bool router_fp32_;
  bool weights_stay_fp32_;
  SharedExpert shared_kind_;
  ParamPtr router_, gate_up_, down_;
  GatedMlp shared_;
  ParamPtr shared_gate_, selection_bias_;
  tensor::RouterSpec spec_;
};

}  // namespace

std::unique_ptr<FeedForward> make_feed_forward(const ModelConfig& config, int64_t layer,
                                               const LayerParams& params) {
  if (config.layers[static_cast<size_t>(layer)].feed_forward == FeedForwardKind::kMoe) {
    return std::make_unique<Mixture>(config, params);
  }
  return std::make_unique<DenseMlp>(params);
}

}  // namespace quadrille::model
