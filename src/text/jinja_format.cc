#include "text/jinja_format.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "text/jinja_text.h"

namespace quadrille::text::jinja {
namespace {

std::string digits_of(Int value, int base, bool upper) {
  if (value == 0) return "0";
  std::string out;
  const char* digits = upper ? "0123456789ABCDEF" : "0123456789abcdef";
  for (; value != 0; value /= base) {
    const int digit = static_cast<int>(value % base);
    out.push_back(digits[digit < 0 ? -digit : digit]);
  }
  std::reverse(out.begin(), out.end());
  return out;
}

std::string grouped(const std::string& digits, char mark, size_t size) {
  std::string out;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % size == 0) out.push_back(mark);
    out.push_back(digits[i]);
  }
  return out;
}

// Puts sign, prefix and digits into the width.
std::string pad(Interpreter& in, const Spec& spec, const std::string& prefix,
                const std::string& body, char default_align) {
  const int64_t missing = spec.width - count_code_points(prefix) - count_code_points(body);
  if (missing <= 0) return prefix + body;
  in.charge(static_cast<size_t>(missing));
  const bool zeros = spec.zero && spec.align == '\0' && default_align == '>';
  const char align = zeros ? '=' : (spec.align == '\0' ? default_align : spec.align);
  const std::string fill = zeros ? "0" : spec.fill;
  const auto run = [&](int64_t count) {
    std::string out;
    for (int64_t i = 0; i < count; ++i) out += fill;
    return out;
  };
  switch (align) {
    case '<':
      return prefix + body + run(missing);
    case '^':
      return run(missing / 2) + prefix + body + run(missing - missing / 2);
    case '=':
      return prefix + run(missing) + body;
    default:
      return run(missing) + prefix + body;
  }
}

std::string sign_text(bool negative, char sign) {
  return negative ? "-" : (sign == '-' ? "" : std::string(1, sign));
}

std::string float_body(double magnitude, const Spec& spec) {
  char type = spec.type;
  const bool bare = type == '\0' || type == 'n';
  if (!std::isfinite(magnitude)) {
    const bool upper = type == 'F' || type == 'E' || type == 'G';
    return std::isnan(magnitude) ? (upper ? "NAN" : "nan") : (upper ? "INF" : "inf");
  }
  if (bare && spec.precision < 0) return repr(magnitude);
  const bool percent = type == '%';
  if (percent) {
    magnitude *= 100;
    type = 'f';
  }
  if (bare) type = 'g';
  const int precision = static_cast<int>(spec.precision < 0 ? 6 : spec.precision);
  const char format[] = {'%',
                         spec.alternate ? '#' : '.',
                         spec.alternate ? '.' : '*',
                         spec.alternate ? '*' : type,
                         spec.alternate ? type : '\0',
                         '\0'};
  std::vector<char> buffer(static_cast<size_t>(precision) + 350);
  const int size = std::snprintf(buffer.data(), buffer.size(), format, precision, magnitude);
  std::string out(buffer.data(), static_cast<size_t>(size));
  if (bare && out.find_first_of(".e") == std::string::npos) out += ".0";
  return percent ? out + "%" : out;
}

}  // namespace

std::string format_float(Interpreter& in, double value, const Spec& spec) {
  std::string body = float_body(std::abs(value), spec);
  if (spec.group != '\0') {
    const size_t whole = std::min(body.find_first_not_of("0123456789"), body.size());
    body = grouped(body.substr(0, whole), spec.group, 3) + body.substr(whole);
  }
  return pad(in, spec, sign_text(std::signbit(value) && !std::isnan(value), spec.sign), body, '>');
}

std::string format_integer(Interpreter& in, Int value, const Spec& spec) {
  const char type = spec.type;
  const int base = type == 'b' ? 2 : (type == 'o' ? 8 : (type == 'x' || type == 'X' ? 16 : 10));
  std::string body = digits_of(value, base, type == 'X');
  if (spec.precision > static_cast<int64_t>(body.size())) {
    body.insert(0, static_cast<size_t>(spec.precision) - body.size(), '0');
  }
  if (spec.group != '\0') body = grouped(body, spec.group, base == 10 ? 3 : 4);
  std::string prefix = sign_text(value < 0, spec.sign);
  if (spec.alternate && base != 10) prefix += std::string("0") + type;
  return pad(in, spec, prefix, body, '>');
}

std::string format_text(Interpreter& in, std::string text, const Spec& spec, char default_align) {
  if (spec.precision >= 0)
    text = slice(text, slice_range(count_code_points(text), 0, spec.precision, 1));
  return pad(in, spec, "", text, default_align);
}

int64_t checked_size(Int value) {
  if (value > INT32_MAX) throw RenderError("a width or precision too big");
  return static_cast<int64_t>(value);
}

}  // namespace quadrille::text::jinja
