#include "model/settings.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "model/families.h"

namespace quadrille::model {

void bind(ModelSettings& s, ConfigBinder& b) {
  std::vector<std::string> families;
  for (const auto name : family_names()) families.emplace_back(name);
  InitConfig& i = s.shape;
  b.field("path", s.path,
          "Hugging Face folder to start from; leave it empty to start from random weights.");
  b.field("init", s.init, "\"random\" makes a new model of the sizes below instead of loading one.",
          {"", "random"});
  b.field("tokenizer", s.tokenizer,
          "Folder with tokenizer.json, end tokens and chat template, where they are not in the "
          "model's own.");
  b.field("dtype", s.dtype,
          "What the weights are computed in; auto is fp32 on CPU and the file's own on a GPU.",
          {"auto", "fp32", "bf16"});
  b.field(
      "router_dtype", s.router_dtype,
      "fp32 keeps expert choices steady under rounding; family does as the model's authors did.",
      {"family", "fp32"});
  b.field("family", i.family, "Family of a new model.", families);
  b.field("vocab", i.vocab, "Rows of the embedding; 0 takes the tokenizer's size.");
  b.field("layers", i.layers, "Number of transformer layers.");
  b.field("hidden", i.hidden, "Width of the residual stream.");
  b.field("heads", i.heads, "Query heads.");
  b.field("kv_heads", i.kv_heads, "Key/value heads, a divisor of heads; 0 means as many as heads.");
  b.field("head_dim", i.head_dim, "Width of a head; 0 means hidden / heads.");
  b.field("dense_width", i.dense_width, "Inner width of dense layers; 0 means 4 * hidden.");
  b.field("dense_layers", i.dense_layers, "How many of the first layers of a mixture are dense.");
  b.field("experts", i.experts, "Experts a layer; no meaning for dense families.");
  b.field("top_k", i.top_k, "Experts a token is sent to.");
  b.field("expert_width", i.expert_width, "Inner width of an expert; 0 means 2 * hidden.");
  b.field("shared_width", i.shared_width,
          "Inner width of the expert every token visits (qwen2_moe, deepseek_v3); 0 means "
          "expert_width.");
  b.field("window", i.window,
          "Sliding attention window in tokens on every layer that may have one; 0 is full.");
  b.field("max_positions", i.max_positions, "Longest sequence the model is made for.");
  b.field("rope_theta", i.rope_theta, "Base of the rotary position frequencies.");
  b.field("norm_eps", i.norm_eps, "Epsilon of the norms.");
  b.field("init_scale", i.init_scale, "Standard deviation of the random weights.");
  b.field("tied", i.tied, "Use the embedding as output head too.");
  b.field("norm_topk", i.norm_topk,
          "Let the weights of the chosen experts sum to one (mixtral always does).");
  b.field("q_lora_rank", i.q_lora_rank,
          "Rank of the query projection of deepseek_v3; 0 leaves it whole.");
  b.field("kv_lora_rank", i.kv_lora_rank,
          "Rank of the key/value latent of deepseek_v3; 0 means hidden / 2.");
  b.field("qk_rope_dim", i.qk_rope_dim,
          "Rotated part of a deepseek_v3 key; 0 means half of head_dim, made even.");
  b.field("expert_groups", i.expert_groups,
          "Groups that deepseek_v3's router chooses among first.");
  b.field("expert_groups_kept", i.expert_groups_kept,
          "How many of those groups stay eligible for a token.");
}

// Builds the config.json of such a model and reads it back, so that what a new model can be is
// exactly what a file of its family can say.
ModelConfig make_model_config(const InitConfig& init) {
  const auto positive = [](const char* name, int64_t value) {
    if (value < 1) throw ConfigError("model.{} is {}, it must be at least 1", name, value);
  };
  positive("vocab", init.vocab);
  positive("layers", init.layers);
  positive("hidden", init.hidden);
  positive("heads", init.heads);
  // 0 has a meaning for each of these; less has none.
  const std::pair<const char*, int64_t> others[] = {{"kv_heads", init.kv_heads},
                                                    {"head_dim", init.head_dim},
                                                    {"dense_width", init.dense_width},
                                                    {"dense_layers", init.dense_layers},
                                                    {"expert_width", init.expert_width},
                                                    {"shared_width", init.shared_width},
                                                    {"window", init.window},
                                                    {"q_lora_rank", init.q_lora_rank},
                                                    {"kv_lora_rank", init.kv_lora_rank},
                                                    {"qk_rope_dim", init.qk_rope_dim}};
  for (const auto& [name, value] : others) {
    if (value < 0) throw ConfigError("model.{} is {}, it must be at least 0", name, value);
  }
  if (init.init_scale < 0)
    throw ConfigError("model.init_scale is {}, it must be at least 0", init.init_scale);
  const auto known = family_names();
  if (std::find(known.begin(), known.end(), init.family) == known.end()) {
    throw ConfigError("model.family '{}' is not one of {}", init.family, fmt::join(known, ", "));
  }
  const Family& family = find_family(init.family, "model.family");
  const bool dense = init.family == "llama" || init.family == "qwen3";
  const bool latent = init.family == "deepseek_v3";

  ModelConfig c;
  c.family = family.model_type;
  c.vocab = init.vocab;
  c.hidden = init.hidden;
  c.heads = init.heads;
  c.kv_heads = init.kv_heads > 0 ? init.kv_heads : init.heads;
  c.head_dim = init.head_dim > 0 ? init.head_dim : init.hidden / init.heads;
  c.max_positions = init.max_positions;
  c.norm_eps = init.norm_eps;
  c.tied = init.tied;
  c.rope.theta = init.rope_theta;
  c.norm_topk = init.norm_topk;
  if (!dense) {
    positive("experts", init.experts);
    positive("top_k", init.top_k);
    c.experts = init.experts;
    c.top_k = init.top_k;
    c.expert_width = init.expert_width > 0 ? init.expert_width : 2 * init.hidden;
    if (!family.shared.empty())
      c.shared_width = init.shared_width > 0 ? init.shared_width : c.expert_width;
  }
  const bool may_mix_dense = !dense && init.family != "mixtral" && init.family != "olmoe";
  if (init.dense_layers > 0 && !dense && !may_mix_dense) {
    throw ConfigError("model.dense_layers: every layer of {} is a mixture", init.family);
  }
  if (dense || init.dense_layers > 0)
    c.dense_width = init.dense_width > 0 ? init.dense_width : 4 * init.hidden;
  for (int64_t l = 0; l < init.layers; ++l) {
    const bool moe = !dense && l >= init.dense_layers;
    c.layers.push_back({moe ? FeedForwardKind::kMoe : FeedForwardKind::kDense, init.window});
  }
  if (latent) {
    c.attention = AttentionKind::kLatent;
    c.q_lora_rank = init.q_lora_rank;
    c.kv_lora_rank =
        init.kv_lora_rank > 0 ? init.kv_lora_rank : std::max<int64_t>(1, init.hidden / 2);
    const int64_t half = std::max<int64_t>(2, c.head_dim / 2 / 2 * 2);
    c.qk_rope_dim = init.qk_rope_dim > 0 ? init.qk_rope_dim : half;
    c.qk_nope_dim = c.head_dim - c.qk_rope_dim;
    c.v_head_dim = c.head_dim;
    c.rope.interleaved = true;
    c.expert_groups = init.expert_groups;
    c.expert_groups_kept = init.expert_groups_kept;
    if (c.shared_width % c.expert_width != 0) {
      throw ConfigError("model.shared_width {} must be a multiple of expert_width {} for {}",
                        c.shared_width, c.expert_width, init.family);
    }
  }
  try {
    ModelConfig result = read_config(ConfigJson(write_config(c), "model"), {});
    // A window that the family's rule puts nowhere would silently be no window.
    if (init.window > 0) {
      bool any = false;
      for (const auto& layer : result.layers) any = any || layer.window > 0;
      if (!any) throw ConfigError("model.window: {} has no sliding attention", init.family);
    }
    return result;
  } catch (const FormatError& error) {
    throw ConfigError("{}", error.what());
  }
}

}  // namespace quadrille::model
