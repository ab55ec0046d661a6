#include "text/jinja_loop.h"

#include <fmt/format.h>

namespace quadrille::text::jinja {
namespace {

Value loop_cycle(Call& call) {
  if (call.args.empty()) type_error("no items for cycling given");
  const Int index = call.self.as<Loop>()->index0();
  return call.args[static_cast<size_t>(index % static_cast<Int>(call.args.size()))];
}

Value loop_changed(Call& call) {
  return Value::boolean(call.self.as<Loop>()->changed(call.args));
}

}  // namespace

void Loop::make_recursive(Interpreter& in, const Stmt& body, ActivationPtr outer) {
  in_ = &in;
  body_ = &body;
  outer_ = outer;
}

bool Loop::next(Value& item) {
  if (!after_.missing()) {
    item = std::exchange(after_, Value());
  } else if (!source_(item)) {
    return false;
  }
  ++index0_;
  before_ = std::exchange(current_, item);
  return true;
}

bool Loop::peek() {
  if (!after_.missing()) return true;
  Value item;
  if (!source_(item)) return false;
  after_ = item;
  return true;
}

int64_t Loop::count() {
  if (length_) return *length_;
  auto rest = std::make_shared<List>();
  for (Value v; source_(v);) rest->push_back(v);
  length_ = static_cast<int64_t>(rest->size()) + index0_ + 1 + (after_.missing() ? 0 : 1);
  source_ = [rest, at = size_t{0}](Value& out) mutable {
    if (at >= rest->size()) return false;
    out = (*rest)[at++];
    return true;
  };
  return *length_;
}

bool Loop::changed(List values) {
  Value now = Value::tuple(std::move(values));
  if (!last_changed_.missing() && jinja::equals(last_changed_, now)) return false;
  last_changed_ = std::move(now);
  return true;
}

std::string Loop::repr(int) const {
  return fmt::format("<LoopContext {}/{}>", index0_ + 1, *length());
}

std::optional<Value> Loop::attribute(const std::string& name) {
  const auto integer = [](int64_t v) { return Value::integer(v); };
  if (name == "index") return integer(index0_ + 1);
  if (name == "index0") return integer(index0_);
  if (name == "first") return Value::boolean(index0_ == 0);
  if (name == "last") return Value::boolean(!peek());
  if (name == "length") return integer(count());
  if (name == "revindex") return integer(count() - index0_);
  if (name == "revindex0") return integer(count() - index0_ - 1);
  if (name == "depth") return integer(depth0_ + 1);
  if (name == "depth0") return integer(depth0_);
  if (name == "previtem")
    return index0_ == 0 ? Value::undefined("there is no previous item") : before_;
  if (name == "nextitem") return peek() ? after_ : Value::undefined("there is no next item");
  const auto method = [&](Builtin function) {
    return Value::object(
        std::make_shared<BuiltinFunction>(name, function, Value::object(shared_from_this())));
  };
  if (name == "cycle") return method(loop_cycle);
  if (name == "changed") return method(loop_changed);
  return std::nullopt;
}

Value Loop::call(Call& call) {
  if (in_ == nullptr)
    type_error("the loop must have the 'recursive' marker to be called recursively");
  const List args = bind_arguments(call, "loop", {"iterable"}, 1);
  const ActivationPtr outer = outer_.lock();
  if (outer == nullptr) type_error("the loop is over");
  return in_->recurse(*body_, outer, args[0], depth0_ + 1);
}

}  // namespace quadrille::text::jinja
