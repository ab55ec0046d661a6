// Filters on one value: texts and numbers. Those on sequences are in jinja_sequence_filters.cc.
#include "text/jinja_filters.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdlib>

#include "text/jinja_interpreter.h"
#include "text/jinja_text.h"

namespace quadrille::text::jinja {
namespace {

template <std::string (*change)(std::string_view)>
Value changed(Call& call) {
  bind_arguments(call, "filter", {});
  return call.in.text(change(to_string(call.self)));
}

// Unlike str.title(): a letter after an apostrophe stays small.
Value title(Call& call) {
  bind_arguments(call, "title", {});
  const std::u32string all = to_code_points(to_string(call.self));
  const auto ends_word = [](char32_t c) {
    return c == '-' || c == '(' || c == '{' || c == '[' || c == '<' || is_space(c);
  };
  std::string out;
  for (size_t begin = 0; begin < all.size();) {
    size_t end = begin;
    const bool gap = ends_word(all[begin]);
    while (end < all.size() && ends_word(all[end]) == gap) ++end;
    out += to_upper(to_utf8(all.substr(begin, 1))) +
           to_lower(to_utf8(all.substr(begin + 1, end - begin - 1)));
    begin = end;
  }
  return call.in.text(std::move(out));
}

Value trim(Call& call) {
  const List args = bind_arguments(call, "trim", {"chars"});
  std::optional<std::string_view> chars;
  if (!args[0].missing() && !args[0].is_none()) chars = string_argument(args[0], "trim");
  return call.in.text(strip(to_string(call.self), chars, true, true));
}

Value replace_all(Call& call) {
  const List args = bind_arguments(call, "replace", {"old", "new", "count"}, 2);
  const std::string s = to_string(call.self);
  const std::string from = to_string(args[0]);
  const std::string to = to_string(args[1]);
  call.in.charge(s.size() + static_cast<size_t>(count(s, from)) * to.size());
  const bool all = args[2].missing() || args[2].is_none();
  return Value::string(replace(s, from, to, all ? -1 : index_argument(args[2], "replace")));
}

Value center(Call& call) {
  const List args = bind_arguments(call, "center", {"width"});
  Call method{call.in,
              Value::string(to_string(call.self)),
              {args[0].missing() ? Value::integer(80) : args[0]},
              {}};
  return find_string_method("center")(method);
}

Value default_value(Call& call) {
  const List args = bind_arguments(call, "default", {"default_value", "boolean"});
  const bool use = call.self.is_undefined() || (truth(args[1]) && !truth(call.self));
  if (!use) return call.self;
  return args[0].missing() ? Value::string("") : args[0];
}

Value indent(Call& call) {
  const List args = bind_arguments(call, "indent", {"width", "first", "blank"});
  const std::string& s = string_argument(call.self, "indent");
  std::string indention(4, ' ');
  if (args[0].is_string()) {
    indention = args[0].as_string();
  } else if (!args[0].missing()) {
    const int64_t width = std::max<int64_t>(index_argument(args[0], "indent"), 0);
    call.in.charge(static_cast<size_t>(width));
    indention.assign(static_cast<size_t>(width), ' ');
  }
  const std::vector<std::string> lines = split_lines(s + "\n", false);
  call.in.charge(s.size() + lines.size() * (indention.size() + 1));
  std::string out;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) out += "\n";
    const bool wanted = i == 0 ? truth(args[1]) : (truth(args[2]) || !lines[i].empty());
    if (wanted) out += indention;
    out += lines[i];
  }
  return Value::string(std::move(out));
}

Value truncate(Call& call) {
  const List args = bind_arguments(call, "truncate", {"length", "killwords", "end", "leeway"});
  const int64_t length = args[0].missing() ? 255 : index_argument(args[0], "truncate");
  const std::string end = args[2].missing() ? "..." : string_argument(args[2], "truncate");
  const bool has_leeway = !args[3].missing() && !args[3].is_none();
  const int64_t leeway = has_leeway ? index_argument(args[3], "truncate") : 5;
  const int64_t kept = length - count_code_points(end);
  if (kept < 0 || leeway < 0)
    throw RenderError("truncate: the length is shorter than the end mark");
  const int64_t size = length_of(call.self).value_or(INT64_MAX);
  if (size - leeway <= length) return call.self;
  const std::string& s = string_argument(call.self, "truncate");
  std::string head = slice(s, slice_range(size, 0, kept, 1));
  if (!truth(args[1])) head = split(head, " ", 1, true)[0];
  return call.in.text(head + end);
}

Value wordcount(Call& call) {
  bind_arguments(call, "wordcount", {});
  int64_t words = 0;
  bool inside = false;
  for (const char32_t c : to_code_points(to_string(call.self))) {
    std::string one;
    append_utf8(one, c);
    const bool word = c == '_' || all_of_class(one, CharClass::kAlnum);
    words += word && !inside ? 1 : 0;
    inside = word;
  }
  return Value::integer(words);
}

// int(text, base): sign, prefix of the base, single underscores between digits.
std::optional<Int> parse_integer(const std::string& text, int64_t base) {
  std::string s = strip(text, std::nullopt, true, true);
  const bool negative = !s.empty() && s[0] == '-';
  if (!s.empty() && (s[0] == '-' || s[0] == '+')) s.erase(0, 1);
  if (s.size() > 2 && s[0] == '0') {
    const char mark = static_cast<char>(s[1] | 0x20);
    const int64_t meant = mark == 'x' ? 16 : (mark == 'o' ? 8 : (mark == 'b' ? 2 : 0));
    if (meant != 0 && (base == meant || base == 0)) {
      base = meant;
      s.erase(0, s[2] == '_' ? 3 : 2);
    }
  }
  if (base == 0) base = 10;
  Int value = 0;
  bool digit_before = false;
  for (const char c : s) {
    if (c == '_' && digit_before) {
      digit_before = false;
      continue;
    }
    const int digit = c >= '0' && c <= '9'
                          ? c - '0'
                          : ((c | 0x20) >= 'a' && (c | 0x20) <= 'z' ? (c | 0x20) - 'a' + 10 : 99);
    if (digit >= base) return std::nullopt;
    if (__builtin_mul_overflow(value, Int{base}, &value) ||
        __builtin_add_overflow(value, Int{digit}, &value)) {
      throw RenderError("an integer of more than 127 bits is not supported");
    }
    digit_before = true;
  }
  if (!digit_before) return std::nullopt;
  return negative ? -value : value;
}

std::optional<double> parse_float(const std::string& text) {
  const std::string stripped = strip(text, std::nullopt, true, true);
  std::string s;
  for (size_t i = 0; i < stripped.size(); ++i) {
    const auto digit_at = [&](size_t at) {
      return at < stripped.size() && stripped[at] >= '0' && stripped[at] <= '9';
    };
    if (stripped[i] == '_' && i > 0 && digit_at(i - 1) && digit_at(i + 1)) continue;
    s.push_back(stripped[i]);
  }
  // strtod also reads hexadecimal numbers and nan(...), which Python does not.
  if (s.empty() || s.find_first_of("xX(") != std::string::npos) return std::nullopt;
  char* end = nullptr;
  const double value = std::strtod(s.c_str(), &end);
  if (end != s.c_str() + s.size() || is_space(static_cast<unsigned char>(s[0])))
    return std::nullopt;
  return value;
}

Value truncated(double value) {
  if (std::isnan(value) || std::isinf(value))
    throw RenderError("cannot convert the number to an integer");
  if (std::abs(value) > 1e38)
    throw RenderError("an integer of more than 127 bits is not supported");
  return Value::integer(static_cast<Int>(value));
}

Value to_int(Call& call) {
  const List args = bind_arguments(call, "int", {"default", "base"});
  const Value fallback = args[0].missing() ? Value::integer(0) : args[0];
  require_defined(call.self);
  if (call.self.is_integral()) return Value::integer(call.self.as_int());
  if (call.self.is(Kind::kFloat)) {
    return std::isnan(call.self.as_double()) ? fallback : truncated(call.self.as_double());
  }
  if (!call.self.is_string()) return fallback;
  const int64_t base = args[1].missing() ? 10 : index_argument(args[1], "int");
  if (const auto value = parse_integer(call.self.as_string(), base)) return Value::integer(*value);
  const auto value = parse_float(call.self.as_string());
  return value && std::isfinite(*value) ? truncated(*value) : fallback;
}

Value to_float(Call& call) {
  const List args = bind_arguments(call, "float", {"default"});
  require_defined(call.self);
  if (call.self.is_number()) return Value::real(call.self.as_double());
  if (call.self.is_string()) {
    if (const auto value = parse_float(call.self.as_string())) return Value::real(*value);
  }
  return args[0].missing() ? Value::real(0.0) : args[0];
}

// round(x, n): ties of the exact binary value go to the even digit, as printf rounds too.
double round_half_even(double value, int64_t precision) {
  if (!std::isfinite(value) || precision > 300) return value;
  if (precision >= 0) return std::strtod(fmt::format("{:.{}f}", value, precision).c_str(), nullptr);
  const double scale = std::pow(10.0, static_cast<double>(-precision));
  return std::nearbyint(value / scale) * scale;
}

Value round(Call& call) {
  const List args = bind_arguments(call, "round", {"precision", "method"});
  const int64_t precision = args[0].missing() ? 0 : index_argument(args[0], "round");
  const std::string method = args[1].missing() ? "common" : string_argument(args[1], "round");
  require_defined(call.self);
  if (!call.self.is_number()) type_error("round needs a number");
  const double value = call.self.as_double();
  if (method == "common") {
    if (call.self.is_integral() && precision >= 0) return Value::integer(call.self.as_int());
    const double rounded = round_half_even(value, precision);
    return call.self.is_integral() ? truncated(rounded) : Value::real(rounded);
  }
  if (method != "ceil" && method != "floor")
    throw RenderError("method must be common, ceil or floor");
  const double scale = std::pow(10.0, static_cast<double>(precision));
  return Value::real((method == "ceil" ? std::ceil(value * scale) : std::floor(value * scale)) /
                     scale);
}

Value absolute(Call& call) {
  bind_arguments(call, "abs", {});
  require_defined(call.self);
  if (call.self.is_integral()) {
    const Int v = call.self.as_int();
    return Value::integer(v < 0 ? -v : v);
  }
  if (!call.self.is(Kind::kFloat))
    type_error(fmt::format("bad operand type for abs(): '{}'", type_name(call.self)));
  return Value::real(std::abs(call.self.as_double()));
}

Value string(Call& call) {
  bind_arguments(call, "string", {});
  return call.self.is_string() ? call.self : call.in.text(to_string(call.self));
}

Value safe(Call& call) {
  bind_arguments(call, "safe", {});
  return Value::string(to_string(call.self), true);
}

Value escape(Call& call) {
  bind_arguments(call, "escape", {});
  if (call.self.is_markup()) return call.self;
  std::string s = escape_html(to_string(call.self));
  call.in.charge(s.size());
  return Value::string(std::move(s), true);
}

Value format(Call& call) {
  if (!call.args.empty() && !call.keywords.empty())
    throw RenderError("format takes positions or names, not both");
  Dict named;
  for (const auto& [name, value] : call.keywords) named.set(Value::string(name), value);
  const Value values =
      call.keywords.empty() ? Value::tuple(call.args) : Value::dict(std::move(named));
  return call.in.text(percent_format(call.in, to_string(call.self), values));
}

Value tojson(Call& call) {
  const List args =
      bind_arguments(call, "tojson", {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ensure_ascii = truth(args[0]);
  style.sort_keys = truth(args[3]);
  const bool indented = !args[1].missing() && !args[1].is_none();
  if (indented) {
    if (args[1].is_string()) {
      style.indent = args[1].as_string();
    } else {
      const int64_t width = std::max<int64_t>(index_argument(args[1], "tojson"), 0);
      call.in.charge(static_cast<size_t>(width));
      style.indent = std::string(static_cast<size_t>(width), ' ');
    }
    style.item_separator = ",";
  }
  if (!args[2].missing() && !args[2].is_none()) {
    if (!args[2].is_sequence() || args[2].as_list().size() != 2)
      type_error("separators must be a pair");
    style.item_separator = string_argument(args[2].as_list()[0], "separators");
    style.key_separator = string_argument(args[2].as_list()[1], "separators");
  }
  return call.in.text(to_json(call.in, call.self, style));
}

Value attr(Call& call) {
  const List args = bind_arguments(call, "attr", {"name"}, 1);
  const std::string& name = string_argument(args[0], "attr");
  // Only what is an attribute in Python, so no keys of a dict.
  if (call.self.is(Kind::kDict) && find_dict_method(name) == nullptr) {
    return Value::undefined(fmt::format("'dict object' has no attribute '{}'", name));
  }
  return call.in.attribute(call.self, name);
}

}  // namespace

const FilterTable& value_filters() {
  static const FilterTable table = {
      {"abs", absolute},
      {"attr", attr},
      {"capitalize", changed<capitalize>},
      {"center", center},
      {"d", default_value},
      {"default", default_value},
      {"e", escape},
      {"escape", escape},
      {"float", to_float},
      {"format", format},
      {"indent", indent},
      {"int", to_int},
      {"lower", changed<to_lower>},
      {"replace", replace_all},
      {"round", round},
      {"safe", safe},
      {"string", string},
      {"title", title},
      {"tojson", tojson},
      {"trim", trim},
      {"truncate", truncate},
      {"upper", changed<to_upper>},
      {"wordcount", wordcount},
  };
  return table;
}

}  // namespace quadrille::text::jinja
