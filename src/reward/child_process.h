// A child process with its three standard streams, in a process group of its own, that never
// outlives its owner.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

namespace quadrille::reward {

class ChildProcess {
 public:
  // Starts the command (argv[0] is looked up in PATH). Throws ConfigError naming it if it cannot be
  // executed.
  explicit ChildProcess(const std::vector<std::string>& command);
  // Kills the whole group, and waits for the child itself, which SIGKILL makes short.
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  // Non-blocking descriptors for poll().
  int input() const { return input_; }
  int output() const { return output_; }
  int errors() const { return errors_; }

  // Bytes written; 0 if the pipe is full, -1 if the child is gone.
  ssize_t write(std::string_view bytes);
  // Appends what is there; false at the end of the stream.
  static bool read(int descriptor, std::string& into);

  // Closes its input and gives it this long to end by itself.
  void finish(std::chrono::milliseconds grace);

 private:
  void close_all();

  pid_t pid_ = -1;
  int input_ = -1;
  int output_ = -1;
  int errors_ = -1;
};

}  // namespace quadrille::reward
