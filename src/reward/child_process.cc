#include "reward/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "base/error.h"

namespace quadrille::reward {
namespace {

struct Pipe {
  int read_end = -1;
  int write_end = -1;
  Pipe() {
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0)
      throw IoError("pipe for a reward worker: {}", std::strerror(errno));
    read_end = ends[0];
    write_end = ends[1];
  }
};

constexpr size_t kReadAtOnce = 1 << 20;

void set_nonblocking(int descriptor) {
  ::fcntl(descriptor, F_SETFL, ::fcntl(descriptor, F_GETFL) | O_NONBLOCK);
}

// Runs in the forked child: async-signal-safe calls only.
[[noreturn]] void become(char* const* argv, int in, int out, int err, int report) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::dup2(in, STDIN_FILENO);
  ::dup2(out, STDOUT_FILENO);
  ::dup2(err, STDERR_FILENO);
  ::signal(SIGPIPE, SIG_DFL);
  ::signal(SIGINT, SIG_DFL);
  ::signal(SIGTERM, SIG_DFL);
  ::execvp(argv[0], argv);
  const int code = errno;
  [[maybe_unused]] const auto written = ::write(report, &code, sizeof(code));
  ::_exit(127);
}

}  // namespace

ChildProcess::ChildProcess(const std::vector<std::string>& command) {
  QD_CHECK(!command.empty());
  // A worker that ends while we write to it is an error code for us, not a signal.
  std::signal(SIGPIPE, SIG_IGN);
  std::vector<char*> argv;
  for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  const Pipe in;
  const Pipe out;
  const Pipe err;
  const Pipe report;  // Carries errno if exec fails; closes by itself if it works.
  pid_ = ::fork();
  if (pid_ < 0) throw IoError("fork for reward worker {}: {}", command[0], std::strerror(errno));
  if (pid_ == 0) become(argv.data(), in.read_end, out.write_end, err.write_end, report.write_end);
  ::setpgid(pid_, pid_);
  for (const int descriptor : {in.read_end, out.write_end, err.write_end, report.write_end})
    ::close(descriptor);
  input_ = in.write_end;
  output_ = out.read_end;
  errors_ = err.read_end;
  int code = 0;
  const ssize_t told = ::read(report.read_end, &code, sizeof(code));
  ::close(report.read_end);
  if (told == sizeof(code)) {
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
    close_all();
    throw ConfigError("reward.command: {} cannot be run: {}", command[0], std::strerror(code));
  }
  for (const int descriptor : {input_, output_, errors_}) set_nonblocking(descriptor);
}

ChildProcess::~ChildProcess() {
  close_all();
  if (pid_ <= 0) return;
  ::kill(-pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

void ChildProcess::close_all() {
  for (int* descriptor : {&input_, &output_, &errors_}) {
    if (*descriptor >= 0) ::close(*descriptor);
    *descriptor = -1;
  }
}

ssize_t ChildProcess::write(std::string_view bytes) {
  while (true) {
    const ssize_t written = ::write(input_, bytes.data(), bytes.size());
    if (written >= 0) return written;
    if (errno == EINTR) continue;
    return errno == EAGAIN ? 0 : -1;
  }
}

bool ChildProcess::read(int descriptor, std::string& into) {
  std::array<char, 65536> buffer;
  // One who writes as fast as we read must not keep us here: the deadline is looked at between.
  const size_t enough = into.size() + kReadAtOnce;
  while (into.size() < enough) {
    const ssize_t got = ::read(descriptor, buffer.data(), buffer.size());
    if (got > 0) {
      into.append(buffer.data(), static_cast<size_t>(got));
      if (got < static_cast<ssize_t>(buffer.size())) return true;
      continue;
    }
    if (got == 0) return false;
    if (errno == EINTR) continue;
    return errno == EAGAIN;
  }
  return true;
}

void ChildProcess::finish(std::chrono::milliseconds grace) {
  if (pid_ <= 0) return;
  ::close(input_);
  input_ = -1;
  const auto deadline = std::chrono::steady_clock::now() + grace;
  while (std::chrono::steady_clock::now() < deadline) {
    if (::waitpid(pid_, nullptr, WNOHANG) == pid_) {
      ::kill(-pid_, SIGKILL);  // Children of its own that it left behind.
      pid_ = -1;
      return;
    }
    // Its output closes when it ends; so the wait is short for a worker that obeys.
    pollfd waiting{output_, POLLIN, 0};
    ::poll(&waiting, 1, 10);
    std::string ignored;
    if ((waiting.revents & POLLIN) != 0) read(output_, ignored);
  }
}

}  // namespace quadrille::reward
