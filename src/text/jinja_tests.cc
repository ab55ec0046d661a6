// What stands after `is`.
#include <fmt/format.h>

#include <unordered_map>

#include "text/jinja_interpreter.h"
#include "text/jinja_text.h"

namespace quadrille::text::jinja {
namespace {

template <class Predicate>
Value plain(Call& call, Predicate predicate) {
  bind_arguments(call, "test", {});
  return Value::boolean(predicate(call.self));
}

template <Kind kind>
Value is_kind(Call& call) {
  return plain(call, [](const Value& v) { return v.is(kind); });
}

template <bool wanted>
Value is_constant(Call& call) {
  return plain(call, [](const Value& v) { return v.is(Kind::kBool) && v.as_bool() == wanted; });
}

template <int rest>
Value is_modulo_two(Call& call) {
  bind_arguments(call, "test", {});
  // A string would be formatted by %, and is then not equal to a number.
  if (call.self.is_string()) {
    percent_format(call.in, call.self.as_string(), Value::integer(2));
    return Value::boolean(false);
  }
  return Value::boolean(
      equals(binary_operation(call.in, "%", call.self, Value::integer(2)), Value::integer(rest)));
}

Value is_divisible(Call& call) {
  const List args = bind_arguments(call, "divisibleby", {"num"}, 1);
  return Value::boolean(
      equals(binary_operation(call.in, "%", call.self, args[0]), Value::integer(0)));
}

template <int order, bool or_equal>
Value is_ordered(Call& call) {
  const List args = bind_arguments(call, "test", {""}, 1);
  const int found = compare(call.self, args[0]);
  return Value::boolean(found == order || (or_equal && found == 0));
}

template <bool wanted>
Value is_equal(Call& call) {
  const List args = bind_arguments(call, "test", {""}, 1);
  return Value::boolean(equals(call.self, args[0]) == wanted);
}

Value is_in(Call& call) {
  const List args = bind_arguments(call, "in", {"seq"}, 1);
  return Value::boolean(contains(args[0], call.self));
}

Value is_same(Call& call) {
  const List args = bind_arguments(call, "sameas", {"other"}, 1);
  return Value::boolean(call.self.identical(args[0]));
}

Value is_sequence(Call& call) {
  return plain(call, [](const Value& v) {
    if (v.is(Kind::kObject)) return v.as_object().subscriptable();
    return length_of(v).has_value();
  });
}

Value is_iterable(Call& call) {
  return plain(call, [](const Value& v) { return try_iterate(v).has_value(); });
}

Value is_callable(Call& call) {
  return plain(call, [](const Value& v) {
    return v.is_undefined() || (v.is(Kind::kObject) && v.as_object().callable());
  });
}

template <Builtin (*find)(std::string_view)>
Value is_known(Call& call) {
  return plain(call, [](const Value& v) {
    if (!hashable(v)) type_error(fmt::format("unhashable type: '{}'", type_name(v)));
    return v.is_string() && find(v.as_string()) != nullptr;
  });
}

}  // namespace

Builtin find_test(std::string_view name) {
  using Table = std::unordered_map<std::string_view, Builtin>;
  static const Table table = {
      {"defined",
       [](Call& c) { return plain(c, [](const Value& v) { return !v.is_undefined(); }); }},
      {"undefined", is_kind<Kind::kUndefined>},
      {"none", is_kind<Kind::kNone>},
      {"boolean", is_kind<Kind::kBool>},
      {"integer", is_kind<Kind::kInt>},
      {"float", is_kind<Kind::kFloat>},
      {"string", is_kind<Kind::kString>},
      {"mapping", is_kind<Kind::kDict>},
      {"true", is_constant<true>},
      {"false", is_constant<false>},
      {"number", [](Call& c) { return plain(c, [](const Value& v) { return v.is_number(); }); }},
      {"lower",
       [](Call& c) { return plain(c, [](const Value& v) { return is_lower(to_string(v)); }); }},
      {"upper",
       [](Call& c) { return plain(c, [](const Value& v) { return is_upper(to_string(v)); }); }},
      {"escaped", [](Call& c) { return plain(c, [](const Value& v) { return v.is_markup(); }); }},
      {"odd", is_modulo_two<1>},
      {"even", is_modulo_two<0>},
      {"divisibleby", is_divisible},
      {"sequence", is_sequence},
      {"iterable", is_iterable},
      {"callable", is_callable},
      {"sameas", is_same},
      {"in", is_in},
      {"filter", is_known<find_filter>},
      {"test", is_known<find_test>},
      {"==", is_equal<true>},
      {"eq", is_equal<true>},
      {"equalto", is_equal<true>},
      {"!=", is_equal<false>},
      {"ne", is_equal<false>},
      {">", is_ordered<1, false>},
      {"gt", is_ordered<1, false>},
      {"greaterthan", is_ordered<1, false>},
      {">=", is_ordered<1, true>},
      {"ge", is_ordered<1, true>},
      {"<", is_ordered<-1, false>},
      {"lt", is_ordered<-1, false>},
      {"lessthan", is_ordered<-1, false>},
      {"<=", is_ordered<-1, true>},
      {"le", is_ordered<-1, true>},
  };
  const auto at = table.find(name);
  return at == table.end() ? nullptr : at->second;
}

}  // namespace quadrille::text::jinja
