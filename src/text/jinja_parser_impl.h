// The parser's two halves: statements (jinja_parser.cc) and expressions (jinja_expression.cc).
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja_ast.h"
#include "text/jinja_lexer.h"

namespace quadrille::text::jinja {

using Words = std::initializer_list<std::string_view>;

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  Block parse_template();

 private:
  // Tokens.
  const Token& current() const { return tokens_[at_]; }
  const Token& next() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  int line() const { return current().line; }
  bool at(TokenKind kind) const { return current().kind == kind; }
  bool at_name(std::string_view name) const {
    return at(TokenKind::kName) && current().text == name;
  }
  bool at_operator(std::string_view op) const {
    return at(TokenKind::kOperator) && current().text == op;
  }
  Token take();
  bool take_name(std::string_view name);
  bool take_operator(std::string_view op);
  std::string expect_name();
  void expect_operator(std::string_view op);
  void expect(TokenKind kind, std::string_view what);
  [[noreturn]] void fail(const std::string& message) const { throw SyntaxError(line(), message); }
  [[noreturn]] void fail_unexpected(const std::string& wanted) const;

  // Statements.
  Block parse_until(Words ends);
  Block parse_body(Words ends);
  StmtPtr parse_statement();
  StmtPtr parse_for();
  StmtPtr parse_if();
  StmtPtr parse_set();
  StmtPtr parse_with();
  StmtPtr parse_macro();
  StmtPtr parse_call_block();
  StmtPtr parse_generation();
  StmtPtr parse_filter_block();
  StmtPtr parse_print();
  StmtPtr parse_loop_control(StmtKind kind);
  void parse_signature(Function& function);
  ExprPtr parse_target(Words ends, bool with_namespace);
  std::string parse_target_name();

  // Expressions, loosest binding first.
  ExprPtr parse_expression(bool with_condition = true);
  ExprPtr parse_conditional();
  ExprPtr parse_or();
  ExprPtr parse_and();
  ExprPtr parse_not();
  ExprPtr parse_compare();
  ExprPtr parse_sum();
  ExprPtr parse_concat();
  ExprPtr parse_product();
  ExprPtr parse_power();
  ExprPtr parse_unary(bool with_filter = true);
  ExprPtr parse_primary(bool with_namespace = false);
  ExprPtr parse_postfix(ExprPtr expr);
  ExprPtr parse_filters_and_tests(ExprPtr expr);
  ExprPtr parse_subscript(ExprPtr object);
  ExprPtr parse_subscribed();
  ExprPtr parse_filter(ExprPtr input, bool first_is_inline);
  ExprPtr parse_test(ExprPtr input);
  void parse_arguments(Expr& call);
  ExprPtr parse_list();
  ExprPtr parse_dict();
  // `simplified` takes only names and literals; `ends` are names that end a tuple without brackets.
  ExprPtr parse_tuple(bool with_condition, Words ends = {}, bool explicit_parentheses = false,
                      bool simplified = false, bool with_namespace = false);
  bool at_tuple_end(Words ends) const;

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int depth_ = 0;       // Of nesting, so that a hostile template cannot exhaust the stack.
  int loop_depth_ = 0;  // Loops around this statement, inside the same function.
  int soft_depth_ = 0;  // Inside an if, unknown filters are errors only when they run, as in Jinja.
};

// Counts nesting for as long as it lives.
class DepthGuard {
 public:
  DepthGuard(int& depth, int line) : depth_(depth) {
    if (++depth_ > 300) throw SyntaxError(line, "nested too deeply");
  }
  ~DepthGuard() { --depth_; }
  DepthGuard(const DepthGuard&) = delete;
  DepthGuard& operator=(const DepthGuard&) = delete;

 private:
  int& depth_;
};

ExprPtr make_expr(ExprKind kind, int line);
// To be called when all parts are in place: works out the depth, which is limited.
void seal(Expr& expr);

}  // namespace quadrille::text::jinja
