// The guards of the interpreter's recursion: each undoes on the way out, also when an error passes.
#pragma once

#include <utility>

#include "text/jinja_interpreter.h"

namespace quadrille::text::jinja {

class Interpreter::DepthGuard {
 public:
  explicit DepthGuard(Interpreter& in) : in_(in) {
    if (++in_.depth_ > in_.limits_.depth) {
      --in_.depth_;
      throw RenderError("calls and expressions are nested too deeply (a macro that calls itself?)");
    }
  }
  ~DepthGuard() { --in_.depth_; }
  DepthGuard(const DepthGuard&) = delete;
  DepthGuard& operator=(const DepthGuard&) = delete;

 private:
  Interpreter& in_;
};

// Sends what is printed to a text of its own.
class Interpreter::Capture {
 public:
  explicit Capture(Interpreter& in) : in_(in), before_(std::exchange(in.out_, &text_)) {}
  ~Capture() { in_.out_ = before_; }
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;
  Value take() { return Value::string(std::move(text_)); }

 private:
  Interpreter& in_;
  std::string text_;
  std::string* before_;
};

// The variables of a call; if something still refers to them afterwards (a macro kept in a
// namespace), the interpreter breaks the circle at its end.
class Interpreter::Frame {
 public:
  Frame(Interpreter& in, const Function& function, ActivationPtr outer)
      : in_(in), frame_(std::make_shared<Activation>()) {
    in_.charge(sizeof(Activation) + static_cast<size_t>(function.slots) * sizeof(Value));
    frame_->slots.resize(static_cast<size_t>(function.slots));
    frame_->outer = std::move(outer);
  }
  ~Frame() {
    if (frame_.use_count() > 1) in_.kept_.push_back(std::move(frame_));
  }
  Frame(const Frame&) = delete;
  Frame& operator=(const Frame&) = delete;
  const ActivationPtr& operator*() const { return frame_; }

 private:
  Interpreter& in_;
  ActivationPtr frame_;
};

}  // namespace quadrille::text::jinja
