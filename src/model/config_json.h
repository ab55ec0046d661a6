// config.json as families read it: typed look-ups that name key and file when something is missing
// or odd.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "model/config.h"

namespace quadrille::model {

class ConfigJson {
 public:
  explicit ConfigJson(const std::filesystem::path& file);
  ConfigJson(nlohmann::json value, std::string origin);

  const nlohmann::json& root() const { return json_; }
  const std::string& origin() const { return origin_; }

  // Present and not null.
  bool has(const char* key) const;
  // At least 1.
  int64_t size(const char* key) const;
  int64_t integer(const char* key) const;
  int64_t integer_or(const char* key, int64_t otherwise) const;
  double number(const char* key) const;
  double number_or(const char* key, double otherwise) const;
  bool boolean(const char* key) const;
  bool boolean_or(const char* key, bool otherwise) const;
  std::string string_or(const char* key, const std::string& otherwise) const;
  std::vector<int64_t> integers_or(const char* key, const std::vector<int64_t>& otherwise) const;
  std::vector<std::string> strings(const char* key) const;
  // A part of the file, for messages "FILE: rope_scaling.factor".
  ConfigJson part(const char* key) const;

  [[noreturn]] void fail(const std::string& what) const;

 private:
  const nlohmann::json& at(const char* key) const;

  nlohmann::json json_;
  std::string origin_;
  std::string prefix_;
};

// RoPE from the places where old and new files keep it. Without any theta: the default, and a
// warning.
RopeConfig read_rope(const ConfigJson& json, double default_theta);
// Writes rope_parameters, and rope_theta and rope_scaling for readers that know only those.
void write_rope(const RopeConfig& rope, nlohmann::json& json);

}  // namespace quadrille::model
