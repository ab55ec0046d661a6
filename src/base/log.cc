#include "base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <cstdlib>
#include <memory>
#include <mutex>

namespace quadrille {
namespace {

struct Sink {
  std::shared_ptr<spdlog::logger> logger;
  void (*before)() = nullptr;
  void (*after)() = nullptr;
  std::mutex mutex;

  Sink() {
    // spdlog colours only a terminal; NO_COLOR switches that off too.
    const auto mode = std::getenv("NO_COLOR") != nullptr ? spdlog::color_mode::never
                                                         : spdlog::color_mode::automatic;
    logger = std::make_shared<spdlog::logger>(
        "quadrille", std::make_shared<spdlog::sinks::stderr_color_sink_mt>(mode));
    logger->set_pattern("%^%l%$: %v");
    const char* level = std::getenv("QUADRILLE_LOG");
    logger->set_level(level != nullptr ? spdlog::level::from_str(level) : spdlog::level::info);
    logger->flush_on(spdlog::level::debug);
  }
};

Sink& sink() {
  static Sink instance;
  return instance;
}

spdlog::level::level_enum to_spdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarn:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
  }
  return spdlog::level::info;
}

}  // namespace

void log_line(LogLevel level, const std::string& message) {
  Sink& out = sink();
  const std::lock_guard lock(out.mutex);
  if (out.before != nullptr) out.before();
  out.logger->log(to_spdlog(level), "{}", message);
  if (out.after != nullptr) out.after();
}

void set_log_level(LogLevel level) {
  sink().logger->set_level(to_spdlog(level));
}

void set_log_hooks(void (*before)(), void (*after)()) {
  Sink& out = sink();
  const std::lock_guard lock(out.mutex);
  out.before = before;
  out.after = after;
}

}  // namespace quadrille
