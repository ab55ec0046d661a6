// Expressions of the interpreter.
#include <fmt/format.h>

#include "text/jinja_interpreter_impl.h"
#include "text/jinja_text.h"

namespace quadrille::text::jinja {
namespace {

// What Jinja calls the object when something is missing from it.
std::string object_name(const Value& v) {
  return v.is_none() ? "None" : type_name(v) + " object";
}

std::optional<int64_t> slice_part(const Value& v) {
  if (v.is_none() || v.missing()) return std::nullopt;
  require_defined(v);
  if (!v.is_integral()) type_error("slice indices must be integers or None");
  const Int limit = INT64_MAX;
  return static_cast<int64_t>(std::clamp(v.as_int(), -limit, limit));
}

bool compare_once(const std::string& op, const Value& a, const Value& b) {
  if (op == "==") return equals(a, b);
  if (op == "!=") return !equals(a, b);
  if (op == "in") return contains(b, a);
  if (op == "not in") return !contains(b, a);
  const int order = compare(a, b);
  if (op == "<") return order < 0;
  if (op == "<=") return order <= 0;
  return op == ">" ? order > 0 : order >= 0;
}

Value signed_number(const Value& v, bool negative) {
  require_defined(v);
  if (v.is_integral()) return Value::integer(negative ? -v.as_int() : v.as_int());
  if (v.is(Kind::kFloat)) return Value::real(negative ? -v.as_double() : v.as_double());
  type_error(
      fmt::format("bad operand type for unary {}: '{}'", negative ? '-' : '+', type_name(v)));
}

}  // namespace

Value Interpreter::eval(const Expr& expr, const ActivationPtr& frame) {
  switch (expr.kind) {
    case ExprKind::kConst:
      return expr.value;
    case ExprKind::kName:
      return eval_name(expr, *frame);
    default:
      break;
  }
  const DepthGuard guard(*this);
  line_ = expr.line;
  switch (expr.kind) {
    case ExprKind::kTuple:
    case ExprKind::kList:
      return eval_items(expr, frame);
    case ExprKind::kDict:
      return eval_dict(expr, frame);
    case ExprKind::kAttribute:
      return attribute(eval(*expr.items[0], frame), expr.name);
    case ExprKind::kItem:
      if (expr.items[1]->kind == ExprKind::kSlice) return eval_slice(expr, frame);
      {
        const Value object = eval(*expr.items[0], frame);
        return item(object, eval(*expr.items[1], frame));
      }
    case ExprKind::kCall:
      return eval_call(expr, frame, Value());
    case ExprKind::kFilter:
      return eval_filter(expr, frame, eval(*expr.items[0], frame));
    case ExprKind::kTest: {
      Call call{*this, eval(*expr.items[0], frame), {}, {}};
      eval_arguments(expr, frame, call);
      return Value::boolean(test(expr.name, call));
    }
    case ExprKind::kConcat:
      return eval_concat(expr, frame);
    case ExprKind::kCompare:
      return eval_compare(expr, frame);
    case ExprKind::kBinary: {
      const Value left = eval(*expr.items[0], frame);
      return binary_operation(*this, expr.name, left, eval(*expr.items[1], frame));
    }
    case ExprKind::kAnd: {
      Value left = eval(*expr.items[0], frame);
      return truth(left) ? eval(*expr.items[1], frame) : left;
    }
    case ExprKind::kOr: {
      Value left = eval(*expr.items[0], frame);
      return truth(left) ? left : eval(*expr.items[1], frame);
    }
    case ExprKind::kNot:
      return Value::boolean(!truth(eval(*expr.items[0], frame)));
    case ExprKind::kNegative:
      return signed_number(eval(*expr.items[0], frame), true);
    case ExprKind::kPositive:
      return signed_number(eval(*expr.items[0], frame), false);
    case ExprKind::kConditional:
      if (truth(eval(*expr.items[1], frame))) return eval(*expr.items[0], frame);
      if (expr.items[2]) return eval(*expr.items[2], frame);
      return Value::undefined(
          "the inline if-expression evaluated to false and no else section was defined");
    case ExprKind::kSlice:
      throw RenderError("a slice inside a tuple of indices is not supported");
    default:
      throw RenderError("not an expression");
  }
}

Value Interpreter::eval_name(const Expr& expr, const Activation& frame) const {
  const Activation* owner = &frame;
  for (int i = 0; i < expr.slot.hops; ++i) owner = owner->outer.get();
  const Value& value = owner->slots[static_cast<size_t>(expr.slot.index)];
  return value.missing() ? Value::undefined(fmt::format("'{}' is undefined", expr.name)) : value;
}

Value Interpreter::eval_items(const Expr& expr, const ActivationPtr& frame) {
  List items;
  items.reserve(expr.items.size());
  charge(expr.items.size() * sizeof(Value));
  for (const ExprPtr& part : expr.items) items.push_back(eval(*part, frame));
  return expr.kind == ExprKind::kTuple ? Value::tuple(std::move(items))
                                       : Value::list(std::move(items));
}

Value Interpreter::eval_dict(const Expr& expr, const ActivationPtr& frame) {
  Dict dict;
  charge(expr.items.size() * sizeof(Value));
  for (size_t i = 0; i < expr.items.size(); i += 2) {
    Value key = eval(*expr.items[i], frame);
    if (!hashable(key)) type_error(fmt::format("unhashable type: '{}'", type_name(key)));
    dict.set(std::move(key), eval(*expr.items[i + 1], frame));
  }
  return Value::dict(std::move(dict));
}

Value Interpreter::eval_slice(const Expr& expr, const ActivationPtr& frame) {
  const Value object = eval(*expr.items[0], frame);
  const auto part = [&](size_t i) {
    const ExprPtr& e = expr.items[1]->items[i];
    return e ? slice_part(eval(*e, frame)) : std::nullopt;
  };
  const auto start = part(0);
  const auto stop = part(1);
  const int64_t step = part(2).value_or(1);
  require_defined(object);
  if (step == 0) throw RenderError("slice step cannot be zero");
  if (object.is_string()) {
    const std::string& s = object.as_string();
    return text(slice(s, slice_range(count_code_points(s), start, stop, step)));
  }
  const Range* numbers = object.as<Range>();
  if (!object.is_sequence() && numbers == nullptr) {
    type_error(fmt::format("'{}' object cannot be sliced", type_name(object)));
  }
  const SliceRange range = slice_range(*length_of(object), start, stop, step);
  if (numbers != nullptr) {
    const auto at = [&](int64_t i) { return numbers->at(range.start + i * range.step); };
    const int64_t stride = numbers->at(1) - numbers->at(0);
    return Value::object(std::make_shared<Range>(at(0), at(range.count), stride * range.step));
  }
  charge(static_cast<size_t>(range.count) * sizeof(Value));
  List items;
  for (int64_t i = 0; i < range.count; ++i) {
    items.push_back(object.as_list()[static_cast<size_t>(range.start + i * range.step)]);
  }
  return object.is(Kind::kTuple) ? Value::tuple(std::move(items)) : Value::list(std::move(items));
}

Value Interpreter::eval_compare(const Expr& expr, const ActivationPtr& frame) {
  Value left = eval(*expr.items[0], frame);
  for (size_t i = 0; i < expr.operators.size(); ++i) {
    Value right = eval(*expr.items[i + 1], frame);
    if (!compare_once(expr.operators[i], left, right)) return Value::boolean(false);
    left = std::move(right);
  }
  return Value::boolean(true);
}

Value Interpreter::eval_concat(const Expr& expr, const ActivationPtr& frame) {
  std::string out;
  for (const ExprPtr& part : expr.items) {
    out += to_string(eval(*part, frame));
    if (out.size() > limits_.text_bytes) charge(out.size());
  }
  return text(std::move(out));
}

void Interpreter::eval_arguments(const Expr& expr, const ActivationPtr& frame, Call& call) {
  for (size_t i = 1; i < expr.items.size(); ++i) call.args.push_back(eval(*expr.items[i], frame));
  const auto add_keyword = [&](const std::string& name, Value value) {
    for (const auto& [known, ignored] : call.keywords) {
      if (known == name)
        type_error(fmt::format("got multiple values for keyword argument '{}'", name));
    }
    call.keywords.emplace_back(name, std::move(value));
  };
  for (const auto& [name, value] : expr.keywords) add_keyword(name, eval(*value, frame));
  if (expr.star) {
    Iterator next = iterate(eval(*expr.star, frame));
    for (Value v; next(v);) {
      charge(sizeof(Value));
      call.args.push_back(v);
    }
  }
  if (expr.double_star) {
    const Value more = eval(*expr.double_star, frame);
    if (!more.is(Kind::kDict)) type_error("argument after ** must be a mapping");
    for (const auto& [key, value] : more.as_dict().items()) {
      if (!key.is_string()) type_error("keywords must be strings");
      add_keyword(key.as_string(), value);
    }
  }
}

Value Interpreter::eval_call(const Expr& expr, const ActivationPtr& frame, const Value& caller) {
  step();
  const Value callee = eval(*expr.items[0], frame);
  Call call{*this, {}, {}, {}};
  eval_arguments(expr, frame, call);
  if (!caller.missing()) call.keywords.emplace_back("caller", caller);
  line_ = expr.line;
  return this->call(callee, call);
}

Value Interpreter::call(const Value& callee, Call& call) {
  require_defined(callee);
  if (!callee.is(Kind::kObject))
    type_error(fmt::format("'{}' object is not callable", type_name(callee)));
  return callee.as_object().call(call);
}

Value Interpreter::eval_filter(const Expr& expr, const ActivationPtr& frame, const Value& input) {
  Call call{*this, input, {}, {}};
  eval_arguments(expr, frame, call);
  line_ = expr.line;
  return filter(expr.name, call);
}

Value Interpreter::filter(const std::string& name, Call& call) {
  step();
  const Builtin function = find_filter(name);
  if (function == nullptr) throw RenderError(fmt::format("the filter '{}' is not supported", name));
  return function(call);
}

bool Interpreter::test(const std::string& name, Call& call) {
  step();
  const Builtin function = find_test(name);
  if (function == nullptr) throw RenderError(fmt::format("the test '{}' is not supported", name));
  return truth(function(call));
}

// object.name: a method first, then what is stored under the name.
Value Interpreter::attribute(const Value& object, const std::string& name) {
  require_defined(object);
  Builtin method = nullptr;
  if (object.is_string()) method = find_string_method(name);
  if (object.is(Kind::kDict)) method = find_dict_method(name);
  if (object.is_sequence()) method = find_list_method(name);
  if (method != nullptr)
    return Value::object(std::make_shared<BuiltinFunction>(name, method, object));
  switch (python_attribute(object, name)) {
    case Attribute::kUnsafe:
      return Value::undefined(fmt::format("access to attribute '{}' of '{}' object is unsafe", name,
                                          type_name(object)));
    case Attribute::kUnsupported:
      throw RenderError(fmt::format("'{}' of '{}' is not supported", name, type_name(object)));
    case Attribute::kNone:
      break;
  }
  if (object.is(Kind::kDict)) {
    if (const Value* found = object.as_dict().find(std::string_view(name))) return *found;
  }
  if (object.is(Kind::kObject)) {
    if (std::optional<Value> found = object.as_object().attribute(name)) return *found;
  }
  return Value::undefined(fmt::format("'{}' has no attribute '{}'", object_name(object), name));
}

// object[key]: what is stored under the key first, then an attribute.
Value Interpreter::item(const Value& object, const Value& key) {
  require_defined(object);
  if (object.is(Kind::kDict) && hashable(key)) {
    if (const Value* found = object.as_dict().find(key)) return *found;
  }
  if (key.is_integral() && (object.is_string() || object.is_sequence())) {
    const auto length = static_cast<Int>(*length_of(object));
    const Int index = key.as_int() < 0 ? key.as_int() + length : key.as_int();
    if (index >= 0 && index < length) {
      if (object.is_string())
        return text(character_at(object.as_string(), static_cast<int64_t>(index)));
      return object.as_list()[static_cast<size_t>(index)];
    }
  }
  if (object.is(Kind::kObject)) {
    if (std::optional<Value> found = object.as_object().item(key)) return *found;
  }
  if (key.is_string()) return attribute(object, key.as_string());
  return Value::undefined(fmt::format("{} has no element {}", object_name(object), repr(key)));
}

}  // namespace quadrille::text::jinja
