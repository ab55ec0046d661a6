// A model's shape, family-agnostic: what config.json of each family is read into (families.h), and
// all that the transformer looks at. Formulas of each part: docs/models.md.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace quadrille::model {

enum class AttentionKind { kGrouped, kLatent };  // GQA; multi-head latent attention (DeepSeek-V3).
enum class QkNormKind { kNone, kPerHead, kWhole };
enum class FeedForwardKind { kDense, kMoe };
enum class RouterKind { kSoftmax, kSigmoidGrouped };
enum class SharedExpert { kNone, kPlain, kGated };

struct RopeConfig {
  double theta = 10000;
  std::string type = "default";  // default, linear, llama3, yarn.
  double factor = 1;
  double low_freq_factor = 1, high_freq_factor = 4;  // llama3.
  double beta_fast = 32, beta_slow = 1;              // yarn.
  bool truncate = true;                              // yarn.
  double mscale = 0, mscale_all_dim = 0;             // yarn; 0: not given.
  double attention_factor = 0;                       // yarn; 0: computed.
  int64_t original_max_positions = 0;
  bool interleaved = false;

  bool operator==(const RopeConfig&) const = default;
};

struct LayerConfig {
  FeedForwardKind feed_forward = FeedForwardKind::kDense;
  int64_t window = 0;  // Sliding window; 0: full attention.

  bool operator==(const LayerConfig&) const = default;
};

struct ModelConfig {
  std::string family;  // model_type, e.g. "qwen3_moe".
  int64_t vocab = 0, hidden = 0, heads = 0, kv_heads = 0, head_dim = 0;
  int64_t dense_width = 0;  // F of dense layers.
  int64_t max_positions = 0;
  double norm_eps = 0;
  bool tied = false;
  std::vector<LayerConfig> layers;
  RopeConfig rope;

  AttentionKind attention = AttentionKind::kGrouped;
  QkNormKind qk_norm = QkNormKind::kNone;
  bool qkv_bias = false, o_bias = false, mlp_bias = false;
  double clip_qkv = 0;
  // Latent attention.
  int64_t q_lora_rank = 0, kv_lora_rank = 0, qk_nope_dim = 0, qk_rope_dim = 0, v_head_dim = 0;

  // Mixture of experts.
  int64_t experts = 0, top_k = 0, expert_width = 0, shared_width = 0;
  RouterKind router = RouterKind::kSoftmax;
  // Router held and its logits computed in fp32 (DeepSeek-V3 always; model.router_dtype else).
  bool router_fp32 = false;
  bool norm_topk = false;
  double norm_topk_eps = 0, routed_scaling = 1;
  int64_t expert_groups = 1, expert_groups_kept = 1;
  bool selection_bias = false;
  bool weights_stay_fp32 =
      false;  // Expert weights multiply in fp32 (Mixtral, DeepSeek-V3), else cast to cd first.
  SharedExpert shared = SharedExpert::kNone;
  // Multi-token-prediction layers after the last one in the files: skipped, never written.
  int64_t prediction_layers = 0;

  bool operator==(const ModelConfig&) const = default;

  int64_t moe_layers() const;
  // For each layer its place among the MoE layers, -1 for dense ones.
  std::vector<int64_t> moe_index() const;
  int64_t rope_dim() const;        // Numbers of a head that are rotated.
  int64_t key_dim() const;         // Per head, as cached and scored.
  int64_t value_dim() const;       // Per head.
  double attention_scale() const;  // Includes DeepSeek's yarn correction.
  // Throws ConfigError naming both numbers when sizes contradict each other.
  void validate() const;
};

}  // namespace quadrille::model
