// "...".format(values), with fields, attributes and format specifications.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "text/jinja_format.h"
#include "text/jinja_text.h"

namespace quadrille::text::jinja {
namespace {

class BraceFormatter {
 public:
  BraceFormatter(Interpreter& in, const Call& call) : in_(in), call_(call) {}

  std::string run(std::string_view format, int depth) {
    if (depth > 2) throw RenderError("Max string recursion exceeded");
    std::string out;
    for (size_t at = 0; at < format.size();) {
      const char c = format[at];
      const bool doubled = at + 1 < format.size() && format[at + 1] == c;
      if (c != '{' && c != '}') {
        out.push_back(c);
        ++at;
      } else if (doubled) {
        out.push_back(c);
        at += 2;
      } else if (c == '}') {
        throw RenderError("Single '}' encountered in format string");
      } else {
        const size_t end = field_end(format, at + 1);
        out += field(format.substr(at + 1, end - at - 1), depth);
        at = end + 1;
      }
    }
    return out;
  }

 private:
  static size_t field_end(std::string_view format, size_t at) {
    for (int open = 1; at < format.size(); ++at) {
      if (format[at] == '{') ++open;
      if (format[at] == '}' && --open == 0) return at;
    }
    throw RenderError("expected '}' before end of string");
  }

  std::string field(std::string_view text, int depth) {
    const size_t mark = text.find_first_of("!:");
    Value value = look_up(text.substr(0, mark));
    std::string_view rest = mark == std::string_view::npos ? std::string_view() : text.substr(mark);
    if (!rest.empty() && rest[0] == '!') {
      if (rest.size() < 2)
        throw RenderError("end of string while looking for conversion specifier");
      if (rest[1] != 's' && rest[1] != 'r')
        throw RenderError("only the conversions !s and !r are supported");
      value = Value::string(rest[1] == 's' ? to_string(value) : repr(value));
      rest.remove_prefix(2);
      if (!rest.empty() && rest[0] != ':')
        throw RenderError("expected ':' after conversion specifier");
    }
    const std::string spec = rest.empty() ? "" : run(rest.substr(1), depth + 1);
    return formatted(value, spec);
  }

  Value look_up(std::string_view path) {
    const size_t end = path.find_first_of(".[");
    const std::string first(path.substr(0, end));
    Value value;
    const bool digits =
        first.find_first_not_of("0123456789") == std::string::npos && first.size() < 6;
    if (digits) {
      const bool automatic = first.empty();
      if (numbering_ != '\0' && numbering_ != (automatic ? 'a' : 'm')) {
        throw RenderError("cannot switch between automatic and manual field numbering");
      }
      numbering_ = automatic ? 'a' : 'm';
      const size_t index = automatic ? next_++ : std::stoul(first);
      if (index >= call_.args.size()) throw RenderError("replacement index out of range");
      value = call_.args[index];
    } else {
      for (const auto& [name, given] : call_.keywords) {
        if (name == first) value = given;
      }
      if (value.missing())
        throw RenderError(fmt::format("KeyError: {}", repr(std::string_view(first))));
    }
    std::string_view rest = end == std::string_view::npos ? std::string_view() : path.substr(end);
    while (!rest.empty()) {
      const bool bracket = rest[0] == '[';
      const size_t stop =
          bracket ? rest.find(']') : std::min(rest.find_first_of(".[", 1), rest.size());
      if (stop == std::string_view::npos) throw RenderError("Missing ']' in format string");
      const std::string name(rest.substr(1, stop - 1));
      if (name.empty()) throw RenderError("Empty attribute in format string");
      const bool number =
          bracket && name.size() < 18 && name.find_first_not_of("0123456789") == std::string::npos;
      value = bracket
                  ? in_.item(value, number ? Value::integer(std::stoll(name)) : Value::string(name))
                  : in_.attribute(value, name);
      rest = rest.substr(bracket ? stop + 1 : stop);
    }
    return value;
  }

  static Spec parse_spec(const std::string& text) {
    Spec spec;
    std::u32string all = to_code_points(text);
    size_t at = 0;
    const auto peek = [&](size_t i) {
      return i < all.size() && all[i] < 0x80 ? static_cast<char>(all[i]) : '\0';
    };
    const auto is_align = [](char c) { return c == '<' || c == '>' || c == '^' || c == '='; };
    if (all.size() > 1 && is_align(peek(1))) {
      spec.fill = to_utf8(all.substr(0, 1));
      spec.align = peek(1);
      at = 2;
    } else if (is_align(peek(0))) {
      spec.align = peek(0);
      at = 1;
    }
    if (peek(at) == '+' || peek(at) == '-' || peek(at) == ' ') spec.sign = peek(at++);
    if (peek(at) == '#') spec.alternate = ++at > 0;
    if (peek(at) == '0') spec.zero = ++at > 0;
    const auto number = [&] {
      Int value = 0;
      while (peek(at) >= '0' && peek(at) <= '9')
        value = std::min<Int>(value * 10 + (peek(at++) - '0'), Int{1} << 40);
      return checked_size(value);
    };
    spec.width = number();
    if (peek(at) == ',' || peek(at) == '_') spec.group = peek(at++);
    if (peek(at) == '.') {
      ++at;
      if (peek(at) < '0' || peek(at) > '9') throw RenderError("Format specifier missing precision");
      spec.precision = number();
    }
    if (at < all.size()) spec.type = peek(at++);
    if (at < all.size()) throw RenderError("Invalid format specifier");
    return spec;
  }

  std::string formatted(const Value& value, const std::string& text) {
    if (text.empty()) return to_string(value);
    Spec spec = parse_spec(text);
    static constexpr std::string_view float_types = "eEfFgGn%";
    const bool as_float =
        float_types.find(spec.type) != std::string_view::npos && spec.type != '\0';
    if (value.is_string()) {
      if ((spec.type != '\0' && spec.type != 's') || spec.align == '=' || spec.sign != '-' ||
          spec.alternate || spec.group != '\0') {
        throw RenderError("this format is not for a string");
      }
      if (spec.zero && spec.align == '\0') spec.fill.assign(1, '0');
      return format_text(in_, value.as_string(), spec, '<');
    }
    if (value.is_number() && spec.precision > kMaxPrecision)
      throw RenderError("a precision too big");
    if (value.is_integral() && (!as_float || spec.type == 'n')) {
      if (spec.type == 'n') spec.type = 'd';
      if (std::string_view("bdoxX").find(spec.type) == std::string_view::npos &&
          spec.type != '\0') {
        throw RenderError(fmt::format("Unknown format code '{}' for an integer", spec.type));
      }
      if (spec.precision >= 0)
        throw RenderError("Precision not allowed in integer format specifier");
      return format_integer(in_, value.as_int(), spec);
    }
    if (value.is_number() && (as_float || spec.type == '\0'))
      return format_float(in_, value.as_double(), spec);
    type_error(fmt::format("unsupported format string passed to {}.__format__", type_name(value)));
  }

  Interpreter& in_;
  const Call& call_;
  char numbering_ = '\0';  // 'a' for {}, 'm' for {0}.
  size_t next_ = 0;
};

}  // namespace

std::string brace_format(Interpreter& in, const std::string& format, const Call& call) {
  return BraceFormatter(in, call).run(format, 0);
}

}  // namespace quadrille::text::jinja
