#include "model/checkpoint_io.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "model/families.h"
#include "model/layout.h"
#include "tensor/safetensors.h"
#include "tensor/strict_json.h"

namespace quadrille::model {

using nlohmann::json;
using tensor::SafetensorsFolder;

namespace {

constexpr const char* kConfigFile = "config.json";
constexpr const char* kGenerationFile = "generation_config.json";
constexpr std::array kCarriedFiles = {
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
};
constexpr const char* kCarriedFolder = "additional_chat_templates";

// Whether two stored tensors hold the same numbers. Dtypes may differ, so this is about values, not
// bytes.
bool same_values(const SafetensorsFolder::Entry& a, const SafetensorsFolder::Entry& b) {
  if (a.tensor->shape != b.tensor->shape) return false;
  if (a.tensor->dtype == b.tensor->dtype) {
    const auto left = a.file->bytes(*a.tensor);
    const auto right = b.file->bytes(*b.tensor);
    return std::equal(left.begin(), left.end(), right.begin(), right.end());
  }
  return at::equal(a.file->read(*a.tensor).to(at::kDouble),
                   b.file->read(*b.tensor).to(at::kDouble));
}

// What the folder's tensors say about a head that config.json calls tied.
void settle_tie(const SafetensorsFolder& files, ModelConfig& config) {
  if (!config.tied) return;
  const auto* embed = files.find("model.embed_tokens.weight");
  const auto* head = files.find("lm_head.weight");
  if (embed == nullptr || head == nullptr || same_values(*embed, *head)) return;
  config.tied = false;
  log_warn(
      "{}: tie_word_embeddings is true, but the head differs from the embedding; both are used",
      files.path().string());
}

struct OpenModel {
  ConfigJson file;
  SafetensorsFolder files;
  ModelConfig config;

  explicit OpenModel(const std::filesystem::path& folder)
      : file(folder / kConfigFile), files(folder) {
    config =
        read_config(file, [this](std::string_view name) { return files.find(name) != nullptr; });
    settle_tie(files, config);
  }
};

void fill(Transformer& model, const OpenModel& source) {
  const auto& plans = model.plans();
  const auto layouts = match_files(plans, source.config, source.files);
  for (size_t i = 0; i < plans.size(); ++i) {
    tensor::Param& param = *model.parameters()[i];
    read_parameter(plans[i], layouts[i], source.files, param.value, {0, source.config.experts});
    param.changed();
  }
}

// The dtype most of the file's bytes have: what "the file's dtype" means to people.
at::ScalarType main_dtype(const SafetensorsFolder& files) {
  std::map<at::ScalarType, uint64_t> bytes;
  for (const auto& [name, entry] : files.entries())
    bytes[entry.tensor->dtype] += entry.tensor->num_bytes();
  at::ScalarType best = at::kFloat;
  uint64_t most = 0;
  for (const auto& [dtype, sum] : bytes) {
    if (sum > most) {
      best = dtype;
      most = sum;
    }
  }
  return best;
}

at::ScalarType choose_dtype(DtypeChoice choice, const SafetensorsFolder& files, at::Device device) {
  switch (choice) {
    case DtypeChoice::kFp32:
      return at::kFloat;
    case DtypeChoice::kBf16:
      return at::kBFloat16;
    case DtypeChoice::kAuto:
      break;
  }
  if (device.is_cpu()) return at::kFloat;
  const at::ScalarType stored = main_dtype(files);
  return stored == at::kBFloat16 || stored == at::kHalf ? at::kBFloat16 : at::kFloat;
}

json end_token_json(const std::vector<int32_t>& tokens) {
  if (tokens.empty()) return nullptr;
  return tokens.size() == 1 ? json(tokens[0]) : json(tokens);
}

const char* dtype_text(at::ScalarType dtype) {
  return dtype == at::kBFloat16 ? "bfloat16" : dtype == at::kHalf ? "float16" : "float32";
}

// config.json for the saved model: the carried file with the keys we own set anew, or a full one.
json config_json(const ModelConfig& config, const SaveOptions& options) {
  json out;
  const auto carried = options.carry_from / kConfigFile;
  if (!options.carry_from.empty() && std::filesystem::exists(carried)) {
    const ConfigJson original(carried);
    out = original.root();
    bool same = false;
    if (out.value("model_type", "") == config.family) {
      ModelConfig was = read_model_config(options.carry_from);
      was.tied = config.tied;
      was.router_fp32 = config.router_fp32;
      same = was == config;
    }
    if (!same) {
      // Another shape under the same tokenizer (an upcycled model, say): our keys replace theirs,
      // and the names that only they use for the same things go.
      for (const char* key :
           {"num_experts", "num_local_experts", "n_routed_experts", "rope_scaling", "layer_types",
            "auto_map", "original_max_position_embeddings"}) {
        out.erase(key);
      }
      json full = write_config(config);
      for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"}) {
        if (out.contains(key)) full.erase(key);
      }
      out.update(full);
    }
  } else {
    out = write_config(config);
    out["eos_token_id"] = end_token_json(options.end_tokens);
  }
  out["tie_word_embeddings"] = config.tied;
  if (out.contains("num_nextn_predict_layers")) out["num_nextn_predict_layers"] = 0;
  if (out.contains("torch_dtype")) out["torch_dtype"] = dtype_text(options.dtype);
  if (out.contains("dtype") || !out.contains("torch_dtype"))
    out["dtype"] = dtype_text(options.dtype);
  return out;
}

void carry_files(const std::filesystem::path& from, const std::filesystem::path& to) {
  if (from.empty() || (std::filesystem::exists(to) && std::filesystem::equivalent(from, to)))
    return;
  for (const char* name : kCarriedFiles) {
    if (std::filesystem::is_regular_file(from / name))
      write_file_atomic(to / name, read_file(from / name));
  }
  if (!std::filesystem::is_directory(from / kCarriedFolder)) return;
  std::filesystem::create_directories(to / kCarriedFolder);
  for (const auto& file : std::filesystem::directory_iterator(from / kCarriedFolder)) {
    if (file.is_regular_file()) {
      write_file_atomic(to / kCarriedFolder / file.path().filename(), read_file(file.path()));
    }
  }
}

std::vector<int32_t> read_ids(const std::filesystem::path& file, const char* key) {
  std::vector<int32_t> ids;
  if (!std::filesystem::exists(file)) return ids;
  const ConfigJson config(file);
  if (!config.has(key)) return ids;
  const auto add = [&](const nlohmann::json& value) {
    if (!value.is_number_integer() || value.get<int64_t>() < 0 ||
        value.get<int64_t>() > INT32_MAX) {
      config.fail(fmt::format("{} holds {}, not a token id", key, value.dump()));
    }
    ids.push_back(value.get<int32_t>());
  };
  const auto& value = config.root()[key];
  if (value.is_array()) {
    for (const auto& item : value) add(item);
  } else {
    add(value);
  }
  return ids;
}

std::string in_units(double value, std::array<const char*, 4> units, double step) {
  size_t unit = 0;
  while (value >= step && unit + 1 < units.size()) {
    value /= step;
    ++unit;
  }
  return unit == 0 ? fmt::format("{:.0f}{}", value, units[0])
                   : fmt::format("{:.3g}{}", value, units[unit]);
}

std::string bytes_text(uint64_t bytes) {
  return in_units(static_cast<double>(bytes), {" bytes", " kB", " MB", " GB"}, 1000);
}
std::string count_text(int64_t count) {
  return in_units(static_cast<double>(count), {"", " k", " M", " B"}, 1000);
}

}  // namespace

ModelConfig read_model_config(const std::filesystem::path& folder) {
  if (SafetensorsFolder::present(folder)) return OpenModel(folder).config;
  return read_config(ConfigJson(folder / kConfigFile), {});
}

std::unique_ptr<Transformer> load_model(const std::filesystem::path& folder, DtypeChoice dtype,
                                        at::Device device, bool router_fp32) {
  OpenModel source(folder);
  if (source.config.moe_layers() > 0 && router_fp32) source.config.router_fp32 = true;
  // Before the model is allocated: a wrong file should cost no memory.
  match_files(plan_parameters(source.config), source.config, source.files);
  auto model = std::make_unique<Transformer>(source.config,
                                             choose_dtype(dtype, source.files, device), device);
  fill(*model, source);
  return model;
}

void load_weights(Transformer& model, const std::filesystem::path& folder) {
  OpenModel source(folder);
  source.config.router_fp32 = model.config().router_fp32;
  if (source.config.tied != model.config().tied) {
    throw FormatError("{}: the head is {}tied to the embedding, in the model it is {}",
                      folder.string(), source.config.tied ? "" : "not ",
                      source.config.tied ? "not" : "");
  }
  if (!(source.config == model.config())) {
    throw FormatError("{}: the model there has another shape than the one in memory",
                      folder.string());
  }
  fill(model, source);
}

void save_model(const Transformer& model, const std::filesystem::path& folder,
                const SaveOptions& options, const std::vector<at::Tensor>& values) {
  const auto& plans = model.plans();
  QD_CHECK(values.empty() || values.size() == plans.size(), "{} values for {} parameters",
           values.size(), plans.size());
  const at::NoGradGuard no_grad;
  std::filesystem::create_directories(folder);
  carry_files(options.carry_from, folder);

  std::vector<tensor::TensorToWrite> tensors;
  std::map<std::string_view, std::pair<size_t, const FilePiece*>> source;
  for (size_t i = 0; i < plans.size(); ++i) {
    for (const auto& piece : plans[i].layouts[0]) {
      tensors.push_back(
          {piece.name, plans[i].written_fp32 ? at::kFloat : options.dtype, piece.shape});
      source[piece.name] = {i, &piece};
    }
  }
  tensor::write_safetensors_folder(
      folder, tensors, options.max_shard_bytes, [&](const tensor::TensorToWrite& wanted) {
        const auto& [index, piece] = source.at(wanted.name);
        const at::Tensor& value = values.empty() ? model.parameters()[index]->value : values[index];
        QD_CHECK(value.sizes() == at::IntArrayRef(plans[index].shape),
                 "value of {} has another shape", plans[index].name);
        return piece_of(value, *piece);
      });

  if (!std::filesystem::exists(folder / kGenerationFile) && !options.end_tokens.empty()) {
    const json generation = {{"eos_token_id", end_token_json(options.end_tokens)}};
    write_file_atomic(folder / kGenerationFile, generation.dump(2) + "\n");
  }
  // Last: a folder without it is no model yet.
  write_file_atomic(folder / kConfigFile, config_json(model.config(), options).dump(2) + "\n");
}

std::vector<int32_t> read_end_tokens(const std::filesystem::path& folder) {
  auto ids = read_ids(folder / kGenerationFile, "eos_token_id");
  if (ids.empty()) ids = read_ids(folder / kConfigFile, "eos_token_id");
  return ids;
}

std::string describe_model(const std::filesystem::path& folder) {
  const OpenModel model(folder);
  const ModelConfig& c = model.config;
  const auto plans = plan_parameters(c);
  match_files(plans, c, model.files);

  int64_t total = 0;
  int64_t active = 0;
  for (const auto& plan : plans) {
    if (!plan.trainable) continue;
    int64_t size = 1;
    for (const int64_t dimension : plan.shape) size *= dimension;
    total += size;
    active += plan.by_expert ? size / c.experts * c.top_k : size;
  }
  std::set<std::string_view> dtypes;
  for (const auto& [name, entry] : model.files.entries()) {
    dtypes.insert(tensor::safetensors_dtype_name(entry.tensor->dtype));
  }
  int64_t window = 0;
  int64_t sliding = 0;
  for (const auto& layer : c.layers) {
    window = std::max(window, layer.window);
    sliding += layer.window > 0 ? 1 : 0;
  }

  std::string text;
  const auto line = [&](std::string_view name, const std::string& value) {
    text += fmt::format("{:<12} {}\n", name, value);
  };
  line("family", c.family);
  line("parameters", c.moe_layers() > 0 ? fmt::format("{} ({} active a token)", count_text(total),
                                                      count_text(active))
                                        : count_text(total));
  line("layers", fmt::format("{} ({} MoE), hidden {}, vocabulary {}{}", c.layers.size(),
                             c.moe_layers(), c.hidden, c.vocab, c.tied ? ", tied head" : ""));
  if (c.attention == AttentionKind::kLatent) {
    line("attention",
         fmt::format("latent, {} heads, key {}+{}, value {}, ranks q {} kv {}", c.heads,
                     c.qk_nope_dim, c.qk_rope_dim, c.v_head_dim, c.q_lora_rank, c.kv_lora_rank));
  } else {
    line("attention",
         fmt::format("{} heads on {} kv heads of {}{}", c.heads, c.kv_heads, c.head_dim,
                     c.qk_norm == QkNormKind::kNone      ? ""
                     : c.qk_norm == QkNormKind::kPerHead ? ", q/k norm per head"
                                                         : ", q/k norm over all heads"));
  }
  if (sliding > 0)
    line("window", fmt::format("{} on {} of {} layers", window, sliding, c.layers.size()));
  if (c.moe_layers() > 0) {
    line("experts", fmt::format("{} of width {}, {} a token{}", c.experts, c.expert_width, c.top_k,
                                c.shared != SharedExpert::kNone
                                    ? fmt::format(", shared width {}", c.shared_width)
                                    : ""));
  }
  line("positions",
       fmt::format("{}, RoPE {} theta {}", c.max_positions, c.rope.type, c.rope.theta));
  const auto end_tokens = read_end_tokens(folder);
  line("end tokens", end_tokens.empty() ? "none" : fmt::format("{}", fmt::join(end_tokens, ", ")));
  line("weights", fmt::format("{} tensors in {} file{}, {}, {}", model.files.entries().size(),
                              model.files.num_files(), model.files.num_files() == 1 ? "" : "s",
                              bytes_text(model.files.num_bytes()), fmt::join(dtypes, " and ")));
  line("kv cache", fmt::format("{} a token in bfloat16",
                               bytes_text(static_cast<uint64_t>(c.layers.size()) *
                                          static_cast<uint64_t>(c.kv_heads) *
                                          static_cast<uint64_t>(c.key_dim() + c.value_dim()) * 2)));
  return text;
}

}  // namespace quadrille::model
