// Methods of str, dict, list and tuple.
#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "text/jinja_interpreter.h"
#include "text/jinja_text.h"

namespace quadrille::text::jinja {
namespace {

const std::string& self(const Call& call) {
  return call.self.as_string();
}

Value strings(Interpreter& in, std::vector<std::string> parts, bool as_tuple = false) {
  List out;
  size_t num_bytes = parts.size() * sizeof(Value);
  for (std::string& part : parts) {
    num_bytes += part.size();
    out.push_back(Value::string(std::move(part)));
  }
  in.charge(num_bytes);
  return as_tuple ? Value::tuple(std::move(out)) : Value::list(std::move(out));
}

bool given(const Value& v) {
  return !v.missing() && !v.is_none();
}

template <std::string (*change)(std::string_view)>
Value changed(Call& call) {
  bind_arguments(call, "str method", {});
  return call.in.text(change(self(call)));
}

template <CharClass what>
Value is_class(Call& call) {
  bind_arguments(call, "str method", {});
  return Value::boolean(all_of_class(self(call), what));
}

template <bool (*what)(std::string_view)>
Value is_case(Call& call) {
  bind_arguments(call, "str method", {});
  return Value::boolean(what(self(call)));
}

template <bool left, bool right>
Value stripped(Call& call) {
  const List args = bind_arguments(call, "strip", {""});
  std::optional<std::string_view> chars;
  if (given(args[0])) chars = string_argument(args[0], "strip");
  return call.in.text(strip(self(call), chars, left, right));
}

template <bool from_right>
Value splitted(Call& call) {
  const List args = bind_arguments(call, "split", {"sep", "maxsplit"});
  std::optional<std::string_view> separator;
  if (given(args[0])) {
    separator = string_argument(args[0], "split");
    if (separator->empty()) throw RenderError("empty separator");
  }
  const int64_t limit = args[1].missing() ? -1 : index_argument(args[1], "split");
  return strings(call.in, split(self(call), separator, limit, from_right));
}

Value splitlines(Call& call) {
  const List args = bind_arguments(call, "splitlines", {"keepends"});
  return strings(call.in, split_lines(self(call), truth(args[0])));
}

template <bool from_right>
Value partition(Call& call) {
  const List args = bind_arguments(call, "partition", {""}, 1);
  const std::string& separator = string_argument(args[0], "partition");
  if (separator.empty()) throw RenderError("empty separator");
  const std::string& s = self(call);
  const size_t at = from_right ? s.rfind(separator) : s.find(separator);
  if (at == std::string::npos) {
    return strings(
        call.in,
        from_right ? std::vector<std::string>{"", "", s} : std::vector<std::string>{s, "", ""},
        true);
  }
  return strings(call.in, {s.substr(0, at), separator, s.substr(at + separator.size())}, true);
}

// s[start:end] of find, count, startswith; nullopt if start lies beyond the end.
struct Window {
  std::string text;
  int64_t offset = 0;
};
std::optional<Window> window(const Call& call, const Value& start, const Value& end) {
  const std::string& s = self(call);
  if (!given(start) && !given(end)) return Window{s, 0};
  const int64_t length = count_code_points(s);
  std::optional<int64_t> from, to;
  if (given(start)) from = index_argument(start, "find");
  if (given(end)) to = index_argument(end, "find");
  if (from.value_or(0) > length) return std::nullopt;
  const SliceRange range = slice_range(length, from, to, 1);
  const int64_t stop =
      to ? (*to < 0 ? std::max<int64_t>(*to + length, 0) : std::min(*to, length)) : length;
  if (range.start > stop) return std::nullopt;
  return Window{slice(s, range), range.start};
}

int64_t find_in(Call& call, bool from_right) {
  const List args = bind_arguments(call, "find", {"", "", ""}, 1);
  const std::string& what = string_argument(args[0], "find");
  const std::optional<Window> where = window(call, args[1], args[2]);
  if (!where) return -1;
  const size_t at = from_right ? where->text.rfind(what) : where->text.find(what);
  if (at == std::string::npos) return -1;
  return where->offset + count_code_points(std::string_view(where->text).substr(0, at));
}

template <bool from_right>
Value find(Call& call) {
  return Value::integer(find_in(call, from_right));
}

template <bool from_right>
Value index(Call& call) {
  const int64_t at = find_in(call, from_right);
  if (at < 0) throw RenderError("substring not found");
  return Value::integer(at);
}

Value count_in(Call& call) {
  const List args = bind_arguments(call, "count", {"", "", ""}, 1);
  const std::optional<Window> where = window(call, args[1], args[2]);
  return Value::integer(where ? count(where->text, string_argument(args[0], "count")) : 0);
}

template <bool at_end>
Value affix(Call& call) {
  const List args = bind_arguments(call, at_end ? "endswith" : "startswith", {"", "", ""}, 1);
  const std::optional<Window> where = window(call, args[1], args[2]);
  const auto matches = [&](const Value& v) {
    const std::string& what = string_argument(v, "startswith");
    if (!where) return false;
    return at_end ? where->text.ends_with(what) : where->text.starts_with(what);
  };
  if (!args[0].is(Kind::kTuple)) return Value::boolean(matches(args[0]));
  return Value::boolean(std::any_of(args[0].as_list().begin(), args[0].as_list().end(), matches));
}

template <bool at_end>
Value remove_affix(Call& call) {
  const List args = bind_arguments(call, "removeprefix", {""}, 1);
  const std::string& what = string_argument(args[0], "removeprefix");
  const std::string& s = self(call);
  if (at_end) return call.in.text(s.ends_with(what) ? s.substr(0, s.size() - what.size()) : s);
  return call.in.text(s.starts_with(what) ? s.substr(what.size()) : s);
}

Value replace_in(Call& call) {
  const List args = bind_arguments(call, "replace", {"", "", ""}, 2);
  const std::string& from = string_argument(args[0], "replace");
  const std::string& to = string_argument(args[1], "replace");
  // Saves the memory of a result that is too big.
  call.in.charge(self(call).size() + static_cast<size_t>(count(self(call), from)) * to.size());
  const int64_t limit = args[2].missing() ? -1 : index_argument(args[2], "replace");
  return Value::string(replace(self(call), from, to, limit));
}

Value join(Call& call) {
  const List args = bind_arguments(call, "join", {""}, 1);
  std::string out;
  bool first = true;
  Iterator next = iterate(args[0]);
  for (Value v; next(v);) {
    if (!v.is_string())
      type_error(fmt::format("join() found '{}' instead of a string", type_name(v)));
    if (!first) out += self(call);
    first = false;
    out += v.as_string();
    call.in.charge(v.as_string().size() + self(call).size());
  }
  return call.in.text(std::move(out));
}

enum class Side { kLeft, kCenter, kRight };
template <Side side>
Value padded(Call& call) {
  const List args = bind_arguments(call, "center", {"", ""}, 1);
  const int64_t width = index_argument(args[0], "center");
  const std::string fill = args[1].missing() ? " " : string_argument(args[1], "center");
  if (count_code_points(fill) != 1)
    type_error("the fill character must be exactly one character long");
  const int64_t missing = width - count_code_points(self(call));
  if (missing <= 0) return call.self;
  call.in.charge(static_cast<size_t>(missing));
  const int64_t left = side == Side::kLeft
                           ? 0
                           : (side == Side::kRight ? missing : missing / 2 + (missing & width & 1));
  std::string out;
  for (int64_t i = 0; i < left; ++i) out += fill;
  out += self(call);
  for (int64_t i = left; i < missing; ++i) out += fill;
  return call.in.text(std::move(out));
}

Value zfill(Call& call) {
  const List args = bind_arguments(call, "zfill", {""}, 1);
  const int64_t missing = index_argument(args[0], "zfill") - count_code_points(self(call));
  if (missing <= 0) return call.self;
  call.in.charge(static_cast<size_t>(missing));
  const std::string& s = self(call);
  const size_t sign = !s.empty() && (s[0] == '-' || s[0] == '+') ? 1 : 0;
  return call.in.text(s.substr(0, sign) + std::string(static_cast<size_t>(missing), '0') +
                      s.substr(sign));
}

Value format(Call& call) {
  return call.in.text(brace_format(call.in, self(call), call));
}

Value dict_get(Call& call) {
  const List args = bind_arguments(call, "get", {"", ""}, 1);
  if (!hashable(args[0])) type_error(fmt::format("unhashable type: '{}'", type_name(args[0])));
  if (const Value* found = call.self.as_dict().find(args[0])) return *found;
  return args[1].missing() ? Value::none() : args[1];
}

template <DictView::What what>
Value dict_view(Call& call) {
  bind_arguments(call, "dict method", {});
  return Value::object(std::make_shared<DictView>(call.self, what));
}

Value copy(Call& call) {
  bind_arguments(call, "copy", {});
  return call.self;  // Nothing can change it.
}

Value list_count(Call& call) {
  const List args = bind_arguments(call, "count", {""}, 1);
  const List& items = call.self.as_list();
  return Value::integer(std::count_if(items.begin(), items.end(),
                                      [&](const Value& v) { return equals(v, args[0]); }));
}

Value list_index(Call& call) {
  const List args = bind_arguments(call, "index", {"", "", ""}, 1);
  const List& items = call.self.as_list();
  std::optional<int64_t> start, stop;
  if (given(args[1])) start = index_argument(args[1], "index");
  if (given(args[2])) stop = index_argument(args[2], "index");
  const SliceRange range = slice_range(static_cast<int64_t>(items.size()), start, stop, 1);
  for (int64_t i = range.start; i < range.start + range.count; ++i) {
    if (equals(items[static_cast<size_t>(i)], args[0])) return Value::integer(i);
  }
  throw RenderError(fmt::format("{} is not in list", repr(args[0])));
}

using Table = std::unordered_map<std::string_view, Builtin>;

Builtin look_up(const Table& table, std::string_view name) {
  const auto at = table.find(name);
  return at == table.end() ? nullptr : at->second;
}

}  // namespace

Builtin find_string_method(std::string_view name) {
  static const Table table = {
      {"capitalize", changed<capitalize>},
      {"lower", changed<to_lower>},
      {"upper", changed<to_upper>},
      {"title", changed<to_title>},
      {"swapcase", changed<swap_case>},
      {"isalpha", is_class<CharClass::kAlpha>},
      {"isdigit", is_class<CharClass::kDigit>},
      {"isdecimal", is_class<CharClass::kDecimal>},
      {"isnumeric", is_class<CharClass::kNumeric>},
      {"isalnum", is_class<CharClass::kAlnum>},
      {"isspace", is_class<CharClass::kSpace>},
      {"isprintable", is_class<CharClass::kPrintable>},
      {"isascii", is_class<CharClass::kAscii>},
      {"islower", is_case<is_lower>},
      {"isupper", is_case<is_upper>},
      {"istitle", is_case<is_title>},
      {"strip", stripped<true, true>},
      {"lstrip", stripped<true, false>},
      {"rstrip", stripped<false, true>},
      {"split", splitted<false>},
      {"rsplit", splitted<true>},
      {"splitlines", splitlines},
      {"partition", partition<false>},
      {"rpartition", partition<true>},
      {"find", find<false>},
      {"rfind", find<true>},
      {"index", index<false>},
      {"rindex", index<true>},
      {"count", count_in},
      {"startswith", affix<false>},
      {"endswith", affix<true>},
      {"removeprefix", remove_affix<false>},
      {"removesuffix", remove_affix<true>},
      {"replace", replace_in},
      {"join", join},
      {"center", padded<Side::kCenter>},
      {"ljust", padded<Side::kLeft>},
      {"rjust", padded<Side::kRight>},
      {"zfill", zfill},
      {"format", format},
  };
  return look_up(table, name);
}

Builtin find_dict_method(std::string_view name) {
  static const Table table = {{"get", dict_get},
                              {"items", dict_view<DictView::What::kItems>},
                              {"keys", dict_view<DictView::What::kKeys>},
                              {"values", dict_view<DictView::What::kValues>},
                              {"copy", copy}};
  return look_up(table, name);
}

Builtin find_list_method(std::string_view name) {
  static const Table table = {{"count", list_count}, {"index", list_index}, {"copy", copy}};
  return look_up(table, name);
}

}  // namespace quadrille::text::jinja
