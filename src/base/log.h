// One log sink for the process: plain lines on standard error, so that standard output stays data.
// Messages name the thing and the value; nothing is logged in a per-token path.
#pragma once

#include <fmt/format.h>

#include <string>

namespace quadrille {

enum class LogLevel { kDebug, kInfo, kWarn, kError };

void log_line(LogLevel level, const std::string& message);
// Below this level nothing is printed. QUADRILLE_LOG=debug|info|warn|error sets the first value.
void set_log_level(LogLevel level);
// Called before each line and after it, so that a live progress line can step aside. May be null.
void set_log_hooks(void (*before)(), void (*after)());

template <class... Args>
void log_debug(fmt::format_string<Args...> format, Args&&... args) {
  log_line(LogLevel::kDebug, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
  log_line(LogLevel::kInfo, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void log_warn(fmt::format_string<Args...> format, Args&&... args) {
  log_line(LogLevel::kWarn, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void log_error(fmt::format_string<Args...> format, Args&&... args) {
  log_line(LogLevel::kError, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace quadrille
