// Splits a template into text and the tokens of {{ }} and {% %}, with Jinja's white-space rules for
// trim_blocks and lstrip_blocks.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/jinja_value.h"

namespace quadrille::text::jinja {

// A template that cannot be parsed; jinja.cc adds its name.
class SyntaxError : public std::runtime_error {
 public:
  SyntaxError(int line, const std::string& message) : std::runtime_error(message), line_(line) {}
  int line() const { return line_; }

 private:
  int line_;
};

enum class TokenKind {
  kText,
  kBlockBegin,
  kBlockEnd,
  kPrintBegin,
  kPrintEnd,
  kName,
  kString,
  kNumber,
  kOperator,
  kEnd
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  int line = 0;
  std::string text;  // The characters of text and strings, a name, an operator.
  Value number;      // Of kNumber: an int or a float.
};

// Ends in a kEnd token.
std::vector<Token> tokenize(std::string_view source);

}  // namespace quadrille::text::jinja
