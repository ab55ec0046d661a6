#include "loop/stop_flag.h"

#include <unistd.h>
#include <csignal>
#include <cstring>

#include "base/error.h"

namespace quadrille::loop {
namespace {

volatile std::sig_atomic_t signals_seen = 0;
bool installed = false;
struct sigaction previous_interrupt, previous_terminate;

void on_signal(int) {
  signals_seen = signals_seen + 1;
  if (signals_seen == 1) {
    constexpr char kMessage[] = "\nstopping: saving first (once more to exit at once)\n";
    [[maybe_unused]] const auto written = ::write(STDERR_FILENO, kMessage, sizeof(kMessage) - 1);
  } else {
    // Checkpoints count only from their manifest on, so an exit in the middle of one loses nothing
    // older.
    ::_exit(130);
  }
}

}  // namespace

StopFlag::StopFlag() {
  QD_CHECK(!installed, "two stop flags");
  installed = true;
  signals_seen = 0;
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGINT, &action, &previous_interrupt);
  ::sigaction(SIGTERM, &action, &previous_terminate);
}

StopFlag::~StopFlag() {
  ::sigaction(SIGINT, &previous_interrupt, nullptr);
  ::sigaction(SIGTERM, &previous_terminate, nullptr);
  installed = false;
}

bool StopFlag::requested() const {
  return signals_seen != 0;
}

}  // namespace quadrille::loop
