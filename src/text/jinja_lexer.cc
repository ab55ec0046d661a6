#include "text/jinja_lexer.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <cctype>
#include <cstdlib>
#include <stdexcept>

#include "text/jinja_text.h"

namespace quadrille::text::jinja {
namespace {

// Line ends become \n; one at the end of the template is dropped.
std::u32string normalize(std::string_view source) {
  const std::u32string all = to_code_points(source);
  std::u32string out;
  out.reserve(all.size());
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i] == '\r') {
      out.push_back('\n');
      if (i + 1 < all.size() && all[i + 1] == '\n') ++i;
    } else {
      out.push_back(all[i]);
    }
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

bool is_digit(char32_t c) {
  return c >= '0' && c <= '9';
}

bool is_name_character(char32_t c) {
  if (c < 0x80) return std::isalnum(static_cast<int>(c)) != 0 || c == '_';
  const auto k = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return (k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_NL) || k == UTF8PROC_CATEGORY_PC;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(normalize(source)) {}

  std::vector<Token> run() {
    while (at_ < source_.size()) lex_text();
    push(TokenKind::kEnd, {});
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void fail(const std::string& message) const { throw SyntaxError(line_, message); }
  char32_t peek(size_t offset = 0) const {
    return at_ + offset < source_.size() ? source_[at_ + offset] : U'\0';
  }
  bool looking_at(std::string_view what, size_t from) const {
    if (from + what.size() > source_.size()) return false;
    for (size_t i = 0; i < what.size(); ++i) {
      if (source_[from + i] != static_cast<unsigned char>(what[i])) return false;
    }
    return true;
  }
  bool looking_at(std::string_view what) const { return looking_at(what, at_); }
  // Moves on and counts lines.
  void advance_to(size_t end) {
    for (; at_ < end; ++at_) line_ += source_[at_] == '\n' ? 1 : 0;
  }
  size_t skip_space(size_t from) const {
    while (from < source_.size() && is_space(source_[from])) ++from;
    return from;
  }
  void push(TokenKind kind, std::string text) {
    tokens_.push_back({kind, line_, std::move(text), Value()});
  }

  // The end of a tag: `%}`, `-%}` which takes the white space after it, `+%}` which takes nothing.
  // A block or comment that ends plainly takes one newline (trim_blocks). 0 if `from` is no end.
  size_t tag_end(std::string_view close, size_t from, bool trim) const {
    if (looking_at(close, from)) {
      const size_t end = from + close.size();
      return trim && end < source_.size() && source_[end] == '\n' ? end + 1 : end;
    }
    if (from < source_.size() && source_[from] == '-' && looking_at(close, from + 1)) {
      return skip_space(from + 1 + close.size());
    }
    if (trim && from < source_.size() && source_[from] == '+' && looking_at(close, from + 1)) {
      return from + 1 + close.size();
    }
    return 0;
  }
  void end_tag(size_t end) {
    advance_to(end);
    line_starting_ = source_[end - 1] == '\n';
  }

  // Emits the text up to `begin`, where a tag with the white-space sign `sign` starts.
  void emit_text(size_t begin, char32_t sign, bool is_print) {
    std::u32string_view text = std::u32string_view(source_).substr(at_, begin - at_);
    if (sign == '-') {
      text = strip_space(text, false, true);
    } else if (sign != '+' && !is_print) {
      const size_t newline = text.rfind('\n');
      const size_t line_begin = newline == std::u32string_view::npos ? 0 : newline + 1;
      if ((line_begin > 0 || line_starting_) &&
          strip_space(text.substr(line_begin), true, false).empty()) {
        text = text.substr(0, line_begin);
      }
    }
    if (!text.empty()) push(TokenKind::kText, to_utf8(text));
    advance_to(begin);
  }

  void lex_text() {
    size_t begin = at_;
    while (begin < source_.size() &&
           !(source_[begin] == '{' &&
             (looking_at("{%", begin) || looking_at("{#", begin) || looking_at("{{", begin)))) {
      ++begin;
    }
    if (begin == source_.size()) {
      push(TokenKind::kText, to_utf8(std::u32string_view(source_).substr(at_)));
      advance_to(begin);
      return;
    }
    const char32_t what = source_[begin + 1];
    const char32_t next = begin + 2 < source_.size() ? source_[begin + 2] : U'\0';
    const bool has_sign = next == '-' || next == '+';
    emit_text(begin, has_sign ? next : U'\0', what == '{');
    const size_t inside = begin + 2 + (has_sign ? 1 : 0);
    if (what == '#') {
      lex_comment(inside);
    } else if (what == '%' && is_raw(inside)) {
      lex_raw(inside);
    } else {
      lex_tag(inside, what == '%');
    }
  }

  void lex_comment(size_t from) {
    for (; from < source_.size(); ++from) {
      if (const size_t end = tag_end("#}", from, true); end > 0) {
        end_tag(end);
        return;
      }
    }
    fail("missing end of comment tag");
  }

  // {% raw %}: 0 if the tag is another one, else where its contents begin.
  size_t raw_body(size_t inside) const {
    const size_t word = skip_space(inside);
    if (!looking_at("raw", word)) return 0;
    return tag_end("%}", skip_space(word + 3), false);
  }
  bool is_raw(size_t inside) const { return raw_body(inside) > 0; }

  void lex_raw(size_t inside) {
    end_tag(raw_body(inside));
    for (size_t begin = at_; begin < source_.size(); ++begin) {
      if (!looking_at("{%", begin)) continue;
      const char32_t sign = begin + 2 < source_.size() ? source_[begin + 2] : U'\0';
      const bool has_sign = sign == '-' || sign == '+';
      const size_t word = skip_space(begin + 2 + (has_sign ? 1 : 0));
      if (!looking_at("endraw", word)) continue;
      const size_t end = tag_end("%}", skip_space(word + 6), true);
      if (end == 0) continue;
      emit_text(begin, has_sign ? sign : U'\0', false);
      end_tag(end);
      return;
    }
    fail("missing end of raw directive");
  }

  void lex_tag(size_t inside, bool block) {
    push(block ? TokenKind::kBlockBegin : TokenKind::kPrintBegin, {});
    advance_to(inside);
    const std::string_view close = block ? "%}" : "}}";
    std::string
        open;  // Brackets that wait for their partner; inside them a close mark is an operator.
    while (at_ < source_.size()) {
      if (open.empty()) {
        if (const size_t end = tag_end(close, at_, block); end > 0) {
          push(block ? TokenKind::kBlockEnd : TokenKind::kPrintEnd, {});
          end_tag(end);
          return;
        }
      }
      lex_token(open);
    }
    // The parser says what it was looking for.
  }

  void lex_token(std::string& open) {
    const char32_t c = peek();
    if (is_space(c)) {
      advance_to(at_ + 1);
    } else if (is_digit(c)) {
      lex_number();
    } else if (c == '"' || c == '\'') {
      lex_string(c);
    } else if (is_name_character(c)) {
      size_t end = at_;
      while (end < source_.size() && is_name_character(source_[end])) ++end;
      push(TokenKind::kName, to_utf8(std::u32string_view(source_).substr(at_, end - at_)));
      advance_to(end);
    } else {
      lex_operator(open);
    }
  }

  // Digits with single underscores between them; 0 if there are none at `from`.
  template <class Accept>
  size_t digits_end(size_t from, Accept accept) const {
    size_t end = 0;
    while (from < source_.size() && accept(source_[from])) {
      end = ++from;
      if (from < source_.size() && source_[from] == '_') ++from;
    }
    return end;
  }

  std::string plain_digits(size_t end) const {
    std::string out;
    for (size_t i = at_; i < end; ++i) {
      if (source_[i] != '_') out.push_back(static_cast<char>(source_[i]));
    }
    return out;
  }

  size_t float_end() const {
    // `a.0.5` is two lookups, not a number.
    if (at_ > 0 && source_[at_ - 1] == '.') return 0;
    const size_t whole = digits_end(at_, is_digit);
    size_t end = 0;
    size_t mantissa = whole;
    if (whole < source_.size() && source_[whole] == '.') {
      if (const size_t fraction = digits_end(whole + 1, is_digit); fraction > 0)
        end = mantissa = fraction;
    }
    if (mantissa < source_.size() && (source_[mantissa] == 'e' || source_[mantissa] == 'E')) {
      size_t exponent = mantissa + 1;
      if (exponent < source_.size() && (source_[exponent] == '+' || source_[exponent] == '-'))
        ++exponent;
      if (const size_t done = digits_end(exponent, is_digit); done > 0) end = done;
    }
    return end;
  }

  void push_integer(size_t end, const std::string& digits, int base) {
    Int value = 0;
    for (const char c : digits) {
      const int digit = c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10;
      if (__builtin_mul_overflow(value, Int{base}, &value) ||
          __builtin_add_overflow(value, Int{digit}, &value)) {
        fail("an integer of more than 127 bits is not supported");
      }
    }
    push(TokenKind::kNumber, {});
    tokens_.back().number = Value::integer(value);
    advance_to(end);
  }

  void lex_number() {
    if (const size_t end = float_end(); end > 0) {
      push(TokenKind::kNumber, {});
      tokens_.back().number = Value::real(std::strtod(plain_digits(end).c_str(), nullptr));
      advance_to(end);
      return;
    }
    if (peek() == '0') {
      const char32_t mark = peek(1) | 0x20;
      const auto accept = [&](char32_t c) {
        if (mark == 'b') return c == '0' || c == '1';
        if (mark == 'o') return c >= '0' && c <= '7';
        return c < 0x80 && std::isxdigit(static_cast<int>(c)) != 0;
      };
      if (mark == 'b' || mark == 'o' || mark == 'x') {
        const size_t first = peek(2) == '_' ? at_ + 3 : at_ + 2;
        if (const size_t end = digits_end(first, accept); end > 0) {
          push_integer(end, plain_digits(end).substr(2), mark == 'b' ? 2 : (mark == 'o' ? 8 : 16));
          return;
        }
      }
      // "007" is a zero, a zero and a seven, as in Jinja; the parser then refuses it.
      const size_t end = digits_end(at_, [](char32_t c) { return c == '0'; });
      push_integer(end, "0", 10);
      return;
    }
    const size_t end = digits_end(at_, is_digit);
    push_integer(end, plain_digits(end), 10);
  }

  void lex_string(char32_t quote);
  size_t lex_escape(std::string& out, size_t from) const;

  void lex_operator(std::string& open) {
    static constexpr std::string_view operators[] = {
        "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
        "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"};
    for (const std::string_view op : operators) {
      if (!looking_at(op)) continue;
      if (op == "(" || op == "[" || op == "{")
        open.push_back(op == "(" ? ')' : (op == "[" ? ']' : '}'));
      if (op == ")" || op == "]" || op == "}") {
        if (open.empty()) fail(fmt::format("unexpected '{}'", op));
        if (open.back() != op[0])
          fail(fmt::format("unexpected '{}', expected '{}'", op, open.back()));
        open.pop_back();
      }
      push(TokenKind::kOperator, std::string(op));
      advance_to(at_ + op.size());
      return;
    }
    std::string shown;
    append_utf8(shown, peek());
    fail(fmt::format("unexpected character '{}'", shown));
  }

  std::u32string source_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_starting_ = true;
  std::vector<Token> tokens_;
};

void Lexer::lex_string(char32_t quote) {
  std::string out;
  size_t i = at_ + 1;
  while (true) {
    if (i >= source_.size()) fail("a string that does not end");
    const char32_t c = source_[i];
    if (c == quote) break;
    if (c == '\\') {
      i = lex_escape(out, i + 1);
    } else {
      append_utf8(out, c);
      ++i;
    }
  }
  push(TokenKind::kString, std::move(out));
  advance_to(i + 1);
}

// After a backslash. Escapes Python does not know stay as they are, backslash included.
size_t Lexer::lex_escape(std::string& out, size_t from) const {
  if (from >= source_.size()) fail("a string that does not end");
  const char32_t c = source_[from];
  static constexpr std::string_view plain = "\\'\"abfnrtv";
  static constexpr std::string_view meaning = "\\'\"\a\b\f\n\r\t\v";
  if (c == '\n') return from + 1;
  if (c < 0x80) {
    if (const size_t i = plain.find(static_cast<char>(c)); i != std::string_view::npos) {
      out.push_back(meaning[i]);
      return from + 1;
    }
  }
  const size_t wanted = c == 'x' ? 2 : (c == 'u' ? 4 : (c == 'U' ? 8 : 0));
  if (wanted > 0) {
    uint32_t code = 0;
    for (size_t i = from + 1; i <= from + wanted; ++i) {
      if (i >= source_.size() || source_[i] >= 0x80 ||
          std::isxdigit(static_cast<int>(source_[i])) == 0) {
        fail(
            fmt::format("a \\{} escape needs {} hexadecimal digits", static_cast<char>(c), wanted));
      }
      const auto digit = static_cast<uint32_t>(source_[i]);
      code = code << 4 | (digit <= '9' ? digit - '0' : (digit | 0x20) - 'a' + 10);
    }
    if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) {
      fail("an escape that is not a Unicode character is not supported");
    }
    append_utf8(out, code);
    return from + 1 + wanted;
  }
  if (c >= '0' && c <= '7') {
    char32_t code = 0;
    size_t i = from;
    for (; i < from + 3 && i < source_.size() && source_[i] >= '0' && source_[i] <= '7'; ++i) {
      code = code * 8 + (source_[i] - '0');
    }
    append_utf8(out, code);
    return i;
  }
  if (c == 'N') fail("\\N{...} escapes are not supported");
  out.push_back('\\');
  append_utf8(out, c);
  return from + 1;
}

}  // namespace

std::vector<Token> tokenize(std::string_view source) {
  return Lexer(source).run();
}

}  // namespace quadrille::text::jinja
