// Errors that stop the work: something from outside (a file, a configuration, a peer) is not as it
// must be.
//
// Three kinds of failure, three ways (docs/errors.md):
//   expected          a queue is full, nothing to read      -> return value
//   cannot continue   a file is damaged, a key is unknown   -> throw one of these, one line for
//   people our own bug       an index out of range                 -> QD_CHECK, always on
// A message says what, where and what to do. main() turns the types into exit codes.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace quadrille {

// Base of everything Quadrille throws on purpose. Exit code 1.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
  template <class... Args>
  explicit Error(fmt::format_string<Args...> format, Args&&... args) requires(sizeof...(Args) > 0)
      : std::runtime_error(fmt::format(format, std::forward<Args>(args)...)) {}
};

// A file or a stream: missing, unreadable, damaged, full disk. Names the file.
class IoError : public Error {
 public:
  using Error::Error;
};

// The contents of a file do not follow its format (JSON, safetensors, tokenizer, template). Names
// file and place.
class FormatError : public Error {
 public:
  using Error::Error;
};

// The configuration contradicts itself, the model or the machine. Exit code 1, before any work
// starts.
class ConfigError : public Error {
 public:
  using Error::Error;
};

// Wrong command line or unknown configuration key. Exit code 2.
class UsageError : public Error {
 public:
  using Error::Error;
};

// A broken invariant of our own; thrown by QD_CHECK.
class InternalError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

namespace detail {
[[noreturn]] void check_failed(const char* condition, const char* file, int line,
                               const std::string& message);
}  // namespace detail
}  // namespace quadrille

// QD_CHECK(slot < slots, "rank {} slot {} of {}", rank, slot, slots): always on, in every build.
#define QD_CHECK(condition, ...)                                        \
  do {                                                                  \
    if (!(condition)) [[unlikely]] {                                    \
      ::quadrille::detail::check_failed(#condition, __FILE__, __LINE__, \
                                        ::fmt::format("" __VA_ARGS__)); \
    }                                                                   \
  } while (false)
