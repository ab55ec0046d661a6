// Macros and the blocks that are called like them: call blocks and {% generation %}.
#include <fmt/format.h>

#include "text/jinja_interpreter_impl.h"

namespace quadrille::text::jinja {

namespace {

class Macro final : public Object {
 public:
  Macro(const Function& code, ActivationPtr outer) : code_(code), outer_(std::move(outer)) {}
  std::string type_name() const override { return "Macro"; }
  std::string repr(int) const override {
    return code_.name.empty() ? "<Macro anonymous>" : fmt::format("<Macro '{}'>", code_.name);
  }
  std::optional<Value> attribute(const std::string& name) override {
    if (name == "name") return code_.name.empty() ? Value::none() : Value::string(code_.name);
    return std::nullopt;
  }
  bool callable() const override { return true; }
  Value call(Call& call) override { return call.in.call_macro(code_, outer_, call); }

 private:
  const Function& code_;
  ActivationPtr outer_;
};

}  // namespace

Value Interpreter::make_macro(const Function& code, const ActivationPtr& frame) {
  return Value::object(std::make_shared<Macro>(code, frame));
}

void Interpreter::run_call_block(const Stmt& stmt, const ActivationPtr& frame) {
  write(to_string(eval_call(*stmt.value, frame, make_macro(*stmt.function, frame))));
}

void Interpreter::run_generation(const Stmt& stmt, const ActivationPtr& frame) {
  const size_t begin = out_->size();
  Call no_arguments{*this, {}, {}, {}};
  const Value text = call_macro(*stmt.function, frame, no_arguments);
  write(text.as_string());
  if (out_ == root_out_) {
    generations_.push_back({begin, out_->size()});
  } else {
    // In a macro or a set block the place in the result is not known.
    generations_placed_ = false;
  }
}

Value Interpreter::call_macro(const Function& macro, const ActivationPtr& outer, Call& call) {
  step();
  const Frame frame(*this, macro, outer);
  std::vector<Value>& slots = (*frame)->slots;
  const auto take_keyword = [&](const std::string& name) {
    for (auto it = call.keywords.begin(); it != call.keywords.end(); ++it) {
      if (it->first != name) continue;
      Value value = std::move(it->second);
      call.keywords.erase(it);
      return value;
    }
    return Value();
  };
  const size_t wanted = macro.parameters.size();
  for (size_t i = 0; i < wanted; ++i) {
    slots[static_cast<size_t>(macro.parameters[i])] =
        i < call.args.size() ? call.args[i] : take_keyword(macro.parameter_names[i]);
  }
  if (macro.caller >= 0) {
    Value caller = take_keyword("caller");
    if (caller.missing()) caller = Value::undefined("No caller defined");
    slots[static_cast<size_t>(macro.caller)] = std::move(caller);
  }
  if (macro.kwargs >= 0) {
    Dict rest;
    for (auto& [name, value] : call.keywords) rest.set(Value::string(name), value);
    slots[static_cast<size_t>(macro.kwargs)] = Value::dict(std::move(rest));
  } else if (!call.keywords.empty()) {
    type_error(fmt::format("macro '{}' takes no keyword argument '{}'", macro.name,
                           call.keywords[0].first));
  }
  if (macro.varargs >= 0) {
    List rest;
    for (size_t i = wanted; i < call.args.size(); ++i) rest.push_back(call.args[i]);
    slots[static_cast<size_t>(macro.varargs)] = Value::tuple(std::move(rest));
  } else if (call.args.size() > wanted) {
    type_error(fmt::format("macro '{}' takes not more than {} argument(s)", macro.name, wanted));
  }
  Capture capture(*this);
  enter(macro.loads, **frame);
  for (size_t i = 0; i < wanted; ++i) {
    Value& slot = slots[static_cast<size_t>(macro.parameters[i])];
    if (!slot.missing()) continue;
    const size_t first_default = wanted - macro.defaults.size();
    slot = i >= first_default ? eval(*macro.defaults[i - first_default], *frame)
                              : Value::undefined(fmt::format("parameter '{}' was not provided",
                                                             macro.parameter_names[i]));
  }
  run_block(macro.body, *frame);
  return capture.take();
}

}  // namespace quadrille::text::jinja
