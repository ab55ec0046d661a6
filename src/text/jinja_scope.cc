#include "text/jinja_scope.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "base/error.h"
#include "text/jinja_lexer.h"

namespace quadrille::text::jinja {
namespace {

// A function while its names are resolved.
struct FunctionState {
  Function* code = nullptr;
  FunctionState* outer = nullptr;
  int depth = 0;
  std::map<std::pair<int, std::string>, int> slots;  // By (level, name): sibling scopes share.

  int slot(int level, const std::string& name) {
    const auto [at, is_new] = slots.try_emplace({level, name}, code->slots);
    if (is_new) ++code->slots;
    return at->second;
  }
};

struct Ref {
  const FunctionState* function = nullptr;
  int slot = -1;
};

// What one scope knows about names. Called "symbols" in Jinja, whose three maps these are.
class Scope {
 public:
  Scope(Scope* parent, FunctionState& function)
      : parent_(parent), function_(&function), level_(parent == nullptr ? 0 : parent->level_ + 1) {}

  FunctionState& function() const { return *function_; }

  std::optional<Ref> find(const std::string& name) const {
    if (const auto at = refs_.find(name); at != refs_.end()) return Ref{function_, at->second};
    return parent_ == nullptr ? std::nullopt : parent_->find(name);
  }

  void load(const std::string& name) {
    if (!find(name)) define(name, Load::Action::kResolve);
  }

  void store(const std::string& name) {
    stores_.insert(name);
    if (refs_.contains(name)) return;
    // A variable of an outer scope is copied on entry, so that a loop can read it before setting
    // its own.
    const bool outer = parent_ != nullptr && parent_->find(name).has_value();
    define(name, outer ? Load::Action::kAlias : Load::Action::kUndefined);
  }

  int declare_parameter(const std::string& name) {
    stores_.insert(name);
    define(name, Load::Action::kParameter);
    return refs_.at(name);
  }

  // After an if: what only some branches set starts with the outer or the caller's value.
  void merge(const std::vector<Scope>& branches) {
    std::set<std::string> stores;
    for (const Scope& branch : branches)
      stores.insert(branch.stores_.begin(), branch.stores_.end());
    for (const std::string& name : stores_) stores.erase(name);
    for (const Scope& branch : branches) {
      for (const auto& [name, slot] : branch.refs_) refs_[name] = slot;
      for (const auto& [name, action] : branch.actions_) actions_[name] = action;
      stores_.insert(branch.stores_.begin(), branch.stores_.end());
    }
    for (const std::string& name : stores) {
      const bool outer = parent_ != nullptr && parent_->find(name).has_value();
      actions_[name] = outer ? Load::Action::kAlias : Load::Action::kResolve;
    }
  }

  std::vector<Load> loads() const {
    std::vector<Load> out;
    for (const auto& [name, action] : actions_) {
      Load load{refs_.at(name), action, name, {}};
      if (action == Load::Action::kAlias) load.from = relative(*parent_->find(name));
      out.push_back(std::move(load));
    }
    return out;
  }

  // A reference as code of this scope's function sees it.
  Slot relative(const Ref& ref) const { return {function_->depth - ref.function->depth, ref.slot}; }

 private:
  void define(const std::string& name, Load::Action action) {
    refs_[name] = function_->slot(level_, name);
    actions_[name] = action;
  }

  Scope* parent_;
  FunctionState* function_;
  int level_;
  std::map<std::string, int> refs_;
  std::map<std::string, Load::Action> actions_;
  std::set<std::string> stores_;
};

template <class Visit>
void for_each_part(const Expr& expr, Visit visit) {
  for (const ExprPtr& item : expr.items) {
    if (item) visit(*item);
  }
  for (const auto& [name, value] : expr.keywords) visit(*value);
  if (expr.star) visit(*expr.star);
  if (expr.double_star) visit(*expr.double_star);
}

// First pass over a scope: which names it reads and sets. Stops at inner scopes.
void collect_reads(const Expr& expr, Scope& scope) {
  if (expr.kind == ExprKind::kName) scope.load(expr.name);
  for_each_part(expr, [&](const Expr& part) { collect_reads(part, scope); });
}

void collect_targets(const Expr& expr, Scope& scope, bool as_parameter) {
  if (expr.kind == ExprKind::kName) {
    if (as_parameter) {
      scope.declare_parameter(expr.name);
    } else {
      scope.store(expr.name);
    }
  } else if (expr.kind == ExprKind::kNamespaceField) {
    scope.load(expr.items[0]->name);
  } else {
    for (const ExprPtr& item : expr.items) collect_targets(*item, scope, as_parameter);
  }
}

void collect(const Block& block, Scope& scope);

// An elif is tested before any branch's names are known, and is a branch of its own; nested ifs in
// `otherwise` give the same result, since merge() works from the inside out.
void collect_if(const Stmt& stmt, Scope& scope) {
  collect_reads(*stmt.value, scope);
  std::vector<Scope> branches(2, scope);
  collect(stmt.body, branches[0]);
  collect(stmt.otherwise, branches[1]);
  scope.merge(branches);
}

void collect(const Stmt& stmt, Scope& scope) {
  switch (stmt.kind) {
    case StmtKind::kOutput:
      for (const ExprPtr& expr : stmt.output) collect_reads(*expr, scope);
      break;
    case StmtKind::kIf:
      collect_if(stmt, scope);
      break;
    case StmtKind::kFor:
      collect_reads(*stmt.value, scope);
      break;
    case StmtKind::kSet:
      collect_reads(*stmt.value, scope);
      collect_targets(*stmt.target, scope, false);
      break;
    case StmtKind::kSetBlock:
      collect_targets(*stmt.target, scope, false);
      break;
    case StmtKind::kWith:
      for (const auto& [target, value] : stmt.bindings) collect_reads(*value, scope);
      break;
    case StmtKind::kMacro:
      scope.store(stmt.function->name);
      break;
    case StmtKind::kCallBlock:
    case StmtKind::kFilterBlock:
      collect_reads(*stmt.value, scope);
      break;
    case StmtKind::kGeneration:
    case StmtKind::kBreak:
    case StmtKind::kContinue:
      break;
  }
}

void collect(const Block& block, Scope& scope) {
  for (const StmtPtr& stmt : block) collect(*stmt, scope);
}

// Which of `names` a body reads before it sets them, inner scopes included.
class UndeclaredNames {
 public:
  explicit UndeclaredNames(std::set<std::string> names) : candidates_(std::move(names)) {}
  const std::set<std::string>& found() const { return found_; }

  void visit(const Block& block) {
    for (const StmtPtr& stmt : block) visit(*stmt);
  }

 private:
  void visit(const Stmt& s) {
    if (s.function) {
      for (const std::string& name : s.function->parameter_names) candidates_.erase(name);
      for (const ExprPtr& expr : s.function->defaults) read(expr);
    }
    if (s.kind == StmtKind::kSet || s.kind == StmtKind::kFor || s.kind == StmtKind::kSetBlock)
      target(*s.target);
    for (const auto& [name, value] : s.bindings) target(*name);
    for (const auto& [name, value] : s.bindings) read(value);
    read(s.value);
    for (const ExprPtr& expr : s.output) read(expr);
    visit(s.body);
    visit(s.otherwise);
    read(s.condition);
    if (s.function) visit(s.function->body);
  }
  void read(const ExprPtr& expr) {
    if (expr) read_part(*expr);
  }
  void read_part(const Expr& expr) {
    if (expr.kind == ExprKind::kName && candidates_.contains(expr.name)) found_.insert(expr.name);
    for_each_part(expr, [&](const Expr& part) { read_part(part); });
  }
  void target(const Expr& expr) {
    if (expr.kind == ExprKind::kName) candidates_.erase(expr.name);
    if (expr.kind == ExprKind::kTuple) {
      for (const ExprPtr& item : expr.items) target(*item);
    }
  }

  std::set<std::string> candidates_;
  std::set<std::string> found_;
};

std::set<std::string> undeclared(const Block& body, std::set<std::string> names) {
  UndeclaredNames search(std::move(names));
  search.visit(body);
  return search.found();
}

// Second pass: with a scope's names complete, fills in the slots of its code and opens the inner
// scopes.
class Resolver {
 public:
  void root(Function& function) {
    FunctionState state{&function, nullptr, 0, {}};
    Scope scope(nullptr, state);
    collect(function.body, scope);
    function.loads = scope.loads();
    block(function.body, scope);
  }

 private:
  void expr(Expr& e, Scope& scope) {
    if (e.kind == ExprKind::kName) {
      const std::optional<Ref> ref = scope.find(e.name);
      QD_CHECK(ref.has_value(), "name {} was not collected", e.name);
      e.slot = scope.relative(*ref);
    }
    for (const ExprPtr& item : e.items) {
      if (item) expr(*item, scope);
    }
    for (auto& [name, value] : e.keywords) expr(*value, scope);
    if (e.star) expr(*e.star, scope);
    if (e.double_star) expr(*e.double_star, scope);
  }

  void block(Block& statements, Scope& scope) {
    for (StmtPtr& stmt : statements) statement(*stmt, scope);
  }

  void statement(Stmt& s, Scope& scope) {
    for (const ExprPtr& e : s.output) expr(*e, scope);
    switch (s.kind) {
      case StmtKind::kIf:
        expr(*s.value, scope);
        block(s.body, scope);
        block(s.otherwise, scope);
        break;
      case StmtKind::kFor:
        loop(s, scope);
        break;
      case StmtKind::kSet:
        expr(*s.value, scope);
        expr(*s.target, scope);
        break;
      case StmtKind::kSetBlock:
      case StmtKind::kFilterBlock:
        captured(s, scope);
        break;
      case StmtKind::kWith:
        with(s, scope);
        break;
      case StmtKind::kMacro:
        function(*s.function, scope);
        s.name_slot = scope.relative(*scope.find(s.function->name));
        break;
      case StmtKind::kCallBlock:
        function(*s.function, scope);
        expr(*s.value, scope);
        break;
      case StmtKind::kGeneration:
        function(*s.function, scope);
        break;
      case StmtKind::kOutput:
      case StmtKind::kBreak:
      case StmtKind::kContinue:
        break;
    }
  }

  void captured(Stmt& s, Scope& scope) {
    Scope inner(&scope, scope.function());
    collect(s.body, inner);
    if (s.value) collect_reads(*s.value, inner);
    s.loads = inner.loads();
    block(s.body, inner);
    if (s.value) expr(*s.value, inner);
    if (s.target) expr(*s.target, scope);
  }

  void with(Stmt& s, Scope& scope) {
    Scope inner(&scope, scope.function());
    for (const auto& [target, value] : s.bindings) collect_targets(*target, inner, true);
    collect(s.body, inner);
    s.loads = inner.loads();
    for (auto& [target, value] : s.bindings) {
      expr(*target, inner);
      expr(*value, scope);
    }
    block(s.body, inner);
  }

  void loop(Stmt& s, Scope& scope) {
    expr(*s.value, scope);
    FunctionState own{nullptr, &scope.function(), scope.function().depth + 1, {}};
    FunctionState* state = &scope.function();
    if (s.recursive) {
      s.function = std::make_unique<Function>();
      s.function->name = "loop";
      own.code = s.function.get();
      state = &own;
    }
    Scope inner(&scope, *state);
    if (s.recursive || !undeclared(s.body, {"loop"}).empty())
      s.loop_slot = inner.declare_parameter("loop");
    collect_targets(*s.target, inner, true);
    collect(s.body, inner);
    s.loads = inner.loads();
    expr(*s.target, inner);
    block(s.body, inner);

    Scope after(&scope, *state);
    collect(s.otherwise, after);
    s.else_loads = after.loads();
    block(s.otherwise, after);
    if (s.condition) filter(s, scope, *state);
  }

  // The condition is a function of its own: it runs when the loop asks for its next item.
  void filter(Stmt& s, Scope& scope, FunctionState& around) {
    s.filter = std::make_unique<Function>();
    s.filter->name = "filter";
    FunctionState state{s.filter.get(), &around, around.depth + 1, {}};
    Scope inner(&scope, state);
    s.filter_target = copy_target(*s.target);
    collect_targets(*s.filter_target, inner, true);
    collect_reads(*s.condition, inner);
    s.filter->loads = inner.loads();
    expr(*s.filter_target, inner);
    expr(*s.condition, inner);
  }

  static ExprPtr copy_target(const Expr& target) {
    auto copy = std::make_unique<Expr>();
    copy->kind = target.kind;
    copy->line = target.line;
    copy->name = target.name;
    for (const ExprPtr& item : target.items) copy->items.push_back(copy_target(*item));
    return copy;
  }

  void function(Function& f, Scope& scope) {
    FunctionState state{&f, &scope.function(), scope.function().depth + 1, {}};
    Scope inner(&scope, state);
    const std::set<std::string> special = undeclared(f.body, {"caller", "kwargs", "varargs"});
    const auto is_parameter = [&](const char* name) {
      return std::find(f.parameter_names.begin(), f.parameter_names.end(), name) !=
             f.parameter_names.end();
    };
    for (const std::string& name : f.parameter_names)
      f.parameters.push_back(inner.declare_parameter(name));
    if (special.contains("caller") && !is_parameter("caller"))
      f.caller = inner.declare_parameter("caller");
    if (special.contains("kwargs") && !is_parameter("kwargs"))
      f.kwargs = inner.declare_parameter("kwargs");
    if (special.contains("varargs") && !is_parameter("varargs"))
      f.varargs = inner.declare_parameter("varargs");
    for (const ExprPtr& e : f.defaults) collect_reads(*e, inner);
    collect(f.body, inner);
    f.loads = inner.loads();
    for (const ExprPtr& e : f.defaults) expr(*e, inner);
    block(f.body, inner);
  }
};

}  // namespace

void resolve_names(Function& root) {
  Resolver().root(root);
}

}  // namespace quadrille::text::jinja
