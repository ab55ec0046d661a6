#include "tensor/strict_json.h"

#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/json_text.h"

namespace quadrille::tensor {

using nlohmann::json;

json parse_strict_json(std::string_view text, const std::string& origin) {
  if (const auto danger = json_text_danger(text))
    throw FormatError("{}: not JSON: {}", origin, *danger);
  std::vector<std::set<std::string>> keys;
  std::string duplicate;
  const auto watch = [&](int, json::parse_event_t event, json& value) {
    switch (event) {
      case json::parse_event_t::object_start:
        keys.emplace_back();
        break;
      case json::parse_event_t::object_end:
        keys.pop_back();
        break;
      case json::parse_event_t::key:
        if (!keys.back().insert(value.get<std::string>()).second && duplicate.empty()) {
          duplicate = value.get<std::string>();
        }
        break;
      default:
        break;
    }
    return true;
  };
  json result;
  try {
    result = json::parse(text.begin(), text.end(), watch);
  } catch (const json::exception& error) {
    throw FormatError("{}: not JSON: {}", origin, json_reason(error.what()));
  }
  if (!duplicate.empty())
    throw FormatError("{}: key '{}' stands twice in one object", origin, duplicate);
  return result;
}

json read_strict_json(const std::filesystem::path& path) {
  return parse_strict_json(read_file(path), path.string());
}

}  // namespace quadrille::tensor
