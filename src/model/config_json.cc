#include "model/config_json.h"

#include <cmath>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "tensor/strict_json.h"

namespace quadrille::model {

using nlohmann::json;

ConfigJson::ConfigJson(const std::filesystem::path& file)
    : ConfigJson(tensor::read_strict_json(file), file.string()) {}

ConfigJson::ConfigJson(json value, std::string origin)
    : json_(std::move(value)), origin_(std::move(origin)) {
  if (!json_.is_object()) throw FormatError("{}: not a JSON object", origin_);
}

void ConfigJson::fail(const std::string& what) const {
  throw FormatError("{}: {}{}", origin_, prefix_, what);
}

bool ConfigJson::has(const char* key) const {
  return json_.contains(key) && !json_[key].is_null();
}

const json& ConfigJson::at(const char* key) const {
  if (!json_.contains(key)) fail(fmt::format("{} is missing", key));
  if (json_[key].is_null()) fail(fmt::format("{} is null", key));
  return json_[key];
}

int64_t ConfigJson::size(const char* key) const {
  const int64_t value = integer(key);
  if (value < 1) fail(fmt::format("{} is {}, it must be at least 1", key, value));
  return value;
}

int64_t ConfigJson::integer(const char* key) const {
  const json& value = at(key);
  const bool fits =
      value.is_number_integer() &&
      !(value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX));
  if (!fits) fail(fmt::format("{} is {}, not an integer", key, value.dump()));
  return value.get<int64_t>();
}

int64_t ConfigJson::integer_or(const char* key, int64_t otherwise) const {
  return has(key) ? integer(key) : otherwise;
}

double ConfigJson::number(const char* key) const {
  const json& value = at(key);
  if (!value.is_number()) fail(fmt::format("{} is {}, not a number", key, value.dump()));
  return value.get<double>();
}

double ConfigJson::number_or(const char* key, double otherwise) const {
  return has(key) ? number(key) : otherwise;
}

bool ConfigJson::boolean(const char* key) const {
  const json& value = at(key);
  if (!value.is_boolean()) fail(fmt::format("{} is {}, not true or false", key, value.dump()));
  return value.get<bool>();
}

bool ConfigJson::boolean_or(const char* key, bool otherwise) const {
  return has(key) ? boolean(key) : otherwise;
}

std::string ConfigJson::string_or(const char* key, const std::string& otherwise) const {
  if (!has(key)) return otherwise;
  if (!json_[key].is_string()) fail(fmt::format("{} is {}, not a string", key, json_[key].dump()));
  return json_[key].get<std::string>();
}

std::vector<int64_t> ConfigJson::integers_or(const char* key,
                                             const std::vector<int64_t>& otherwise) const {
  if (!has(key)) return otherwise;
  std::vector<int64_t> result;
  if (!json_[key].is_array()) fail(fmt::format("{} is not a list", key));
  for (const auto& item : json_[key]) {
    if (!item.is_number_integer())
      fail(fmt::format("{} holds {}, not an integer", key, item.dump()));
    result.push_back(item.get<int64_t>());
  }
  return result;
}

std::vector<std::string> ConfigJson::strings(const char* key) const {
  std::vector<std::string> result;
  if (!at(key).is_array()) fail(fmt::format("{} is not a list", key));
  for (const auto& item : json_[key]) {
    if (!item.is_string()) fail(fmt::format("{} holds {}, not a string", key, item.dump()));
    result.push_back(item.get<std::string>());
  }
  return result;
}

ConfigJson ConfigJson::part(const char* key) const {
  if (!at(key).is_object()) fail(fmt::format("{} is not an object", key));
  ConfigJson result(json_[key], origin_);
  result.prefix_ = prefix_ + key + ".";
  return result;
}

RopeConfig read_rope(const ConfigJson& json, double default_theta) {
  // Where both stand, transformers takes the whole of the old name's dictionary.
  const char* place = nullptr;
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (place == nullptr && json.has(key) && !json.root()[key].empty()) place = key;
  }
  const ConfigJson dict =
      place != nullptr ? json.part(place) : ConfigJson(json::object(), json.origin());
  for (const auto& [key, value] : dict.root().items()) {
    if (value.is_object())
      dict.fail(fmt::format("{}: RoPE that differs by layer type is not supported", key));
  }
  for (const ConfigJson* where : {&dict, &json}) {
    if (where->number_or("partial_rotary_factor", 1) != 1) {
      where->fail("partial_rotary_factor other than 1 is not supported");
    }
  }

  RopeConfig rope;
  rope.type = dict.string_or("rope_type", dict.string_or("type", "default"));
  if (dict.has("rope_theta")) {
    rope.theta = dict.number("rope_theta");
  } else if (json.has("rope_theta")) {
    rope.theta = json.number("rope_theta");
  } else {
    rope.theta = default_theta;
    log_warn("{}: no rope_theta; {} is assumed. If that is wrong, long answers go wrong silently",
             json.origin(), default_theta);
  }
  if (rope.type == "default") return rope;
  if (rope.type != "linear" && rope.type != "llama3" && rope.type != "yarn") {
    dict.fail(fmt::format("rope_type '{}' is not supported (default, linear, llama3, yarn are)",
                          rope.type));
  }

  const int64_t max_positions = json.size("max_position_embeddings");
  if (rope.type != "linear") {
    rope.original_max_positions =
        json.integer_or("original_max_position_embeddings",
                        dict.integer_or("original_max_position_embeddings", max_positions));
    if (rope.original_max_positions < 1)
      json.fail("original_max_position_embeddings must be at least 1");
  }
  const bool computed =
      rope.type == "yarn" && dict.root().contains("factor") && dict.root()["factor"].is_null();
  rope.factor = computed ? static_cast<double>(max_positions) /
                               static_cast<double>(rope.original_max_positions)
                         : dict.number("factor");
  if (rope.type == "llama3") {
    rope.low_freq_factor = dict.number("low_freq_factor");
    rope.high_freq_factor = dict.number("high_freq_factor");
  }
  if (rope.type == "yarn") {
    // A zero means "not given" here, as it does for the reference.
    const auto given = [&](const char* key, double otherwise) {
      const double value = dict.number_or(key, otherwise);
      return value == 0 ? otherwise : value;
    };
    rope.beta_fast = given("beta_fast", rope.beta_fast);
    rope.beta_slow = given("beta_slow", rope.beta_slow);
    rope.truncate = dict.boolean_or("truncate", true);
    rope.mscale = dict.number_or("mscale", 0);
    rope.attention_factor = dict.number_or("attention_factor", 0);
  }
  // Read for every scaled type: DeepSeek's attention scale uses it whatever the type.
  rope.mscale_all_dim = dict.number_or("mscale_all_dim", 0);
  return rope;
}

void write_rope(const RopeConfig& rope, json& out) {
  json dict = {{"rope_type", rope.type}};
  if (rope.type != "default") dict["factor"] = rope.factor;
  if (rope.type == "llama3") {
    dict["low_freq_factor"] = rope.low_freq_factor;
    dict["high_freq_factor"] = rope.high_freq_factor;
  }
  if (rope.type == "llama3" || rope.type == "yarn") {
    dict["original_max_position_embeddings"] = rope.original_max_positions;
  }
  if (rope.type == "yarn") {
    dict["beta_fast"] = rope.beta_fast;
    dict["beta_slow"] = rope.beta_slow;
    if (!rope.truncate) dict["truncate"] = false;
    if (rope.mscale != 0) dict["mscale"] = rope.mscale;
    if (rope.attention_factor != 0) dict["attention_factor"] = rope.attention_factor;
  }
  if (rope.type != "default" && rope.mscale_all_dim != 0)
    dict["mscale_all_dim"] = rope.mscale_all_dim;
  out.erase("original_max_position_embeddings");
  out["rope_scaling"] = rope.type == "default" ? json(nullptr) : dict;
  out["rope_theta"] = rope.theta;
  dict["rope_theta"] = rope.theta;
  out["rope_parameters"] = dict;
}

}  // namespace quadrille::model
