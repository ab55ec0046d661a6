#include "checkpoint/export.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "model/config_json.h"
#include "model/families.h"
#include "model/transformer.h"
#include "tensor/strict_json.h"

namespace quadrille::checkpoint {

namespace fs = std::filesystem;

namespace {

constexpr const char* kConfigFile = "config.json";

// Texts that belong to a model but are not its weights.
bool is_carried(const fs::path& file) {
  const std::string name = file.filename().string();
  const std::string extension = file.extension().string();
  if (name == kConfigFile || name.ends_with(".index.json") || name.starts_with(".")) return false;
  return extension == ".json" || extension == ".jinja" || extension == ".txt" ||
         extension == ".model";
}

std::string config_text(const model::ModelConfig& config, const fs::path& carry_from) {
  const fs::path original = carry_from / kConfigFile;
  nlohmann::json json;
  if (!carry_from.empty() && fs::exists(original)) {
    const std::string text = read_file(original);
    json = tensor::parse_strict_json(text, original.string());
    // Without the weights beside it, as it will lie in the checkpoint.
    model::ModelConfig said;
    bool same = json.value("model_type", "") == config.family;
    if (same) {
      try {
        said = model::read_config(model::ConfigJson(json, original.string()), {});
        said.router_fp32 = config.router_fp32;
        same = said == config;
      } catch (const Error&) {
        same = false;
      }
    }
    if (same) return text;
    for (const char* key : {"num_experts", "num_local_experts", "n_routed_experts", "rope_scaling",
                            "layer_types", "auto_map", "original_max_position_embeddings"}) {
      json.erase(key);
    }
  }
  nlohmann::json full = model::write_config(config);
  for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"}) {
    if (json.contains(key)) full.erase(key);
  }
  if (json.is_null()) return full.dump(2) + "\n";
  json.update(full);
  return json.dump(2) + "\n";
}

std::string bytes_text(uint64_t bytes) {
  const std::array<const char*, 5> units = {"B", "kB", "MB", "GB", "TB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1000 && unit + 1 < units.size()) {
    value /= 1000;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, units[unit]);
}

}  // namespace

std::vector<StoredText> model_files(const model::ModelConfig& config, const fs::path& carry_from) {
  std::vector<StoredText> files = {{kConfigFile, config_text(config, carry_from)}};
  if (carry_from.empty()) return files;
  const auto add_folder = [&](const fs::path& folder, const std::string& prefix) {
    if (!fs::is_directory(folder)) return;
    std::vector<fs::path> found;
    for (const auto& entry : fs::directory_iterator(folder)) {
      if (entry.is_regular_file() && is_carried(entry.path())) found.push_back(entry.path());
    }
    std::sort(found.begin(), found.end());
    for (const fs::path& path : found)
      files.push_back({prefix + path.filename().string(), read_file(path)});
  };
  add_folder(carry_from, "");
  add_folder(carry_from / "additional_chat_templates", "additional_chat_templates/");
  return files;
}

void export_model(const Checkpoint& checkpoint, const fs::path& folder,
                  model::SaveOptions options) {
  const at::NoGradGuard no_grad;
  const model::ModelConfig config = model::read_model_config(checkpoint.model_folder());
  model::Transformer model(config, at::kFloat, at::kCPU);
  for (const tensor::ParamPtr& param : model.parameters()) {
    const at::Tensor stored = checkpoint.tensor(param->name);
    if (stored.sizes() != param->value.sizes()) {
      throw FormatError("{}: tensor {} has another shape than model/config.json says",
                        checkpoint.folder().string(), param->name);
    }
    param->value.copy_(stored);
    param->changed();
  }
  options.carry_from = checkpoint.model_folder();
  model::save_model(model, folder, options);
}

std::string describe_checkpoint(const fs::path& folder) {
  const std::vector<int64_t> steps = list_steps(folder);
  if (!fs::exists(folder)) throw IoError("{}: no such folder", folder.string());
  if (steps.empty() && !fs::exists(folder / kManifestFile)) {
    throw FormatError(
        "{}: neither a checkpoint (no {}) nor a folder of checkpoints (no step-NNNNNN)",
        folder.string(), kManifestFile);
  }
  const Checkpoint checkpoint(steps.empty() ? folder : folder / step_name(steps.back()));

  int64_t numbers = 0;
  int64_t parameters = 0;
  for (const std::string& name : checkpoint.tensor_names()) {
    if (name.starts_with("m.") || name.starts_with("v.")) continue;
    ++parameters;
    int64_t count = 1;
    for (const int64_t size : checkpoint.shape(name)) count *= size;
    numbers += count;
  }
  uint64_t total = 0;
  std::string files;
  for (const FileEntry& file : checkpoint.manifest().files) {
    total += file.bytes;
    files += fmt::format("  {:<44} {:>10}  xxh64 {:016x}\n", file.name, bytes_text(file.bytes),
                         file.xxh64);
  }
  std::string out =
      fmt::format("checkpoint of step {} in {}\n", checkpoint.step(), checkpoint.folder().string());
  if (!steps.empty() && steps.size() > 1) {
    out += "others there: step";
    for (size_t i = 0; i + 1 < steps.size(); ++i) out += fmt::format(" {}", steps[i]);
    out += "\n";
  }
  const fs::path config = checkpoint.model_folder() / kConfigFile;
  if (fs::exists(config)) {
    const nlohmann::json json = tensor::read_strict_json(config);
    out += fmt::format("model: {}\n", json.value("model_type", "of an unknown family"));
  }
  out += fmt::format("parameters: {} in {} tensors, fp32\n", numbers, parameters);
  if (checkpoint.manifest().metric)
    out += fmt::format("evaluation: {:.6g}\n", *checkpoint.manifest().metric);
  out += fmt::format("{} files, {}, every size and checksum matches:\n{}",
                     checkpoint.manifest().files.size(), bytes_text(total), files);
  return out;
}

}  // namespace quadrille::checkpoint
