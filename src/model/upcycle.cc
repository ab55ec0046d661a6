#include "model/upcycle.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <map>
#include <string>

#include "base/error.h"
#include "base/rng.h"

namespace quadrille::model {
namespace {

void fill_normal(const at::Tensor& tensor, Rng& rng, double scale) {
  float* data = tensor.data_ptr<float>();
  for (int64_t i = 0; i < tensor.numel(); ++i) data[i] = static_cast<float>(scale * rng.normal());
}

void add_noise(at::Tensor& experts, double noise, Rng& rng) {
  at::Tensor values = at::empty(experts.sizes(), experts.options().dtype(at::kFloat));
  fill_normal(values, rng, noise * experts.to(at::kFloat).std().item<double>());
  experts.add_(values.to(experts.scalar_type()));
}

// Rows of slice s in [2F, D] (gate rows, then up rows), as [2f, D].
void copy_gate_up(const at::Tensor& dense, int64_t slice, const at::Tensor& expert) {
  const int64_t width = expert.size(0) / 2;
  expert.narrow(0, 0, width).copy_(dense.narrow(0, slice * width, width));
  expert.narrow(0, width, width).copy_(dense.narrow(0, dense.size(0) / 2 + slice * width, width));
}

void fill_layer(const std::map<std::string, tensor::ParamPtr>& dense,
                const std::map<std::string, tensor::ParamPtr>& moe, const std::string& layer,
                const UpcycleOptions& options, Rng& rng) {
  const at::Tensor& dense_gate_up = dense.at(layer + "mlp.gate_up")->value;
  const at::Tensor& dense_down = dense.at(layer + "mlp.down")->value;
  at::Tensor gate_up = moe.at(layer + "moe.gate_up")->value;
  at::Tensor down = moe.at(layer + "moe.down")->value;
  const at::Tensor& router = moe.at(layer + "moe.router")->value;
  const int64_t width = down.size(2);
  at::Tensor row = at::empty({router.size(1)}, at::kFloat);
  for (int64_t copy = 0; copy < options.copies; ++copy) {
    fill_normal(row, rng, options.router_scale);
    for (int64_t slice = 0; slice < options.split; ++slice) {
      const int64_t expert = copy * options.split + slice;
      router.select(0, expert).copy_(row);
      copy_gate_up(dense_gate_up, slice, gate_up.select(0, expert));
      down.select(0, expert).copy_(dense_down.narrow(1, slice * width, width));
    }
  }
  down.mul_(static_cast<double>(options.split));
  if (options.noise > 0) {
    add_noise(gate_up, options.noise, rng);
    add_noise(down, options.noise, rng);
  }
}

std::map<std::string, tensor::ParamPtr> by_name(const Transformer& model) {
  std::map<std::string, tensor::ParamPtr> out;
  for (const tensor::ParamPtr& param : model.parameters()) out[param->name] = param;
  return out;
}

}  // namespace

ModelConfig upcycled_config(const ModelConfig& dense, const UpcycleOptions& options) {
  ModelConfig moe = dense;
  if (dense.family == "llama") {
    moe.family = "mixtral";
    moe.weights_stay_fp32 = true;
    if (dense.qkv_bias || dense.o_bias)
      throw ConfigError("upcycling a llama with attention biases: mixtral has none");
  } else if (dense.family == "qwen3") {
    moe.family = "qwen3_moe";
  } else {
    throw ConfigError("a {} cannot be upcycled: llama becomes mixtral, qwen3 becomes qwen3_moe",
                      dense.family);
  }
  if (dense.mlp_bias) throw ConfigError("upcycling a model with mlp_bias: experts have none");
  if (options.copies < 1 || options.split < 1 || options.top_copies < 1 ||
      options.top_copies > options.copies) {
    throw ConfigError("upcycling needs copies >= top-copies >= 1 and split >= 1, got {}, {} and {}",
                      options.copies, options.top_copies, options.split);
  }
  if (dense.dense_width % options.split != 0) {
    throw ConfigError("a feed-forward width of {} does not split into {} equal parts",
                      dense.dense_width, options.split);
  }
  moe.experts = options.copies * options.split;
  moe.top_k = options.top_copies * options.split;
  moe.expert_width = dense.dense_width / options.split;
  moe.norm_topk = true;
  for (LayerConfig& layer : moe.layers) {
    if (layer.window != moe.layers.front().window) {
      throw ConfigError(
          "upcycling a model whose layers have different sliding windows: {} has one for all",
          moe.family);
    }
    layer.feed_forward = FeedForwardKind::kMoe;
  }
  moe.validate();
  return moe;
}

std::unique_ptr<Transformer> upcycle(const Transformer& dense, const UpcycleOptions& options) {
  const at::NoGradGuard no_grad;
  auto moe = std::make_unique<Transformer>(upcycled_config(dense.config(), options), dense.dtype(),
                                           dense.device());
  const auto from = by_name(dense);
  const auto to = by_name(*moe);
  for (const auto& [name, param] : to) {
    if (const auto same = from.find(name); same != from.end())
      param->value.copy_(same->second->value);
  }
  Rng rng(mix_seed(options.seed, 0x75706379));
  for (size_t l = 0; l < dense.config().layers.size(); ++l) {
    fill_layer(from, to, fmt::format("layers.{}.", l), options, rng);
  }
  for (const auto& [name, param] : to) param->changed();
  return moe;
}

}  // namespace quadrille::model
