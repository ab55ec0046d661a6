// Time comes from outside: code that measures or waits is handed a Clock, so that tests own the
// time.
#pragma once

#include <chrono>

namespace quadrille {

using TimePoint = std::chrono::steady_clock::time_point;

class Clock {
 public:
  virtual ~Clock() = default;
  virtual TimePoint now() const = 0;
};

class SystemClock final : public Clock {
 public:
  TimePoint now() const override { return std::chrono::steady_clock::now(); }
};

// Advances only when told.
class FakeClock final : public Clock {
 public:
  TimePoint now() const override { return now_; }
  void advance(std::chrono::nanoseconds by) { now_ += by; }

 private:
  TimePoint now_{};
};

// Seconds since 1970, for what people read as a date; never for measuring or waiting.
inline double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

inline double seconds_between(TimePoint begin, TimePoint end) {
  return std::chrono::duration<double>(end - begin).count();
}

}  // namespace quadrille
