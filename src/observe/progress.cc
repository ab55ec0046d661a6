#include "observe/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>

#include "base/log.h"

namespace quadrille::observe {
namespace {

// The line on the screen now; log lines wipe it and put it back.
std::string live_line;

void wipe() {
  if (!live_line.empty()) std::fputs("\r\033[K", stderr);
}
void redraw() {
  if (!live_line.empty()) std::fputs(live_line.c_str(), stderr);
}

size_t terminal_width() {
  winsize size{};
  return ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

}  // namespace

Progress::Progress(const Clock& clock, std::chrono::milliseconds plain_every)
    : clock_(clock), plain_every_(plain_every), terminal_(::isatty(STDERR_FILENO) == 1) {
  if (terminal_) set_log_hooks(wipe, redraw);
}

Progress::~Progress() {
  finish();
}

void Progress::show(const std::string& line, bool force) {
  if (terminal_) {
    wipe();
    // A line that wraps could not be rewritten in place.
    live_line = line.substr(0, terminal_width() - 1);
    redraw();
    std::fflush(stderr);
    return;
  }
  const TimePoint now = clock_.now();
  if (printed_ && !force && now - last_ < plain_every_) return;
  std::fprintf(stderr, "%s\n", line.c_str());
  printed_ = true;
  last_ = now;
}

void Progress::finish() {
  if (!terminal_) return;
  set_log_hooks(nullptr, nullptr);
  if (!live_line.empty()) std::fputc('\n', stderr);
  live_line.clear();
}

std::string format_duration(double seconds) {
  const auto whole = static_cast<int64_t>(std::llround(std::max(0.0, seconds)));
  if (whole >= 3600)
    return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
  if (whole >= 60) return fmt::format("{}:{:02}", whole / 60, whole % 60);
  return fmt::format("{} s", whole);
}

std::string format_count(double count) {
  if (count >= 1e9) return fmt::format("{:.2f}G", count / 1e9);
  if (count >= 1e6) return fmt::format("{:.2f}M", count / 1e6);
  if (count >= 1e4) return fmt::format("{:.1f}k", count / 1e3);
  return fmt::format("{:.0f}", count);
}

}  // namespace quadrille::observe
