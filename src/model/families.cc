#include "model/families.h"

#include <fmt/ranges.h>
#include <algorithm>
#include <array>
#include <charconv>

#include "base/error.h"

namespace quadrille::model {
namespace {

using nlohmann::json;

constexpr std::string_view kFirstLayer = "model.layers.0.";

bool layer0_has(const HasTensor& has_tensor, std::string_view name) {
  return has_tensor && has_tensor(std::string(kFirstLayer) + std::string(name));
}

// ---- parts that several families share
// -----------------------------------------------------------------

// A flag for bias tensors: as the file says, else as the tensors say.
bool read_bias(const ConfigJson& file, const char* key, const HasTensor& has_tensor,
               std::string_view tensor) {
  return file.has(key) ? file.boolean(key) : layer0_has(has_tensor, tensor);
}

void read_attention_bias(const ConfigJson& file, const HasTensor& has_tensor, ModelConfig& config) {
  config.qkv_bias = read_bias(file, "attention_bias", has_tensor, "self_attn.q_proj.bias");
  config.o_bias = config.qkv_bias;
}

int64_t read_experts(const ConfigJson& file) {
  for (const char* key : {"num_experts", "num_local_experts", "n_routed_experts"}) {
    if (file.has(key)) return file.size(key);
  }
  file.fail("num_experts (or num_local_experts, n_routed_experts) is missing");
}

void set_all(ModelConfig& config, FeedForwardKind kind) {
  for (auto& layer : config.layers) layer.feed_forward = kind;
}

// Qwen: a layer is MoE unless listed in mlp_only_layers or left out by decoder_sparse_step.
void read_qwen_moe(const ConfigJson& file, ModelConfig& config) {
  const auto dense = file.integers_or("mlp_only_layers", {});
  const int64_t step = file.integer_or("decoder_sparse_step", 1);
  if (step < 1) file.fail(fmt::format("decoder_sparse_step is {}, it must be at least 1", step));
  for (size_t l = 0; l < config.layers.size(); ++l) {
    const auto layer = static_cast<int64_t>(l);
    const bool listed = std::find(dense.begin(), dense.end(), layer) != dense.end();
    config.layers[l].feed_forward =
        !listed && (layer + 1) % step == 0 ? FeedForwardKind::kMoe : FeedForwardKind::kDense;
  }
  config.experts = read_experts(file);
  config.top_k = file.size("num_experts_per_tok");
  config.expert_width = file.size("moe_intermediate_size");
  config.dense_width = config.moe_layers() < static_cast<int64_t>(config.layers.size())
                           ? file.size("intermediate_size")
                           : std::max<int64_t>(0, file.integer_or("intermediate_size", 0));
}

void write_qwen_moe(const ModelConfig& config, json& out) {
  std::vector<int64_t> dense;
  for (size_t l = 0; l < config.layers.size(); ++l) {
    if (config.layers[l].feed_forward == FeedForwardKind::kDense)
      dense.push_back(static_cast<int64_t>(l));
  }
  out["mlp_only_layers"] = dense;
  out["decoder_sparse_step"] = 1;
  out["num_experts"] = config.experts;
  out["num_experts_per_tok"] = config.top_k;
  out["moe_intermediate_size"] = config.expert_width;
  out["intermediate_size"] = config.dense_width > 0 ? config.dense_width : config.expert_width;
  out["norm_topk_prob"] = config.norm_topk;
}

// The window that use_sliding_window switches on; 0: off.
int64_t read_switched_window(const ConfigJson& file) {
  return file.boolean_or("use_sliding_window", false) ? file.integer_or("sliding_window", 0) : 0;
}

// Windows by layer_types, else by `slides(layer)`.
template <class Rule>
void set_windows(const ConfigJson& file, int64_t window, ModelConfig& config, const Rule& slides) {
  std::vector<std::string> types;
  if (file.has("layer_types")) {
    types = file.strings("layer_types");
    if (types.size() != config.layers.size()) {
      file.fail(fmt::format("layer_types has {} entries for {} layers", types.size(),
                            config.layers.size()));
    }
  }
  for (size_t l = 0; l < config.layers.size(); ++l) {
    bool sliding = window > 0 && slides(static_cast<int64_t>(l));
    if (!types.empty()) {
      sliding = types[l] == "sliding_attention";
      if (!sliding && types[l] != "full_attention") {
        file.fail(fmt::format("layer_types: '{}' is not supported", types[l]));
      }
      if (sliding && window == 0) {
        file.fail("layer_types asks for sliding_attention, but no sliding_window is in use");
      }
    }
    config.layers[l].window = sliding ? window : 0;
  }
}

int64_t any_window(const ModelConfig& config) {
  int64_t window = 0;
  for (const auto& layer : config.layers) window = std::max(window, layer.window);
  return window;
}

void write_switched_window(const ModelConfig& config, json& out) {
  const int64_t window = any_window(config);
  out["use_sliding_window"] = window > 0;
  out["sliding_window"] = window > 0 ? json(window) : json(nullptr);
}

void write_layer_types(const ModelConfig& config, json& out) {
  std::vector<std::string> types;
  for (const auto& layer : config.layers) {
    types.emplace_back(layer.window > 0 ? "sliding_attention" : "full_attention");
  }
  out["layer_types"] = types;
  out["max_window_layers"] = config.layers.size();
}

// ---- families
// ------------------------------------------------------------------------------------------

void read_qwen3_moe(const ConfigJson& file, const HasTensor& has_tensor, ModelConfig& config) {
  config.qk_norm = QkNormKind::kPerHead;
  read_attention_bias(file, has_tensor, config);
  read_qwen_moe(file, config);
  config.norm_topk = file.boolean("norm_topk_prob");
  const int64_t window = read_switched_window(file);
  for (auto& layer : config.layers) layer.window = window;
}
void write_qwen3_moe(const ModelConfig& config, json& out) {
  out["attention_bias"] = config.qkv_bias;
  write_qwen_moe(config, out);
  // The name that version 5 of transformers writes for this family.
  out["num_local_experts"] = config.experts;
  write_switched_window(config, out);
}

void read_qwen3(const ConfigJson& file, const HasTensor& has_tensor, ModelConfig& config) {
  config.qk_norm = QkNormKind::kPerHead;
  read_attention_bias(file, has_tensor, config);
  config.dense_width = file.size("intermediate_size");
  const int64_t window = read_switched_window(file);
  const int64_t first =
      window > 0 && !file.has("layer_types") ? file.integer("max_window_layers") : 0;
  set_windows(file, window, config, [&](int64_t layer) { return layer >= first; });
}
void write_qwen3(const ModelConfig& config, json& out) {
  out["attention_bias"] = config.qkv_bias;
  out["intermediate_size"] = config.dense_width;
  write_switched_window(config, out);
  write_layer_types(config, out);
}

void read_llama(const ConfigJson& file, const HasTensor& has_tensor, ModelConfig& config) {
  read_attention_bias(file, has_tensor, config);
  config.mlp_bias = read_bias(file, "mlp_bias", has_tensor, "mlp.gate_proj.bias");
  config.dense_width = file.size("intermediate_size");
}
void write_llama(const ModelConfig& config, json& out) {
  out["attention_bias"] = config.qkv_bias;
  out["mlp_bias"] = config.mlp_bias;
  out["intermediate_size"] = config.dense_width;
}

void read_mixtral(const ConfigJson& file, const HasTensor&, ModelConfig& config) {
  if (file.number_or("router_jitter_noise", 0) != 0) file.fail("router_jitter_noise must be 0");
  set_all(config, FeedForwardKind::kMoe);
  config.experts = read_experts(file);
  config.top_k = file.size("num_experts_per_tok");
  config.expert_width = file.size("intermediate_size");
  config.norm_topk = true;
  config.weights_stay_fp32 = true;
  const int64_t window = file.integer_or("sliding_window", 0);
  for (auto& layer : config.layers) layer.window = window;
}
void write_mixtral(const ModelConfig& config, json& out) {
  out["num_local_experts"] = config.experts;
  out["num_experts_per_tok"] = config.top_k;
  out["intermediate_size"] = config.expert_width;
  out["router_jitter_noise"] = 0.0;
  const int64_t window = any_window(config);
  out["sliding_window"] = window > 0 ? json(window) : json(nullptr);
}

void read_olmoe(const ConfigJson& file, const HasTensor& has_tensor, ModelConfig& config) {
  config.qk_norm = QkNormKind::kWhole;
  config.clip_qkv = file.number_or("clip_qkv", 0);
  // The norm over the whole projection is as wide as the model in every reader of this family.
  if (config.head_dim * config.heads != config.hidden) {
    file.fail(fmt::format("head_dim {} times {} heads must be hidden_size {}", config.head_dim,
                          config.heads, config.hidden));
  }
  read_attention_bias(file, has_tensor, config);
  set_all(config, FeedForwardKind::kMoe);
  config.experts = read_experts(file);
  config.top_k = file.size("num_experts_per_tok");
  config.expert_width = file.size("intermediate_size");
  config.norm_topk = file.boolean("norm_topk_prob");
}
void write_olmoe(const ModelConfig& config, json& out) {
  out["clip_qkv"] = config.clip_qkv > 0 ? json(config.clip_qkv) : json(nullptr);
  out["attention_bias"] = config.qkv_bias;
  out["num_experts"] = config.experts;
  out["num_experts_per_tok"] = config.top_k;
  out["intermediate_size"] = config.expert_width;
  out["norm_topk_prob"] = config.norm_topk;
}

void read_qwen2_moe(const ConfigJson& file, const HasTensor& has_tensor, ModelConfig& config) {
  config.qkv_bias = file.has("qkv_bias")
                        ? file.boolean("qkv_bias")
                        : !has_tensor || layer0_has(has_tensor, "self_attn.q_proj.bias");
  read_qwen_moe(file, config);
  config.norm_topk = file.boolean_or("norm_topk_prob", false);
  if (config.moe_layers() > 0) {
    config.shared = SharedExpert::kGated;
    config.shared_width = file.size("shared_expert_intermediate_size");
  }
  const int64_t window = read_switched_window(file);
  const int64_t end =
      window > 0 && !file.has("layer_types") ? file.integer("max_window_layers") : 0;
  set_windows(file, window, config, [&](int64_t layer) { return layer % 2 == 0 && layer < end; });
}
void write_qwen2_moe(const ModelConfig& config, json& out) {
  out["qkv_bias"] = config.qkv_bias;
  write_qwen_moe(config, out);
  out["shared_expert_intermediate_size"] = config.shared_width;
  write_switched_window(config, out);
  write_layer_types(config, out);
}

void read_deepseek_v3(const ConfigJson& file, const HasTensor& has_tensor, ModelConfig& config) {
  if (file.string_or("scoring_func", "sigmoid") != "sigmoid")
    file.fail("scoring_func must be sigmoid");
  if (file.string_or("topk_method", "noaux_tc") != "noaux_tc")
    file.fail("topk_method must be noaux_tc");
  if (file.integer_or("moe_layer_freq", 1) != 1) file.fail("moe_layer_freq must be 1");
  config.attention = AttentionKind::kLatent;
  config.q_lora_rank = file.root().contains("q_lora_rank") && !file.has("q_lora_rank")
                           ? 0
                           : file.size("q_lora_rank");
  config.kv_lora_rank = file.size("kv_lora_rank");
  config.qk_nope_dim = file.size("qk_nope_head_dim");
  config.qk_rope_dim = file.size("qk_rope_head_dim");
  config.v_head_dim = file.size("v_head_dim");
  config.head_dim = config.qk_rope_dim;
  config.rope.interleaved = file.boolean_or("rope_interleave", true);
  config.qkv_bias = read_bias(file, "attention_bias", has_tensor, "self_attn.o_proj.bias");
  config.o_bias = config.qkv_bias;

  const int64_t first_moe = file.integer("first_k_dense_replace");
  for (size_t l = 0; l < config.layers.size(); ++l) {
    config.layers[l].feed_forward =
        static_cast<int64_t>(l) < first_moe ? FeedForwardKind::kDense : FeedForwardKind::kMoe;
  }
  config.dense_width =
      first_moe > 0 ? file.size("intermediate_size") : file.integer_or("intermediate_size", 0);
  config.prediction_layers = file.integer_or("num_nextn_predict_layers", 1);
  if (config.moe_layers() == 0) return;
  config.experts = read_experts(file);
  config.top_k = file.size("num_experts_per_tok");
  config.expert_width = file.size("moe_intermediate_size");
  if (const int64_t shared = file.integer_or("n_shared_experts", 0); shared > 0) {
    config.shared = SharedExpert::kPlain;
    config.shared_width = shared * config.expert_width;
  }
  config.router = RouterKind::kSigmoidGrouped;
  config.router_fp32 = true;
  config.selection_bias = true;
  config.weights_stay_fp32 = true;
  config.expert_groups = file.size("n_group");
  config.expert_groups_kept = file.size("topk_group");
  config.norm_topk = file.boolean("norm_topk_prob");
  config.norm_topk_eps = 1e-20;
  config.routed_scaling = file.number("routed_scaling_factor");
}
void write_deepseek_v3(const ModelConfig& config, json& out) {
  out["q_lora_rank"] = config.q_lora_rank > 0 ? json(config.q_lora_rank) : json(nullptr);
  out["kv_lora_rank"] = config.kv_lora_rank;
  out["qk_nope_head_dim"] = config.qk_nope_dim;
  out["qk_rope_head_dim"] = config.qk_rope_dim;
  out["qk_head_dim"] = config.key_dim();
  out["head_dim"] = config.qk_rope_dim;
  out["v_head_dim"] = config.v_head_dim;
  out["rope_interleave"] = config.rope.interleaved;
  out["attention_bias"] = config.qkv_bias;
  int64_t dense = 0;
  for (const auto& layer : config.layers)
    dense += layer.feed_forward == FeedForwardKind::kDense ? 1 : 0;
  out["first_k_dense_replace"] = dense;
  out["moe_layer_freq"] = 1;
  out["intermediate_size"] = config.dense_width > 0 ? config.dense_width : config.expert_width;
  out["num_nextn_predict_layers"] = 0;
  out["n_routed_experts"] = config.experts;
  out["num_experts_per_tok"] = config.top_k;
  out["moe_intermediate_size"] = config.expert_width;
  out["n_shared_experts"] = config.expert_width > 0 ? config.shared_width / config.expert_width : 0;
  out["n_group"] = config.expert_groups;
  out["topk_group"] = config.expert_groups_kept;
  out["norm_topk_prob"] = config.norm_topk;
  out["routed_scaling_factor"] = config.routed_scaling;
  out["scoring_func"] = "sigmoid";
  out["topk_method"] = "noaux_tc";
}

constexpr std::array kFamilies = {
    Family{.model_type = "qwen3_moe",
           .architecture = "Qwen3MoeForCausalLM",
           .read = read_qwen3_moe,
           .write = write_qwen3_moe},
    Family{.model_type = "qwen2_moe",
           .architecture = "Qwen2MoeForCausalLM",
           .read = read_qwen2_moe,
           .write = write_qwen2_moe,
           .shared = "shared_expert"},
    Family{.model_type = "olmoe",
           .architecture = "OlmoeForCausalLM",
           .read = read_olmoe,
           .write = write_olmoe},
    Family{.model_type = "mixtral",
           .architecture = "MixtralForCausalLM",
           .default_theta = 1e6,
           .read = read_mixtral,
           .write = write_mixtral,
           .moe = "block_sparse_moe",
           .gate = "w1",
           .up = "w3",
           .down = "w2"},
    Family{.model_type = "deepseek_v3",
           .architecture = "DeepseekV3ForCausalLM",
           .read = read_deepseek_v3,
           .write = write_deepseek_v3,
           .shared = "shared_experts",
           .router_always_fp32 = true},
    Family{.model_type = "llama",
           .architecture = "LlamaForCausalLM",
           .read = read_llama,
           .write = write_llama},
    Family{.model_type = "qwen3",
           .architecture = "Qwen3ForCausalLM",
           .read = read_qwen3,
           .write = write_qwen3},
};

// What would change the numbers in a way that nothing here computes.
void refuse_unsupported(const ConfigJson& file) {
  if (file.has("quantization_config")) {
    file.fail(
        "quantization_config: quantized weights are not supported; convert the model to bfloat16 "
        "first");
  }
  if (const std::string act = file.string_or("hidden_act", "silu"); act != "silu") {
    file.fail(fmt::format("hidden_act '{}' is not supported (silu is)", act));
  }
  for (const char* key : {"attention_dropout", "hidden_dropout", "dropout"}) {
    if (file.number_or(key, 0) != 0) file.fail(fmt::format("{} must be 0", key));
  }
}

}  // namespace

const Family& find_family(std::string_view model_type, const std::string& origin) {
  for (const auto& family : kFamilies) {
    if (family.model_type == model_type) return family;
  }
  throw FormatError("{}: model_type '{}' is not supported (known: {})", origin, model_type,
                    fmt::join(family_names(), ", "));
}

std::vector<std::string_view> family_names() {
  std::vector<std::string_view> names;
  for (const auto& family : kFamilies) names.push_back(family.model_type);
  return names;
}

ModelConfig read_config(const ConfigJson& file, const HasTensor& has_tensor) {
  const std::string model_type = file.string_or("model_type", "");
  if (model_type.empty()) file.fail("model_type is missing");
  const Family& family = find_family(model_type, file.origin());
  refuse_unsupported(file);

  ModelConfig config;
  config.family = model_type;
  config.vocab = file.size("vocab_size");
  config.hidden = file.size("hidden_size");
  config.heads = file.size("num_attention_heads");
  config.kv_heads =
      file.has("num_key_value_heads") ? file.size("num_key_value_heads") : config.heads;
  if (file.has("head_dim")) {
    config.head_dim = file.size("head_dim");
  } else {
    config.head_dim = config.hidden / config.heads;
  }
  config.max_positions = file.size("max_position_embeddings");
  config.norm_eps = file.number("rms_norm_eps");
  config.tied = file.boolean_or("tie_word_embeddings", false);
  const int64_t layers = file.size("num_hidden_layers");
  if (layers > 10'000) file.fail(fmt::format("num_hidden_layers is {}", layers));
  config.layers.resize(static_cast<size_t>(layers));
  config.rope = read_rope(file, family.default_theta);
  family.read(file, has_tensor, config);
  if (!file.has("head_dim") && config.attention == AttentionKind::kGrouped &&
      config.hidden % config.heads != 0) {
    file.fail(fmt::format(
        "head_dim is missing, and hidden_size {} is no multiple of num_attention_heads {}",
        config.hidden, config.heads));
  }
  try {
    config.validate();
  } catch (const ConfigError& error) {
    file.fail(error.what());
  }
  return config;
}

json write_config(const ModelConfig& config) {
  const Family& family = find_family(config.family, "configuration");
  json out = {
      {"architectures", {family.architecture}},
      {"model_type", config.family},
      {"vocab_size", config.vocab},
      {"hidden_size", config.hidden},
      {"num_hidden_layers", config.layers.size()},
      {"num_attention_heads", config.heads},
      {"num_key_value_heads", config.kv_heads},
      {"hidden_act", "silu"},
      {"max_position_embeddings", config.max_positions},
      {"rms_norm_eps", config.norm_eps},
      {"tie_word_embeddings", config.tied},
      {"attention_dropout", 0.0},
      {"initializer_range", 0.02},
      {"use_cache", true},
      {"bos_token_id", nullptr},
      {"eos_token_id", nullptr},
      {"pad_token_id", nullptr},
  };
  // Families that derive it find the same number here.
  out["head_dim"] = config.head_dim;
  write_rope(config.rope, out);
  family.write(config, out);
  return out;
}

bool is_skipped(const ModelConfig& config, std::string_view name) {
  // Very old files carry the RoPE frequencies, which follow from the configuration.
  if (name.ends_with("rotary_emb.inv_freq")) return true;
  constexpr std::string_view kLayers = "model.layers.";
  if (config.prediction_layers > 0 && name.starts_with(kLayers)) {
    int64_t layer = -1;
    const char* begin = name.data() + kLayers.size();
    const auto [end, error] = std::from_chars(begin, name.data() + name.size(), layer);
    const auto layers = static_cast<int64_t>(config.layers.size());
    return error == std::errc() && end != name.data() + name.size() && *end == '.' &&
           layer >= layers && layer < layers + config.prediction_layers;
  }
  return false;
}

}  // namespace quadrille::model
