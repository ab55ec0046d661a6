// The live line of long work. On a terminal one line is rewritten in place; elsewhere a plain line
// appears now and then, so that a log file stays readable. Always on standard error.
#pragma once

#include <cstdint>
#include <string>

#include "base/clock.h"

namespace quadrille::observe {

class Progress {
 public:
  // plain_every: least time between two plain lines where the output is not a terminal.
  explicit Progress(const Clock& clock,
                    std::chrono::milliseconds plain_every = std::chrono::seconds(1));
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // True if the line is rewritten in place: then it may change often.
  bool live() const { return terminal_; }
  // Shows `line`; force prints a plain line even if the last one is recent.
  void show(const std::string& line, bool force = false);
  // Leaves the last line standing and ends the live display.
  void finish();

 private:
  const Clock& clock_;
  std::chrono::milliseconds plain_every_;
  bool terminal_ = false;
  bool printed_ = false;
  TimePoint last_{};
};

// "1:04:09", "4:09", "9 s".
std::string format_duration(double seconds);
// "812", "48.3k", "1.06M".
std::string format_count(double count);

}  // namespace quadrille::observe
