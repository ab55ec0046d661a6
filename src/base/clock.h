// Time comes from outside: code that measures or waits is handed a Clock, so that tests own the
// time.
#pragma once

#include <chrono>
#include <ctime>

namespace quadrille {

using TimePoint = std::chrono::steady_clock::time_point;

class Clock {
 public:
  virtual ~Clock() = default;
  virtual TimePoint now() const = 0;
  // Seconds since 1970, for what people read as a date; never for measuring or waiting.
  virtual double wall_seconds() const = 0;
};

class SystemClock final : public Clock {
 public:
  TimePoint now() const override { return std::chrono::steady_clock::now(); }
  double wall_seconds() const override {
    const auto since_1970 = std::chrono::system_clock::now().time_since_epoch();
    return std::chrono::duration<double>(since_1970).count();
  }
};

// Advances only when told.
class FakeClock final : public Clock {
 public:
  explicit FakeClock(double wall_seconds = 0) : wall_at_start_(wall_seconds) {}
  TimePoint now() const override { return now_; }
  double wall_seconds() const override {
    return wall_at_start_ + std::chrono::duration<double>(now_ - TimePoint{}).count();
  }
  void advance(std::chrono::nanoseconds by) { now_ += by; }

 private:
  TimePoint now_{};
  double wall_at_start_;
};

// What a clock on the wall shows here, with no zone to it: strftime prints %Z and %z as nothing.
inline std::tm local_time(double wall_seconds) {
  const auto seconds = static_cast<std::time_t>(wall_seconds);
  std::tm local{};
  ::localtime_r(&seconds, &local);
  local.tm_isdst = -1;
  local.tm_gmtoff = 0;
  local.tm_zone = nullptr;
  return local;
}

inline double seconds_between(TimePoint begin, TimePoint end) {
  return std::chrono::duration<double>(end - begin).count();
}

}  // namespace quadrille
