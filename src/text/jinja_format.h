// Python's two ways to format, "%05.1f" % x and "{:>5}".format(x), meet here: a value and what is
// asked of it.
#pragma once

#include <string>

#include "text/jinja_interpreter.h"

namespace quadrille::text::jinja {

constexpr int64_t kMaxPrecision = 400;

struct Spec {
  std::string fill = " ";
  char align = '\0';  // < > ^ =
  char sign = '-';
  bool alternate = false;
  bool zero = false;
  int64_t width = 0;
  char group = '\0';
  int64_t precision = -1;
  char type = '\0';
};

std::string format_float(Interpreter& in, double value, const Spec& spec);
std::string format_integer(Interpreter& in, Int value, const Spec& spec);
std::string format_text(Interpreter& in, std::string text, const Spec& spec, char default_align);
// A width or precision that is not absurd.
int64_t checked_size(Int value);

}  // namespace quadrille::text::jinja
