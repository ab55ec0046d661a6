// The tree of a parsed template. Names are resolved to slots before it runs (jinja_scope.h).
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "text/jinja_value.h"

namespace quadrille::text::jinja {

struct Expr;
struct Stmt;
using ExprPtr = std::unique_ptr<Expr>;
using StmtPtr = std::unique_ptr<Stmt>;
using Block = std::vector<StmtPtr>;

enum class ExprKind {
  kConst,
  kName,
  kNamespaceField,  // The last: `ns.field` as a target of set.
  kTuple,
  kList,
  kDict,  // items; a dict's are key, value, key, value.
  kAttribute,
  kItem,
  kSlice,  // items[0].name, items[0][items[1]]; a slice's three parts may be null.
  kCall,
  kFilter,
  kTest,  // items[0] is called, filtered or tested; null where a block is filtered.
  kConcat,
  kCompare,
  kBinary,  // a ~ b; a chain; one operator (+ - * / // % **).
  kAnd,
  kOr,
  kNot,
  kNegative,
  kPositive,
  kConditional,  // items: then, condition, else (may be null).
};

// Where a variable lives: the slot of a function, `hops` functions out.
struct Slot {
  int hops = 0;
  int index = -1;
};

struct Expr {
  ExprKind kind = ExprKind::kConst;
  int line = 0;
  int depth = 1;     // Of the tree below, itself included: what evaluating it needs of the stack.
  std::string name;  // Name, attribute, filter, test or operator.
  Value value;       // Of a constant.
  std::vector<ExprPtr> items;
  // Of calls, filters and tests, after items[0].
  std::vector<std::pair<std::string, ExprPtr>> keywords;
  ExprPtr star;                        // f(*star)
  ExprPtr double_star;                 // f(**double_star)
  std::vector<std::string> operators;  // Of a comparison chain: == != < <= > >= in "not in".
  Slot slot;                           // Of names.
};

enum class StmtKind {
  kOutput,
  kFor,
  kIf,
  kSet,
  kSetBlock,
  kWith,
  kMacro,
  kCallBlock,
  kGeneration,
  kFilterBlock,
  kBreak,
  kContinue,
};

// What happens to a variable when its scope is entered.
struct Load {
  enum class Action { kParameter, kResolve, kAlias, kUndefined };
  int slot = -1;
  Action action = Action::kUndefined;
  std::string name;  // kResolve: looked up among the variables the caller passed.
  Slot from;         // kAlias: starts with the value of an outer variable.
};

// Code with variables of its own: the template, a macro, the body of a call block, a recursive
// loop, the filter of a loop.
struct Function {
  std::string name;
  int slots = 0;
  std::vector<int> parameters;  // Slots.
  std::vector<std::string> parameter_names;
  std::vector<ExprPtr> defaults;  // Of the last parameters.
  int caller = -1;                // Slots of the special variables; -1: not used.
  int kwargs = -1;
  int varargs = -1;
  std::vector<Load> loads;
  Block body;
};

struct Stmt {
  StmtKind kind = StmtKind::kOutput;
  int line = 0;
  std::vector<ExprPtr> output;  // kOutput: printed one after the other.
  ExprPtr target;               // kFor, kSet, kSetBlock.
  ExprPtr value;  // What is iterated, tested, assigned, called; the filter of a block.
  Block body;
  Block otherwise;                                    // kIf, kFor. An elif is an if in here.
  std::vector<std::pair<ExprPtr, ExprPtr>> bindings;  // kWith.
  std::vector<Load> loads;                            // On entering `body`, where that is a scope.
  std::vector<Load> else_loads;                       // On entering `otherwise` of a kFor.
  // kFor.
  ExprPtr condition;  // Moved into `filter` by the resolver.
  bool recursive = false;
  int loop_slot = -1;
  std::unique_ptr<Function> filter;  // Its target is filter_target, its body the condition.
  ExprPtr filter_target;
  // kMacro, kCallBlock, kGeneration; kFor when recursive (then the body is in here).
  std::unique_ptr<Function> function;
  Slot name_slot;
};

}  // namespace quadrille::text::jinja
