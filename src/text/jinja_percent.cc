// "..." % values, and the filter format.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "text/jinja_format.h"
#include "text/jinja_text.h"

namespace quadrille::text::jinja {
namespace {

class PercentFormatter {
 public:
  PercentFormatter(Interpreter& in, const std::string& format, const Value& values)
      : in_(in), format_(format), values_(values) {}

  std::string run() {
    std::string out;
    while (at_ < format_.size()) {
      const char c = format_[at_++];
      if (c == '%') {
        out += conversion();
      } else {
        out.push_back(c);
      }
    }
    const bool mapping = values_.is(Kind::kDict) || values_.is(Kind::kList) ||
                         values_.is_undefined() || values_.is(Kind::kObject);
    const size_t given = values_.is(Kind::kTuple) ? values_.as_list().size() : 1;
    if (!mapping && used_ < given)
      type_error("not all arguments converted during string formatting");
    return out;
  }

 private:
  char peek() const {
    if (at_ >= format_.size()) throw RenderError("incomplete format");
    return format_[at_];
  }

  Value next() {
    if (values_.is(Kind::kTuple)) {
      if (used_ >= values_.as_list().size()) type_error("not enough arguments for format string");
      return values_.as_list()[used_++];
    }
    if (used_++ > 0) type_error("not enough arguments for format string");
    return values_;
  }

  int64_t number() {
    if (peek() == '*') {
      ++at_;
      return checked_size(integer_argument(next(), "*"));
    }
    Int value = 0;
    while (at_ < format_.size() && peek() >= '0' && peek() <= '9') {
      value = std::min<Int>(value * 10 + (format_[at_++] - '0'), Int{1} << 40);
    }
    return checked_size(value);
  }

  std::string conversion() {
    Spec spec;
    Value value;
    if (peek() == '(') {
      const size_t end = format_.find(')', at_);
      if (end == std::string::npos) throw RenderError("incomplete format key");
      if (!values_.is(Kind::kDict)) type_error("format requires a mapping");
      const std::string key = format_.substr(at_ + 1, end - at_ - 1);
      const Value* found = values_.as_dict().find(std::string_view(key));
      if (found == nullptr)
        throw RenderError(fmt::format("KeyError: {}", repr(std::string_view(key))));
      value = *found;
      at_ = end + 1;
    }
    bool left = false;
    for (; std::string_view("-+ #0").find(peek()) != std::string_view::npos; ++at_) {
      const char flag = peek();
      left = left || flag == '-';
      if (flag == '+' || (flag == ' ' && spec.sign != '+')) spec.sign = flag;
      spec.alternate = spec.alternate || flag == '#';
      spec.zero = spec.zero || flag == '0';
    }
    spec.width = number();
    if (spec.width < 0) {
      left = true;
      spec.width = -spec.width;
    }
    if (left) spec.align = '<';
    if (peek() == '.') {
      ++at_;
      spec.precision = std::max<int64_t>(number(), 0);
    }
    while (peek() == 'h' || peek() == 'l' || peek() == 'L') ++at_;
    spec.type = peek();
    ++at_;
    if (spec.type == '%') return "%";
    if (value.missing()) value = next();
    return convert(spec, value);
  }

  std::string convert(Spec spec, const Value& value) {
    switch (spec.type) {
      case 's':
        return format_text(in_, to_string(value), spec, '>');
      case 'r':
        return format_text(in_, repr(value), spec, '>');
      case 'c':
        if (value.is_string() && count_code_points(value.as_string()) == 1) {
          return format_text(in_, value.as_string(), spec, '>');
        }
        type_error("%c of anything but a character is not supported");
      case 'd':
      case 'i':
      case 'u':
      case 'o':
      case 'x':
      case 'X': {
        const bool decimal = spec.type != 'o' && spec.type != 'x' && spec.type != 'X';
        const bool from_float =
            decimal && value.is(Kind::kFloat) && std::abs(value.as_double()) < 1e38;
        if (!value.is_integral() && !from_float) {
          type_error(
              fmt::format("%{} format: a number is required, not {}", spec.type, type_name(value)));
        }
        if (spec.precision > kMaxPrecision) throw RenderError("a precision too big");
        if (decimal) spec.type = 'd';
        return format_integer(
            in_, value.is_integral() ? value.as_int() : static_cast<Int>(value.as_double()), spec);
      }
      case 'e':
      case 'E':
      case 'f':
      case 'F':
      case 'g':
      case 'G':
        if (!value.is_number())
          type_error(fmt::format("must be real number, not {}", type_name(value)));
        if (spec.precision > kMaxPrecision) throw RenderError("a precision too big");
        return format_float(in_, value.as_double(), spec);
      default:
        throw RenderError(fmt::format("unsupported format character '{}'", spec.type));
    }
  }

  Interpreter& in_;
  const std::string& format_;
  const Value& values_;
  size_t at_ = 0;
  size_t used_ = 0;
};

}  // namespace

std::string percent_format(Interpreter& in, const std::string& format, const Value& values) {
  return PercentFormatter(in, format, values).run();
}

}  // namespace quadrille::text::jinja
