// Runs a resolved template. One interpreter renders once, on one thread; the tree it reads is
// shared.
#pragma once

#include <ctime>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja.h"
#include "text/jinja_ast.h"
#include "text/jinja_builtins.h"

namespace quadrille::text::jinja {

// The variables of one call of a function.
struct Activation {
  std::vector<Value> slots;
  std::shared_ptr<Activation> outer;
};
using ActivationPtr = std::shared_ptr<Activation>;

class Loop;

class Interpreter {
 public:
  Interpreter(const Limits& limits, const Variables& variables, std::optional<std::tm> now);
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  std::string run(const Function& root);
  // Of the statement or expression that runs: where an error happened.
  int line() const { return line_; }
  const std::vector<TextSpan>& generations() const { return generations_; }
  bool generations_placed() const { return generations_placed_; }

  // For builtins. Everything that makes text or lists says so first, so that a template cannot fill
  // the memory.
  void charge(size_t num_bytes);
  void step();
  Value text(std::string s);
  Value attribute(const Value& object, const std::string& name);
  Value item(const Value& object, const Value& key);
  Value call(const Value& callee, Call& call);
  Value filter(const std::string& name, Call& call);
  bool test(const std::string& name, Call& call);
  const std::optional<std::tm>& now() const { return now_; }
  void remember(const std::shared_ptr<Namespace>& ns) { namespaces_.push_back(ns); }

  Value call_macro(const Function& macro, const ActivationPtr& outer, Call& call);
  // The body of a recursive loop over other items: loop(children).
  Value recurse(const Stmt& loop, const ActivationPtr& outer, const Value& items, int depth);

 private:
  enum class Flow { kNormal, kBreak, kContinue };
  class DepthGuard;
  class Capture;
  class Frame;

  Flow run_block(const Block& block, const ActivationPtr& frame);
  Flow run_statement(const Stmt& stmt, const ActivationPtr& frame);
  Flow run_if(const Stmt& stmt, const ActivationPtr& frame);
  Flow run_for(const Stmt& stmt, const ActivationPtr& frame, const Value& items, int depth,
               const ActivationPtr& recursion_outer);
  Flow run_set_block(const Stmt& stmt, const ActivationPtr& frame);
  Flow run_filter_block(const Stmt& stmt, const ActivationPtr& frame);
  Flow run_with(const Stmt& stmt, const ActivationPtr& frame);
  void run_call_block(const Stmt& stmt, const ActivationPtr& frame);
  void run_generation(const Stmt& stmt, const ActivationPtr& frame);
  static Value make_macro(const Function& code, const ActivationPtr& frame);
  Iterator filtered(const Stmt& stmt, const ActivationPtr& frame, Iterator source);

  void enter(const std::vector<Load>& loads, Activation& frame);
  static void leave(const std::vector<Load>& loads, Activation& frame);
  void assign(const Expr& target, const Value& value, Activation& frame);
  Value resolve(const std::string& name) const;
  void write(std::string_view text);

  Value eval(const Expr& expr, const ActivationPtr& frame);
  Value eval_name(const Expr& expr, const Activation& frame) const;
  Value eval_items(const Expr& expr, const ActivationPtr& frame);
  Value eval_dict(const Expr& expr, const ActivationPtr& frame);
  Value eval_slice(const Expr& expr, const ActivationPtr& frame);
  Value eval_compare(const Expr& expr, const ActivationPtr& frame);
  Value eval_concat(const Expr& expr, const ActivationPtr& frame);
  Value eval_call(const Expr& expr, const ActivationPtr& frame, const Value& caller);
  Value eval_filter(const Expr& expr, const ActivationPtr& frame, const Value& input);
  void eval_arguments(const Expr& expr, const ActivationPtr& frame, Call& call);

  const Limits& limits_;
  const Variables& variables_;
  std::optional<std::tm> now_;
  std::string* out_ = nullptr;
  std::string* root_out_ = nullptr;
  std::vector<TextSpan> generations_;
  bool generations_placed_ = true;
  std::vector<ActivationPtr>
      kept_;  // Still referred to when their call returned; emptied at the end.
  std::vector<std::weak_ptr<Namespace>> namespaces_;
  size_t created_ = 0;
  int64_t steps_ = 0;
  int depth_ = 0;
  int line_ = 0;
};

// Arithmetic as Python does it; op is one of + - * / // % **.
Value binary_operation(Interpreter& in, const std::string& op, const Value& a, const Value& b);
// format % values and format.format(...).
std::string percent_format(Interpreter& in, const std::string& format, const Value& values);
std::string brace_format(Interpreter& in, const std::string& format, const Call& call);
// json.dumps(): jinja_json.cc.
struct JsonStyle {
  bool ensure_ascii = false;
  bool sort_keys = false;
  std::optional<std::string> indent;
  std::string item_separator = ", ";
  std::string key_separator = ": ";
};
std::string to_json(Interpreter& in, const Value& value, const JsonStyle& style);

}  // namespace quadrille::text::jinja
