// JSON from files that may be damaged: one complete value, valid UTF-8, and no key twice in an
// object (most readers let the last one win, so two readers of one file could see two models).
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <filesystem>
#include <string>
#include <string_view>

namespace quadrille::tensor {

// Throws FormatError naming `origin` and the place.
nlohmann::json parse_strict_json(std::string_view text, const std::string& origin);
nlohmann::json read_strict_json(const std::filesystem::path& path);

}  // namespace quadrille::tensor
