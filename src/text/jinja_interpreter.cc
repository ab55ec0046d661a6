// Statements. Expressions are in jinja_eval.cc.
#include "text/jinja_interpreter.h"

#include <fmt/format.h>

#include "base/error.h"
#include "text/jinja_interpreter_impl.h"
#include "text/jinja_loop.h"

namespace quadrille::text::jinja {

Interpreter::Interpreter(const Limits& limits, const Variables& variables,
                         std::optional<std::tm> now)
    : limits_(limits), variables_(variables), now_(now) {}

Interpreter::~Interpreter() {
  for (const std::weak_ptr<Namespace>& ns : namespaces_) {
    if (const auto alive = ns.lock()) alive->clear();
  }
  for (const ActivationPtr& frame : kept_) frame->slots.clear();
}

std::string Interpreter::run(const Function& root) {
  std::string text;
  out_ = root_out_ = &text;
  const Frame frame(*this, root, nullptr);
  enter(root.loads, **frame);
  run_block(root.body, *frame);
  return text;
}

void Interpreter::charge(size_t num_bytes) {
  if (num_bytes > limits_.text_bytes) {
    throw RenderError(
        fmt::format("a text or list of {} bytes (the limit is {})", num_bytes, limits_.text_bytes));
  }
  created_ += num_bytes;
  if (created_ > limits_.created_bytes) {
    throw RenderError(fmt::format("more than {} bytes of texts and lists made in one rendering",
                                  limits_.created_bytes));
  }
}

void Interpreter::step() {
  if (++steps_ > limits_.steps) throw RenderError(fmt::format("more than {} steps", limits_.steps));
}

Value Interpreter::text(std::string s) {
  charge(s.size());
  return Value::string(std::move(s));
}

void Interpreter::write(std::string_view text) {
  if (out_->size() + text.size() > limits_.text_bytes) {
    throw RenderError(fmt::format("the rendered text grows beyond {} bytes", limits_.text_bytes));
  }
  out_->append(text);
}

Value Interpreter::resolve(const std::string& name) const {
  if (const auto at = variables_.find(name); at != variables_.end()) return at->second;
  return find_global(name);
}

void Interpreter::enter(const std::vector<Load>& loads, Activation& frame) {
  for (const Load& load : loads) {
    Value& slot = frame.slots[static_cast<size_t>(load.slot)];
    switch (load.action) {
      case Load::Action::kParameter:
        break;
      case Load::Action::kResolve:
        slot = resolve(load.name);
        break;
      case Load::Action::kUndefined:
        slot = Value();
        break;
      case Load::Action::kAlias: {
        const Activation* from = &frame;
        for (int i = 0; i < load.from.hops; ++i) from = from->outer.get();
        slot = from->slots[static_cast<size_t>(load.from.index)];
        break;
      }
    }
  }
}

void Interpreter::leave(const std::vector<Load>& loads, Activation& frame) {
  for (const Load& load : loads) frame.slots[static_cast<size_t>(load.slot)] = Value();
}

void Interpreter::assign(const Expr& target, const Value& value, Activation& frame) {
  if (target.kind == ExprKind::kTuple) {
    Iterator next = iterate(value);
    List items;
    for (Value item; next(item);) {
      items.push_back(item);
      if (items.size() > target.items.size()) break;
    }
    if (items.size() != target.items.size()) {
      throw RenderError(fmt::format("{} values to unpack, expected {}",
                                    items.size() > target.items.size() ? "too many" : "not enough",
                                    target.items.size()));
    }
    for (size_t i = 0; i < items.size(); ++i) assign(*target.items[i], items[i], frame);
    return;
  }
  const Expr& name = target.kind == ExprKind::kNamespaceField ? *target.items[0] : target;
  Activation* owner = &frame;
  for (int i = 0; i < name.slot.hops; ++i) owner = owner->outer.get();
  Value& slot = owner->slots[static_cast<size_t>(name.slot.index)];
  if (target.kind == ExprKind::kName) {
    slot = value;
    return;
  }
  Namespace* ns = slot.as<Namespace>();
  if (ns == nullptr) throw RenderError("cannot assign attribute on non-namespace object");
  ns->set(target.name, value);
}

Interpreter::Flow Interpreter::run_block(const Block& block, const ActivationPtr& frame) {
  for (const StmtPtr& stmt : block) {
    if (const Flow flow = run_statement(*stmt, frame); flow != Flow::kNormal) return flow;
  }
  return Flow::kNormal;
}

Interpreter::Flow Interpreter::run_statement(const Stmt& stmt, const ActivationPtr& frame) {
  step();
  const DepthGuard guard(*this);
  line_ = stmt.line;
  switch (stmt.kind) {
    case StmtKind::kOutput:
      for (const ExprPtr& expr : stmt.output) {
        if (expr->kind == ExprKind::kConst && expr->value.is_string()) {
          write(expr->value.as_string());
        } else {
          write(to_string(eval(*expr, frame)));
        }
      }
      break;
    case StmtKind::kIf:
      return run_if(stmt, frame);
    case StmtKind::kFor: {
      const Value items = eval(*stmt.value, frame);
      if (stmt.recursive) {
        write(to_string(recurse(stmt, frame, items, 0)));
        break;
      }
      return run_for(stmt, frame, items, 0, nullptr);
    }
    case StmtKind::kSet:
      assign(*stmt.target, eval(*stmt.value, frame), *frame);
      break;
    case StmtKind::kSetBlock:
      return run_set_block(stmt, frame);
    case StmtKind::kFilterBlock:
      return run_filter_block(stmt, frame);
    case StmtKind::kWith:
      return run_with(stmt, frame);
    case StmtKind::kMacro:
      // The name always belongs to the scope of the statement itself.
      frame->slots[static_cast<size_t>(stmt.name_slot.index)] = make_macro(*stmt.function, frame);
      break;
    case StmtKind::kCallBlock:
      run_call_block(stmt, frame);
      break;
    case StmtKind::kGeneration:
      run_generation(stmt, frame);
      break;
    case StmtKind::kBreak:
      return Flow::kBreak;
    case StmtKind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNormal;
}

Interpreter::Flow Interpreter::run_if(const Stmt& stmt, const ActivationPtr& frame) {
  // An elif is an if alone in `otherwise`: walked, not nested.
  const Stmt* branch = &stmt;
  while (!truth(eval(*branch->value, frame))) {
    const Block& otherwise = branch->otherwise;
    if (otherwise.size() != 1 || otherwise[0]->kind != StmtKind::kIf)
      return run_block(otherwise, frame);
    branch = otherwise[0].get();
    line_ = branch->line;
  }
  return run_block(branch->body, frame);
}

Iterator Interpreter::filtered(const Stmt& stmt, const ActivationPtr& frame, Iterator source) {
  // Lazy, as in Jinja: the condition may look at a namespace that the body changes.
  auto inner = std::make_shared<Activation>();
  inner->slots.resize(static_cast<size_t>(stmt.filter->slots));
  inner->outer = frame;
  bool entered = false;
  return [this, &stmt, inner, source = std::move(source), entered](Value& out) mutable {
    if (!entered) enter(stmt.filter->loads, *inner);
    entered = true;
    while (source(out)) {
      step();
      assign(*stmt.filter_target, out, *inner);
      if (!truth(eval(*stmt.condition, inner))) continue;
      // Jinja yields the target, so an unpacked item comes back as a tuple.
      if (stmt.filter_target->kind == ExprKind::kTuple) out = eval(*stmt.filter_target, inner);
      return true;
    }
    return false;
  };
}

Interpreter::Flow Interpreter::run_for(const Stmt& stmt, const ActivationPtr& frame,
                                       const Value& items, int depth,
                                       const ActivationPtr& recursion_outer) {
  Iterator source = iterate(items);
  const bool has_filter = stmt.filter != nullptr;
  if (has_filter) source = filtered(stmt, frame, std::move(source));
  const auto loop = std::make_shared<Loop>(std::move(source),
                                           has_filter ? std::nullopt : length_of(items), depth);
  if (recursion_outer != nullptr) loop->make_recursive(*this, stmt, recursion_outer);
  bool ran = false;  // As in Jinja, a first turn that ends in break or continue does not count.
  for (Value item; loop->next(item);) {
    step();
    if (stmt.loop_slot >= 0)
      frame->slots[static_cast<size_t>(stmt.loop_slot)] = Value::object(loop);
    assign(*stmt.target, item, *frame);
    enter(stmt.loads, *frame);
    const Flow flow = run_block(stmt.body, frame);
    if (flow == Flow::kBreak) break;
    if (flow == Flow::kNormal) ran = true;
  }
  leave(stmt.loads, *frame);
  if (ran || stmt.otherwise.empty()) return Flow::kNormal;
  enter(stmt.else_loads, *frame);
  const Flow flow = run_block(stmt.otherwise, frame);
  leave(stmt.else_loads, *frame);
  return flow;
}

Value Interpreter::recurse(const Stmt& loop, const ActivationPtr& outer, const Value& items,
                           int depth) {
  const Frame frame(*this, *loop.function, outer);
  Capture capture(*this);
  run_for(loop, *frame, items, depth, outer);
  return capture.take();
}

Interpreter::Flow Interpreter::run_set_block(const Stmt& stmt, const ActivationPtr& frame) {
  enter(stmt.loads, *frame);
  Value text;
  {
    Capture capture(*this);
    if (const Flow flow = run_block(stmt.body, frame); flow != Flow::kNormal) return flow;
    text = capture.take();
  }
  if (stmt.value) text = eval_filter(*stmt.value, frame, text);
  assign(*stmt.target, text, *frame);
  leave(stmt.loads, *frame);
  return Flow::kNormal;
}

Interpreter::Flow Interpreter::run_filter_block(const Stmt& stmt, const ActivationPtr& frame) {
  enter(stmt.loads, *frame);
  Value text;
  {
    Capture capture(*this);
    if (const Flow flow = run_block(stmt.body, frame); flow != Flow::kNormal) return flow;
    text = capture.take();
  }
  write(to_string(eval_filter(*stmt.value, frame, text)));
  leave(stmt.loads, *frame);
  return Flow::kNormal;
}

Interpreter::Flow Interpreter::run_with(const Stmt& stmt, const ActivationPtr& frame) {
  enter(stmt.loads, *frame);
  for (const auto& [target, value] : stmt.bindings) assign(*target, eval(*value, frame), *frame);
  const Flow flow = run_block(stmt.body, frame);
  leave(stmt.loads, *frame);
  return flow;
}

}  // namespace quadrille::text::jinja
