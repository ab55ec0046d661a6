#include "model/config.h"

#include <cmath>

#include "base/error.h"
#include "model/rope.h"

namespace quadrille::model {
namespace {

// Larger than any model, small enough that products of three stay below 2^63: a damaged file must
// not make the program allocate, or count, without end.
constexpr int64_t kMaxSize = int64_t{1} << 20;
constexpr int64_t kMaxVocab = int64_t{1} << 28;

void check_size(const char* name, int64_t value, int64_t least = 1, int64_t most = kMaxSize) {
  if (value < least || value > most) {
    throw ConfigError("{} is {}, it must lie between {} and {}", name, value, least, most);
  }
}

}  // namespace

int64_t ModelConfig::moe_layers() const {
  int64_t count = 0;
  for (const auto& layer : layers) count += layer.feed_forward == FeedForwardKind::kMoe ? 1 : 0;
  return count;
}

std::vector<int64_t> ModelConfig::moe_index() const {
  std::vector<int64_t> index;
  int64_t next = 0;
  for (const auto& layer : layers) {
    index.push_back(layer.feed_forward == FeedForwardKind::kMoe ? next++ : -1);
  }
  return index;
}

int64_t ModelConfig::rope_dim() const {
  return attention == AttentionKind::kLatent ? qk_rope_dim : head_dim;
}

int64_t ModelConfig::key_dim() const {
  return attention == AttentionKind::kLatent ? qk_nope_dim + qk_rope_dim : head_dim;
}

int64_t ModelConfig::value_dim() const {
  return attention == AttentionKind::kLatent ? v_head_dim : head_dim;
}

double ModelConfig::attention_scale() const {
  double scale = 1.0 / std::sqrt(static_cast<double>(key_dim()));
  // DeepSeek corrects the sharpness here and, by the ratio of the two mscales, on cos and sin.
  if (attention == AttentionKind::kLatent && rope.type != "default" && rope.mscale_all_dim != 0) {
    const double correction = yarn_mscale(rope.factor, rope.mscale_all_dim);
    scale *= correction * correction;
  }
  return scale;
}

void ModelConfig::validate() const {
  check_size("vocab", vocab, 1, kMaxVocab);
  check_size("hidden", hidden);
  check_size("number of layers", static_cast<int64_t>(layers.size()), 1, 10'000);
  check_size("heads", heads, 1, 65'536);
  check_size("kv_heads", kv_heads, 1, 65'536);
  check_size("max_positions", max_positions, 1, int64_t{1} << 30);
  if (heads % kv_heads != 0) {
    throw ConfigError("{} query heads cannot be shared out among {} kv heads", heads, kv_heads);
  }
  if (!(norm_eps > 0 && norm_eps < 1))
    throw ConfigError("norm_eps is {}, it must lie between 0 and 1", norm_eps);
  if (clip_qkv < 0) throw ConfigError("clip_qkv is {}, it must be positive (or 0: off)", clip_qkv);

  if (attention == AttentionKind::kLatent) {
    check_size("kv_lora_rank", kv_lora_rank);
    check_size("q_lora_rank", q_lora_rank, 0);
    check_size("qk_nope_dim", qk_nope_dim);
    check_size("qk_rope_dim", qk_rope_dim);
    check_size("v_head_dim", v_head_dim);
    if (kv_heads != heads) {
      throw ConfigError("latent attention has as many kv heads as query heads, not {} and {}",
                        kv_heads, heads);
    }
    if (qk_norm != QkNormKind::kNone) throw ConfigError("latent attention has no norm on q and k");
  } else {
    check_size("head_dim", head_dim, 1, 65'536);
  }
  if (rope_dim() % 2 != 0)
    throw ConfigError("RoPE turns pairs, but the rotated dimension is {}", rope_dim());
  if (!(rope.theta > 1)) throw ConfigError("rope theta is {}, it must be above 1", rope.theta);
  if (!(rope.factor > 0)) throw ConfigError("rope factor is {}, it must be positive", rope.factor);
  if (rope.type != "default" && rope.type != "linear" && rope.type != "llama3" &&
      rope.type != "yarn") {
    throw ConfigError("rope type '{}' is not supported (default, linear, llama3, yarn are)",
                      rope.type);
  }
  if ((rope.type == "llama3" || rope.type == "yarn") && rope.original_max_positions < 1) {
    throw ConfigError("rope type {} needs original_max_position_embeddings", rope.type);
  }
  if (rope.type == "llama3" &&
      !(rope.low_freq_factor > 0 && rope.high_freq_factor > rope.low_freq_factor)) {
    throw ConfigError("rope low_freq_factor {} must be positive and below high_freq_factor {}",
                      rope.low_freq_factor, rope.high_freq_factor);
  }
  if (rope.type == "yarn" && !(rope.beta_fast > 0 && rope.beta_slow > 0)) {
    throw ConfigError("rope beta_fast {} and beta_slow {} must be positive", rope.beta_fast,
                      rope.beta_slow);
  }

  const int64_t moe = moe_layers();
  if (moe < static_cast<int64_t>(layers.size())) check_size("dense_width", dense_width);
  for (const auto& layer : layers) {
    if (layer.window < 0)
      throw ConfigError("window is {}, it must be positive (or 0: off)", layer.window);
  }
  if (moe == 0) return;
  check_size("experts", experts, 1, 65'536);
  check_size("expert_width", expert_width);
  check_size("top_k", top_k, 1, 65'536);
  if (top_k > experts) throw ConfigError("top_k {} is more than the {} experts", top_k, experts);
  check_size("expert_groups", expert_groups, 1, experts);
  check_size("expert_groups_kept", expert_groups_kept, 1, expert_groups);
  if (expert_groups > 1) {
    const int64_t size = experts / expert_groups;
    if (experts % expert_groups != 0) {
      throw ConfigError("{} experts cannot be split into {} groups", experts, expert_groups);
    }
    if (size < 2)
      throw ConfigError("{} groups of one expert: a group is scored by its two largest",
                        expert_groups);
    if (top_k > size * expert_groups_kept) {
      throw ConfigError("top_k {} is more than the {} experts of the {} groups kept", top_k,
                        size * expert_groups_kept, expert_groups_kept);
    }
  }
  if (shared != SharedExpert::kNone) check_size("shared_width", shared_width);
  if (!(routed_scaling > 0))
    throw ConfigError("routed_scaling is {}, it must be positive", routed_scaling);
}

}  // namespace quadrille::model
