#include "model/layout.h"

#include <fmt/ranges.h>

#include <set>
#include <utility>

#include "base/error.h"
#include "model/families.h"

namespace quadrille::model {
namespace {

class Planner {
 public:
  explicit Planner(const ModelConfig& config)
      : c_(config), family_(find_family(config.family, "configuration")) {}

  std::vector<ParameterPlan> plan() {
    auto& embed = add("embed", {c_.vocab, c_.hidden});
    embed.layouts = {{whole("model.embed_tokens.weight", embed.shape)}};
    // A tied model may be stored under either name.
    if (c_.tied) embed.layouts.push_back({whole("lm_head.weight", embed.shape)});
    for (size_t l = 0; l < c_.layers.size(); ++l) {
      own_ = fmt::format("layers.{}.", l);
      file_ = fmt::format("model.layers.{}.", l);
      norm("attention_norm", "input_layernorm.weight", c_.hidden);
      if (c_.attention == AttentionKind::kLatent) {
        latent_attention();
      } else {
        grouped_attention();
      }
      norm("ffn_norm", "post_attention_layernorm.weight", c_.hidden);
      if (c_.layers[l].feed_forward == FeedForwardKind::kMoe) {
        mixture();
      } else {
        gated_mlp("mlp.", "mlp.", c_.dense_width, c_.mlp_bias);
      }
    }
    own_.clear();
    file_.clear();
    norm("norm", "model.norm.weight", c_.hidden);
    if (!c_.tied) matrix("head", "lm_head.weight", {c_.vocab, c_.hidden});
    return std::move(plans_);
  }

 private:
  static FilePiece whole(std::string name, std::vector<int64_t> shape) {
    return {.name = std::move(name), .shape = std::move(shape)};
  }

  ParameterPlan& add(const std::string& name, std::vector<int64_t> shape,
                     InitKind init = InitKind::kMatrix) {
    auto& plan = plans_.emplace_back();
    plan.name = own_ + name;
    plan.shape = std::move(shape);
    plan.init = init;
    return plan;
  }
  ParameterPlan& matrix(const std::string& name, const std::string& file,
                        std::vector<int64_t> shape, InitKind init = InitKind::kMatrix) {
    auto& plan = add(name, std::move(shape), init);
    plan.layouts = {{whole(file_ + file, plan.shape)}};
    return plan;
  }
  void norm(const std::string& name, const std::string& file, int64_t size) {
    matrix(name, file, {size}, InitKind::kOnes);
  }
  void bias(const std::string& name, const std::string& file, int64_t size) {
    matrix(name, file, {size}, InitKind::kZeros);
  }

  void grouped_attention() {
    const int64_t q = c_.heads * c_.head_dim;
    const int64_t kv = c_.kv_heads * c_.head_dim;
    const std::string self = file_ + "self_attn.";
    auto& qkv = add("attention.qkv", {q + 2 * kv, c_.hidden});
    qkv.layouts = {{{self + "q_proj.weight", {q, c_.hidden}, -1, 0},
                    {self + "k_proj.weight", {kv, c_.hidden}, -1, q},
                    {self + "v_proj.weight", {kv, c_.hidden}, -1, q + kv}}};
    if (c_.qkv_bias) {
      auto& plan = add("attention.qkv_bias", {q + 2 * kv}, InitKind::kZeros);
      plan.layouts = {{{self + "q_proj.bias", {q}, -1, 0},
                       {self + "k_proj.bias", {kv}, -1, q},
                       {self + "v_proj.bias", {kv}, -1, q + kv}}};
    }
    if (c_.qk_norm != QkNormKind::kNone) {
      const bool per_head = c_.qk_norm == QkNormKind::kPerHead;
      norm("attention.q_norm", "self_attn.q_norm.weight", per_head ? c_.head_dim : q);
      norm("attention.k_norm", "self_attn.k_norm.weight", per_head ? c_.head_dim : kv);
    }
    attention_out(q);
  }

  void latent_attention() {
    const int64_t q = c_.heads * c_.key_dim();
    if (c_.q_lora_rank > 0) {
      matrix("attention.q_a", "self_attn.q_a_proj.weight", {c_.q_lora_rank, c_.hidden});
      if (c_.qkv_bias) bias("attention.q_a_bias", "self_attn.q_a_proj.bias", c_.q_lora_rank);
      norm("attention.q_a_norm", "self_attn.q_a_layernorm.weight", c_.q_lora_rank);
      matrix("attention.q_b", "self_attn.q_b_proj.weight", {q, c_.q_lora_rank});
    } else {
      matrix("attention.q", "self_attn.q_proj.weight", {q, c_.hidden});
    }
    const int64_t kv_a = c_.kv_lora_rank + c_.qk_rope_dim;
    matrix("attention.kv_a", "self_attn.kv_a_proj_with_mqa.weight", {kv_a, c_.hidden});
    if (c_.qkv_bias) bias("attention.kv_a_bias", "self_attn.kv_a_proj_with_mqa.bias", kv_a);
    norm("attention.kv_a_norm", "self_attn.kv_a_layernorm.weight", c_.kv_lora_rank);
    matrix("attention.kv_b", "self_attn.kv_b_proj.weight",
           {c_.heads * (c_.qk_nope_dim + c_.v_head_dim), c_.kv_lora_rank});
    attention_out(c_.heads * c_.v_head_dim);
  }

  void attention_out(int64_t width) {
    matrix("attention.o", "self_attn.o_proj.weight", {c_.hidden, width}, InitKind::kResidual);
    if (c_.o_bias) bias("attention.o_bias", "self_attn.o_proj.bias", c_.hidden);
  }

  // gate_up and down of a dense MLP; `own` and `file` end where "gate_up" and "gate_proj" begin.
  void gated_mlp(const std::string& own, const std::string& file, int64_t width, bool with_bias) {
    const std::string at = file_ + file;
    auto& gate_up = add(own + "gate_up", {2 * width, c_.hidden});
    gate_up.layouts = {{{at + "gate_proj.weight", {width, c_.hidden}, -1, 0},
                        {at + "up_proj.weight", {width, c_.hidden}, -1, width}}};
    if (with_bias) {
      auto& plan = add(own + "gate_up_bias", {2 * width}, InitKind::kZeros);
      plan.layouts = {
          {{at + "gate_proj.bias", {width}, -1, 0}, {at + "up_proj.bias", {width}, -1, width}}};
    }
    matrix(own + "down", file + "down_proj.weight", {c_.hidden, width}, InitKind::kResidual);
    if (with_bias) bias(own + "down_bias", file + "down_proj.bias", c_.hidden);
  }

  void mixture() {
    const std::string moe = fmt::format("{}.", family_.moe);
    // Version 5 of transformers can store what it holds in memory: experts stacked, and everything
    // under "mlp".
    const std::string fused = file_ + "mlp.";
    const int64_t width = c_.expert_width;

    auto& router = matrix("moe.router", moe + "gate.weight", {c_.experts, c_.hidden});
    router.held_fp32 = c_.router_fp32;
    router.written_fp32 = family_.router_always_fp32;
    if (moe != "mlp.") router.layouts.push_back({whole(fused + "gate.weight", router.shape)});
    if (c_.selection_bias) {
      auto& plan = matrix("moe.selection_bias", moe + "gate.e_score_correction_bias", {c_.experts},
                          InitKind::kZeros);
      plan.trainable = false;
      plan.held_fp32 = true;
      plan.written_fp32 = true;
    }

    auto& gate_up = add("moe.gate_up", {c_.experts, 2 * width, c_.hidden});
    gate_up.by_expert = true;
    gate_up.layouts = {{}, {whole(fused + "experts.gate_up_proj", gate_up.shape)}};
    for (int64_t e = 0; e < c_.experts; ++e) {
      const std::string expert = fmt::format("{}{}experts.{}.", file_, moe, e);
      gate_up.layouts[0].push_back(
          {fmt::format("{}{}.weight", expert, family_.gate), {width, c_.hidden}, e, 0});
      gate_up.layouts[0].push_back(
          {fmt::format("{}{}.weight", expert, family_.up), {width, c_.hidden}, e, width});
    }
    auto& down = add("moe.down", {c_.experts, c_.hidden, width}, InitKind::kResidual);
    down.by_expert = true;
    down.layouts = {{}, {whole(fused + "experts.down_proj", down.shape)}};
    for (int64_t e = 0; e < c_.experts; ++e) {
      down.layouts[0].push_back(
          {fmt::format("{}{}experts.{}.{}.weight", file_, moe, e, family_.down),
           {c_.hidden, width},
           e,
           0});
    }

    if (c_.shared != SharedExpert::kNone) {
      gated_mlp("moe.shared_", fmt::format("{}{}.", moe, family_.shared), c_.shared_width, false);
    }
    if (c_.shared == SharedExpert::kGated) {
      matrix("moe.shared_gate", moe + "shared_expert_gate.weight", {1, c_.hidden});
    }
  }

  const ModelConfig& c_;
  const Family& family_;
  std::vector<ParameterPlan> plans_;
  std::string own_, file_;
};

bool holds_floats(at::ScalarType dtype) {
  return dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf ||
         dtype == at::kDouble;
}

// Names of a list for one line: all of a few, else the first and a count.
std::string some(const std::vector<std::string>& names) {
  constexpr size_t kShown = 3;
  std::string text;
  for (size_t i = 0; i < names.size() && i < kShown; ++i)
    text += fmt::format("{}'{}'", i == 0 ? "" : ", ", names[i]);
  if (names.size() > kShown) text += fmt::format(" and {} more", names.size() - kShown);
  return text;
}

}  // namespace

std::vector<ParameterPlan> plan_parameters(const ModelConfig& config) {
  return Planner(config).plan();
}

std::vector<size_t> match_files(const std::vector<ParameterPlan>& plans, const ModelConfig& config,
                                const tensor::SafetensorsFolder& files) {
  std::vector<size_t> chosen;
  std::vector<std::string> missing;
  std::set<std::string_view> used;
  for (const auto& plan : plans) {
    // The layout that has something; two of them would be two values for one parameter.
    std::vector<size_t> found;
    for (size_t i = 0; i < plan.layouts.size(); ++i) {
      for (const auto& piece : plan.layouts[i]) {
        if (files.find(piece.name) != nullptr) {
          found.push_back(i);
          break;
        }
      }
    }
    const bool tied_twice =
        found.size() == 2 && plan.name == "embed";  // Equal bytes: read_model_config looked.
    if (found.size() > 1 && !tied_twice) {
      throw FormatError("{}: parameter {} is there twice, as '{}' and as '{}'",
                        files.path().string(), plan.name, plan.layouts[found[0]][0].name,
                        plan.layouts[found[1]][0].name);
    }
    chosen.push_back(found.empty() ? 0 : found[0]);
    if (tied_twice) used.insert(plan.layouts[1][0].name);
    for (const auto& piece : plan.layouts[chosen.back()]) {
      const auto* entry = files.find(piece.name);
      if (entry == nullptr) {
        missing.push_back(piece.name);
        continue;
      }
      used.insert(piece.name);
      if (entry->tensor->shape != piece.shape) {
        throw FormatError("{}: tensor '{}' has shape [{}], config.json asks for [{}]",
                          entry->file->path().string(), piece.name,
                          fmt::join(entry->tensor->shape, ", "), fmt::join(piece.shape, ", "));
      }
      if (!holds_floats(entry->tensor->dtype)) {
        throw FormatError("{}: tensor '{}' is stored as {}; convert the model to bfloat16 first",
                          entry->file->path().string(), piece.name,
                          tensor::safetensors_dtype_name(entry->tensor->dtype));
      }
    }
  }
  if (!missing.empty()) {
    throw FormatError("{}: missing {} of the tensors config.json asks for: {}{}",
                      files.path().string(), missing.size(), some(missing),
                      missing[0] == "lm_head.weight" ? " (and tie_word_embeddings is false)" : "");
  }
  std::vector<std::string> unexpected;
  for (const auto& [name, entry] : files.entries()) {
    if (!used.contains(name) && !is_skipped(config, name)) unexpected.push_back(name);
  }
  if (!unexpected.empty()) {
    throw FormatError("{}: {} tensors that a {} of this config.json does not have: {}",
                      files.path().string(), unexpected.size(), config.family, some(unexpected));
  }
  return chosen;
}

void read_parameter(const ParameterPlan& plan, size_t layout,
                    const tensor::SafetensorsFolder& files, const at::Tensor& destination,
                    const ExpertRange& experts) {
  for (const auto& piece : plan.layouts[layout]) {
    const auto* entry = files.find(piece.name);
    QD_CHECK(entry != nullptr, "'{}' was there a moment ago", piece.name);
    if (piece.expert >= 0) {
      if (piece.expert < experts.begin || piece.expert >= experts.end) continue;
      FilePiece local = piece;
      local.expert -= experts.begin;
      entry->file->read_into(*entry->tensor, 0, piece_of(destination, local));
    } else if (plan.by_expert) {
      const int64_t each = entry->tensor->numel() / piece.shape[0];
      entry->file->read_into(*entry->tensor, experts.begin * each, destination);
    } else {
      entry->file->read_into(*entry->tensor, 0, piece_of(destination, piece));
    }
  }
}

at::Tensor piece_of(const at::Tensor& value, const FilePiece& piece) {
  const at::Tensor slice = piece.expert >= 0 ? value.select(0, piece.expert) : value;
  return slice.narrow(0, piece.row, piece.shape[0]);
}

}  // namespace quadrille::model
