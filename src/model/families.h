// The model families: for each, how its config.json is read and written, and how its files name
// things. All else (formulas, kernels, loading) is common. Adding a family: docs/models.md, last
// section.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "model/config.h"
#include "model/config_json.h"

namespace quadrille::model {

// Whether the weight files hold a tensor; used only where config.json is silent.
using HasTensor = std::function<bool(std::string_view name)>;

struct Family {
  std::string_view model_type;
  std::string_view architecture;  // Of config.json's "architectures".
  double default_theta = 10000;

  // What is particular; the common keys are read before and checked after (read_config).
  void (*read)(const ConfigJson& json, const HasTensor& has_tensor, ModelConfig& config) = nullptr;
  void (*write)(const ModelConfig& config, nlohmann::json& json) = nullptr;

  // File names of the MoE part, in the original layout: LAYER.MOE.experts.3.GATE.weight.
  std::string_view moe = "mlp";
  std::string_view gate = "gate_proj", up = "up_proj", down = "down_proj";
  std::string_view shared;          // Of the shared expert.
  bool router_always_fp32 = false;  // Stored in fp32 whatever the rest is stored in.
};

// Throws FormatError listing the known ones.
const Family& find_family(std::string_view model_type, const std::string& origin);
std::vector<std::string_view> family_names();

// The model of a config.json. `has_tensor` may be empty. The result is valid.
ModelConfig read_config(const ConfigJson& json, const HasTensor& has_tensor);
// All keys of a config.json from which any reader gets this model back.
nlohmann::json write_config(const ModelConfig& config);

// A tensor that may lie in the files and is no part of the model.
bool is_skipped(const ModelConfig& config, std::string_view tensor_name);

}  // namespace quadrille::model
