#include "text/jinja_value.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "text/jinja_text.h"

namespace quadrille::text::jinja {
namespace {

constexpr int kMaxDepth = 200;

void check_depth(int depth) {
  if (depth > kMaxDepth)
    throw RenderError(fmt::format("a value is nested more than {} deep", kMaxDepth));
}

std::string repr_items(const List& items, int depth) {
  std::string out;
  for (const Value& item : items) {
    if (!out.empty()) out += ", ";
    out += repr(item, depth + 1);
  }
  return out;
}

bool equal_lists(const List& a, const List& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (!a[i].identical(b[i]) && !equals(a[i], b[i])) return false;
  }
  return true;
}

bool equal_dicts(const Dict& a, const Dict& b) {
  if (a.size() != b.size()) return false;
  for (const auto& [key, value] : a.items()) {
    const Value* other = b.find(key);
    if (other == nullptr || !equals(value, *other)) return false;
  }
  return true;
}

int compare_lists(const List& a, const List& b) {
  for (size_t i = 0; i < a.size() && i < b.size(); ++i) {
    if (!equals(a[i], b[i])) return compare(a[i], b[i]);
  }
  return a.size() == b.size() ? 0 : (a.size() < b.size() ? -1 : 1);
}

}  // namespace

const Value* Dict::find(const Value& key) const {
  for (const auto& [k, v] : items_) {
    if (equals(k, key)) return &v;
  }
  return nullptr;
}

const Value* Dict::find(std::string_view key) const {
  for (const auto& [k, v] : items_) {
    if (k.is_string() && k.as_string() == key) return &v;
  }
  return nullptr;
}

void Dict::set(Value key, Value value) {
  for (auto& [k, v] : items_) {
    if (equals(k, key)) {
      v = std::move(value);
      return;
    }
  }
  append(std::move(key), std::move(value));
}

void Dict::append(Value key, Value value) {
  items_.emplace_back(std::move(key), std::move(value));
}

Value Value::string(std::string v, bool markup) {
  return Value(
      Data(std::in_place_index<6>, std::make_shared<const Text>(Text{std::move(v), markup})));
}
Value Value::list(List v) {
  return Value(Data(std::in_place_index<7>, std::make_shared<const List>(std::move(v))));
}
Value Value::tuple(List v) {
  return Value(
      Data(std::in_place_index<10>, std::make_shared<const TupleBox>(TupleBox{std::move(v)})));
}
Value Value::dict(Dict v) {
  return Value(Data(std::in_place_index<8>, std::make_shared<const Dict>(std::move(v))));
}
Value Value::undefined(std::string why) {
  return Value(Data(std::in_place_index<1>, std::make_shared<const std::string>(std::move(why))));
}

Kind Value::kind() const {
  static constexpr Kind kinds[] = {Kind::kMissing, Kind::kUndefined, Kind::kNone,   Kind::kBool,
                                   Kind::kInt,     Kind::kFloat,     Kind::kString, Kind::kList,
                                   Kind::kDict,    Kind::kObject,    Kind::kTuple};
  return kinds[data_.index()];
}

Int Value::as_int() const {
  return is(Kind::kBool) ? Int{as_bool()} : std::get<4>(data_);
}

double Value::as_double() const {
  return is(Kind::kFloat) ? std::get<5>(data_) : static_cast<double>(as_int());
}

const List& Value::as_list() const {
  return is(Kind::kList) ? *std::get<7>(data_) : std::get<10>(data_)->items;
}

bool Value::identical(const Value& other) const {
  if (data_.index() != other.data_.index()) return false;
  switch (kind()) {
    case Kind::kString:
      return std::get<6>(data_) == std::get<6>(other.data_);
    case Kind::kList:
      return std::get<7>(data_) == std::get<7>(other.data_);
    case Kind::kDict:
      return std::get<8>(data_) == std::get<8>(other.data_);
    case Kind::kObject:
      return std::get<9>(data_) == std::get<9>(other.data_);
    case Kind::kTuple:
      return std::get<10>(data_) == std::get<10>(other.data_);
    case Kind::kUndefined:
      return std::get<1>(data_) == std::get<1>(other.data_);
    case Kind::kBool:
      return as_bool() == other.as_bool();
    case Kind::kInt:
      return as_int() == other.as_int();
    default:
      return is_none();
  }
}

std::string Object::repr(int) const {
  return "<" + type_name() + " object>";
}
Value Object::call(Call&) {
  type_error(fmt::format("'{}' object is not callable", type_name()));
}

std::string type_name(const Value& v) {
  switch (v.kind()) {
    case Kind::kMissing:
      return "missing";
    case Kind::kUndefined:
      return "Undefined";
    case Kind::kNone:
      return "NoneType";
    case Kind::kBool:
      return "bool";
    case Kind::kInt:
      return "int";
    case Kind::kFloat:
      return "float";
    case Kind::kString:
      return "str";
    case Kind::kList:
      return "list";
    case Kind::kTuple:
      return "tuple";
    case Kind::kDict:
      return "dict";
    case Kind::kObject:
      return v.as_object().type_name();
  }
  return "?";
}

void type_error(const std::string& message) {
  throw RenderError(message);
}

void require_defined(const Value& v) {
  if (v.is_undefined()) throw RenderError(v.why_undefined());
}

bool truth(const Value& v) {
  switch (v.kind()) {
    case Kind::kMissing:
    case Kind::kUndefined:
    case Kind::kNone:
      return false;
    case Kind::kBool:
      return v.as_bool();
    case Kind::kInt:
      return v.as_int() != 0;
    case Kind::kFloat:
      return v.as_double() != 0.0;
    case Kind::kString:
      return !v.as_string().empty();
    case Kind::kList:
    case Kind::kTuple:
      return !v.as_list().empty();
    case Kind::kDict:
      return v.as_dict().size() > 0;
    case Kind::kObject:
      return v.as_object().truth();
  }
  return false;
}

std::string to_string(const Value& v) {
  if (v.is_string()) return v.as_string();
  if (v.is_undefined()) return {};
  return repr(v);
}

std::string repr(const Value& v, int depth) {
  check_depth(depth);
  switch (v.kind()) {
    case Kind::kMissing:
      return "missing";
    case Kind::kUndefined:
      return "Undefined";
    case Kind::kNone:
      return "None";
    case Kind::kBool:
      return v.as_bool() ? "True" : "False";
    case Kind::kInt:
      return fmt::format("{}", v.as_int());
    case Kind::kFloat:
      return repr(v.as_double());
    case Kind::kString: {
      const std::string text = repr(std::string_view(v.as_string()));
      return v.is_markup() ? "Markup(" + text + ")" : text;
    }
    case Kind::kList:
      return "[" + repr_items(v.as_list(), depth) + "]";
    case Kind::kTuple: {
      const bool one = v.as_list().size() == 1;
      return "(" + repr_items(v.as_list(), depth) + (one ? ",)" : ")");
    }
    case Kind::kDict: {
      std::string out;
      for (const auto& [key, value] : v.as_dict().items()) {
        if (!out.empty()) out += ", ";
        out += repr(key, depth + 1) + ": " + repr(value, depth + 1);
      }
      return "{" + out + "}";
    }
    case Kind::kObject:
      return v.as_object().repr(depth + 1);
  }
  return {};
}

bool equals(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    if (a.is_integral() && b.is_integral()) return a.as_int() == b.as_int();
    return a.as_double() == b.as_double();
  }
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Kind::kString:
      return a.as_string() == b.as_string();
    case Kind::kList:
    case Kind::kTuple:
      return equal_lists(a.as_list(), b.as_list());
    case Kind::kDict:
      return equal_dicts(a.as_dict(), b.as_dict());
    case Kind::kObject:
      return a.as_object().equals(b.as_object());
    default:
      return true;  // None and undefined equal their like.
  }
}

int compare(const Value& a, const Value& b) {
  require_defined(a);
  require_defined(b);
  const auto order = [](const auto& x, const auto& y) { return x < y ? -1 : (y < x ? 1 : 0); };
  if (a.is_integral() && b.is_integral()) return order(a.as_int(), b.as_int());
  if (a.is_number() && b.is_number()) return order(a.as_double(), b.as_double());
  // UTF-8 sorts as its code points do.
  if (a.is_string() && b.is_string()) return order(a.as_string(), b.as_string());
  if (a.is_sequence() && a.kind() == b.kind()) return compare_lists(a.as_list(), b.as_list());
  type_error(fmt::format("'{}' and '{}' have no order", type_name(a), type_name(b)));
}

bool contains(const Value& container, const Value& item) {
  if (container.is_string()) {
    if (!item.is_string()) {
      type_error(
          fmt::format("'in <string>' requires string as left operand, not {}", type_name(item)));
    }
    return container.as_string().find(item.as_string()) != std::string::npos;
  }
  if (container.is(Kind::kDict)) {
    if (!hashable(item)) type_error(fmt::format("unhashable type: '{}'", type_name(item)));
    return container.as_dict().find(item) != nullptr;
  }
  if (container.is(Kind::kObject)) {
    if (const auto answer = container.as_object().contains(item)) return *answer;
  }
  std::optional<Iterator> next = try_iterate(container);
  if (!next) type_error(fmt::format("argument of type '{}' is not iterable", type_name(container)));
  for (Value v; (*next)(v);) {
    if (v.identical(item) || equals(v, item)) return true;
  }
  return false;
}

bool hashable(const Value& v) {
  if (v.is(Kind::kList) || v.is(Kind::kDict)) return false;
  if (!v.is(Kind::kTuple)) return true;
  for (const Value& item : v.as_list()) {
    if (!hashable(item)) return false;
  }
  return true;
}

std::optional<int64_t> length_of(const Value& v) {
  switch (v.kind()) {
    case Kind::kUndefined:
      return 0;
    case Kind::kString:
      return count_code_points(v.as_string());
    case Kind::kList:
    case Kind::kTuple:
      return static_cast<int64_t>(v.as_list().size());
    case Kind::kDict:
      return static_cast<int64_t>(v.as_dict().size());
    case Kind::kObject:
      return v.as_object().length();
    default:
      return std::nullopt;
  }
}

std::optional<Iterator> try_iterate(const Value& v) {
  switch (v.kind()) {
    case Kind::kUndefined:
      return [](Value&) { return false; };
    case Kind::kString:
      return [v, at = size_t{0}](Value& out) mutable {
        const std::string& bytes = v.as_string();
        if (at >= bytes.size()) return false;
        size_t end = at + 1;
        while (end < bytes.size() && (static_cast<unsigned char>(bytes[end]) & 0xC0) == 0x80) ++end;
        out = Value::string(bytes.substr(at, end - at));
        at = end;
        return true;
      };
    case Kind::kList:
    case Kind::kTuple:
      return [v, at = size_t{0}](Value& out) mutable {
        if (at >= v.as_list().size()) return false;
        out = v.as_list()[at++];
        return true;
      };
    case Kind::kDict:
      return [v, at = size_t{0}](Value& out) mutable {
        if (at >= v.as_dict().size()) return false;
        out = v.as_dict().items()[at++].first;
        return true;
      };
    case Kind::kObject:
      return v.as_object().iterate();
    default:
      return std::nullopt;
  }
}

Iterator iterate(const Value& v) {
  std::optional<Iterator> next = try_iterate(v);
  if (!next) type_error(fmt::format("'{}' object is not iterable", type_name(v)));
  return std::move(*next);
}

Value from_json(const nlohmann::ordered_json& json, int depth) {
  check_depth(depth);
  switch (json.type()) {
    case nlohmann::json::value_t::boolean:
      return Value::boolean(json.get<bool>());
    case nlohmann::json::value_t::number_integer:
      return Value::integer(json.get<int64_t>());
    case nlohmann::json::value_t::number_unsigned:
      return Value::integer(json.get<uint64_t>());
    case nlohmann::json::value_t::number_float:
      return Value::real(json.get<double>());
    case nlohmann::json::value_t::string: {
      const auto& text = json.get_ref<const std::string&>();
      if (!is_utf8(text)) throw RenderError("a text is not UTF-8");
      return Value::string(text);
    }
    case nlohmann::json::value_t::array: {
      List items;
      items.reserve(json.size());
      for (const auto& item : json) items.push_back(from_json(item, depth + 1));
      return Value::list(std::move(items));
    }
    case nlohmann::json::value_t::object: {
      Dict dict;
      for (const auto& [key, value] : json.items()) {
        dict.append(Value::string(key), from_json(value, depth + 1));
      }
      return Value::dict(std::move(dict));
    }
    default:
      return Value::none();
  }
}

}  // namespace quadrille::text::jinja
