// The `loop` variable of a for: where the loop stands, and the items around the current one.
#pragma once

#include "text/jinja_interpreter.h"

namespace quadrille::text::jinja {

class Loop final : public Object {
 public:
  // `length` where the items can be counted without walking them. `body` if the loop is recursive.
  Loop(Iterator source, std::optional<int64_t> length, int depth0)
      : source_(std::move(source)), length_(length), depth0_(depth0) {}

  void make_recursive(Interpreter& in, const Stmt& body, ActivationPtr outer);
  bool next(Value& item);

  std::string type_name() const override { return "LoopContext"; }
  std::string repr(int depth) const override;
  std::optional<Value> attribute(const std::string& name) override;
  std::optional<int64_t> length() const override { return const_cast<Loop*>(this)->count(); }
  bool callable() const override { return true; }
  Value call(Call& call) override;

  Int index0() const { return index0_; }
  // Of changed(): what it was last called with.
  bool changed(List values);

 private:
  int64_t count();
  bool peek();

  Iterator source_;
  std::optional<int64_t> length_;
  int depth0_;
  int64_t index0_ = -1;
  Value before_, current_, after_;  // after_ is missing unless somebody looked ahead.
  Value last_changed_;
  Interpreter* in_ = nullptr;
  const Stmt* body_ = nullptr;
  std::weak_ptr<Activation> outer_;  // Weak: the frame holds the loop.
};

}  // namespace quadrille::text::jinja
