#include "base/error.h"

#include <string_view>

namespace quadrille::detail {

void check_failed(const char* condition, const char* file, int line, const std::string& message) {
  // The path from src/ on is enough to find the line, and says nothing about the build machine.
  std::string_view path(file);
  if (const auto at = path.rfind("/src/"); at != std::string_view::npos) path.remove_prefix(at + 1);
  throw InternalError(fmt::format("internal error at {}:{}: {}{}{} (this is a bug in Quadrille)",
                                  path, line, condition, message.empty() ? "" : ": ", message));
}

}  // namespace quadrille::detail
