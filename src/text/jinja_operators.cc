// Python's arithmetic.
#include <fmt/format.h>

#include <cmath>

#include "text/jinja_interpreter.h"
#include "text/jinja_text.h"

namespace quadrille::text::jinja {
namespace {

[[noreturn]] void overflow() {
  throw RenderError("an integer of more than 127 bits is not supported");
}
[[noreturn]] void zero_division() {
  throw RenderError("division by zero");
}

Int floor_divide(Int a, Int b) {
  const Int quotient = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

double float_modulo(double a, double b) {
  const double rest = std::fmod(a, b);
  if (rest == 0.0) return std::copysign(0.0, b);
  return (rest < 0) != (b < 0) ? rest + b : rest;
}

double float_floor_divide(double a, double b) {
  const double quotient = (a - float_modulo(a, b)) / b;
  if (quotient == 0.0) return std::copysign(0.0, a / b);
  const double floored = std::floor(quotient);
  return quotient - floored > 0.5 ? floored + 1 : floored;
}

Value integer_power(Int base, Int exponent) {
  if (exponent < 0) {
    if (base == 0) zero_division();
    return Value::real(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  }
  if (base == 0 || base == 1) return Value::integer(exponent == 0 ? 1 : base);
  if (base == -1) return Value::integer(exponent % 2 == 0 ? 1 : -1);
  Int result = 1;
  // Any other base overflows before the exponent reaches 128.
  for (Int i = 0; i < exponent; ++i) {
    if (__builtin_mul_overflow(result, base, &result)) overflow();
  }
  return Value::integer(result);
}

Value integer_operation(char op, bool doubled, Int a, Int b) {
  Int result = 0;
  switch (op) {
    case '+':
      if (__builtin_add_overflow(a, b, &result)) overflow();
      return Value::integer(result);
    case '-':
      if (__builtin_sub_overflow(a, b, &result)) overflow();
      return Value::integer(result);
    case '*':
      if (doubled) return integer_power(a, b);
      if (__builtin_mul_overflow(a, b, &result)) overflow();
      return Value::integer(result);
    case '/':
      if (b == 0) zero_division();
      if (doubled) return Value::integer(floor_divide(a, b));
      return Value::real(static_cast<double>(a) / static_cast<double>(b));
    default:
      if (b == 0) zero_division();
      return Value::integer(a - floor_divide(a, b) * b);
  }
}

Value float_operation(char op, bool doubled, double a, double b) {
  switch (op) {
    case '+':
      return Value::real(a + b);
    case '-':
      return Value::real(a - b);
    case '*':
      if (!doubled) return Value::real(a * b);
      if (a == 0.0 && b < 0) zero_division();
      if (a < 0 && b != std::floor(b)) throw RenderError("complex numbers are not supported");
      return Value::real(std::pow(a, b));
    case '/':
      if (b == 0.0) zero_division();
      return Value::real(doubled ? float_floor_divide(a, b) : a / b);
    default:
      if (b == 0.0) zero_division();
      return Value::real(float_modulo(a, b));
  }
}

Value add(Interpreter& in, const Value& a, const Value& b) {
  if (a.is_string() && b.is_string()) {
    in.charge(a.as_string().size() + b.as_string().size());
    const bool markup = a.is_markup() || b.is_markup();
    const auto part = [&](const Value& v) {
      return markup && !v.is_markup() ? escape_html(v.as_string()) : v.as_string();
    };
    return Value::string(part(a) + part(b), markup);
  }
  const auto length = static_cast<size_t>(*length_of(a) + *length_of(b));
  in.charge(length * sizeof(Value));
  List items = a.as_list();
  items.insert(items.end(), b.as_list().begin(), b.as_list().end());
  return a.is(Kind::kTuple) ? Value::tuple(std::move(items)) : Value::list(std::move(items));
}

Value repeat(Interpreter& in, const Value& sequence, Int times) {
  const size_t unit = sequence.is_string() ? sequence.as_string().size()
                                           : sequence.as_list().size() * sizeof(Value);
  const Int count = times < 0 || unit == 0 ? Int{0} : times;
  if (count > INT32_MAX) in.charge(SIZE_MAX);
  in.charge(unit * static_cast<size_t>(count));
  if (sequence.is_string()) {
    std::string out;
    for (Int i = 0; i < count; ++i) out += sequence.as_string();
    return Value::string(std::move(out), sequence.is_markup());
  }
  List items;
  for (Int i = 0; i < count; ++i) {
    items.insert(items.end(), sequence.as_list().begin(), sequence.as_list().end());
  }
  return sequence.is(Kind::kTuple) ? Value::tuple(std::move(items)) : Value::list(std::move(items));
}

}  // namespace

Value binary_operation(Interpreter& in, const std::string& op, const Value& a, const Value& b) {
  // A format string takes anything, undefined values included.
  if (op == "%" && a.is_string()) return in.text(percent_format(in, a.as_string(), b));
  require_defined(a);
  require_defined(b);
  const bool doubled = op.size() == 2;
  if (a.is_number() && b.is_number()) {
    if (a.is_integral() && b.is_integral())
      return integer_operation(op[0], doubled, a.as_int(), b.as_int());
    return float_operation(op[0], doubled, a.as_double(), b.as_double());
  }
  const auto repeatable = [](const Value& v) { return v.is_string() || v.is_sequence(); };
  if (op == "+" && repeatable(a) && a.kind() == b.kind()) return add(in, a, b);
  if (op == "*" && repeatable(a) && b.is_integral()) return repeat(in, a, b.as_int());
  if (op == "*" && a.is_integral() && repeatable(b)) return repeat(in, b, a.as_int());
  type_error(fmt::format("unsupported operand types for {}: '{}' and '{}'", op, type_name(a),
                         type_name(b)));
}

}  // namespace quadrille::text::jinja
