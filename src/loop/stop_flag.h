// SIGINT and SIGTERM ask the run to save and exit; a second one exits at once.
#pragma once

namespace quadrille::loop {

// Installs the handlers for the life of the object (one at a time in a process).
class StopFlag {
 public:
  StopFlag();
  ~StopFlag();
  StopFlag(const StopFlag&) = delete;
  StopFlag& operator=(const StopFlag&) = delete;

  bool requested() const;
};

}  // namespace quadrille::loop
