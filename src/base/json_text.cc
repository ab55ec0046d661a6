#include "base/json_text.h"

#include <fmt/format.h>

namespace quadrille {
namespace {
constexpr int kMaxDepth = 256;
}

std::optional<std::string> json_text_danger(std::string_view text) {
  int depth = 0;
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '\0') return fmt::format("a zero byte at {}", i);
    if (quoted) {
      if (c == '\\' && i + 1 < text.size() && text[i + 1] != '\0') {
        ++i;
      } else if (c == '"') {
        quoted = false;
      }
    } else if (c == '"') {
      quoted = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kMaxDepth) return fmt::format("nested deeper than {} levels", kMaxDepth);
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return std::nullopt;
}

std::string_view json_reason(std::string_view message) {
  const size_t end = message.starts_with("[json.exception") ? message.find("] ") : message.npos;
  return end == message.npos ? message : message.substr(end + 2);
}

}  // namespace quadrille
