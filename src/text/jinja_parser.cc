#include "text/jinja_parser.h"

#include <fmt/format.h>

#include <algorithm>

#include "text/jinja_parser_impl.h"

namespace quadrille::text::jinja {
namespace {

std::string describe(const Token& token) {
  switch (token.kind) {
    case TokenKind::kEnd:
      return "the end of the template";
    case TokenKind::kBlockEnd:
      return "the end of the statement";
    case TokenKind::kPrintEnd:
      return "the end of the expression";
    case TokenKind::kString:
      return "a string";
    case TokenKind::kNumber:
      return "a number";
    default:
      return "'" + token.text + "'";
  }
}

StmtPtr make_stmt(StmtKind kind, int line) {
  auto stmt = std::make_unique<Stmt>();
  stmt->kind = kind;
  stmt->line = line;
  return stmt;
}

std::string join(Words words) {
  std::string out;
  for (const std::string_view word : words) out += (out.empty() ? "" : " or ") + std::string(word);
  return out;
}

}  // namespace

void Parser::fail_unexpected(const std::string& wanted) const {
  fail(fmt::format("expected {}, got {}", wanted, describe(current())));
}

Token Parser::take() {
  Token token = current();
  if (at_ + 1 < tokens_.size()) ++at_;
  return token;
}

bool Parser::take_name(std::string_view name) {
  if (!at_name(name)) return false;
  take();
  return true;
}

bool Parser::take_operator(std::string_view op) {
  if (!at_operator(op)) return false;
  take();
  return true;
}

std::string Parser::expect_name() {
  if (!at(TokenKind::kName)) fail_unexpected("a name");
  return take().text;
}

void Parser::expect_operator(std::string_view op) {
  if (!take_operator(op)) fail_unexpected(fmt::format("'{}'", op));
}

void Parser::expect(TokenKind kind, std::string_view what) {
  if (!at(kind)) fail_unexpected(std::string(what));
  take();
}

Block Parser::parse_template() {
  return parse_until({});
}

// Text, prints and statements up to one of the tags `ends`, which stays the current token.
Block Parser::parse_until(Words ends) {
  const DepthGuard guard(depth_, line());
  Block body;
  const int begin_line = line();
  bool can_join = false;
  const auto output = [&](ExprPtr expr) {
    if (!can_join) body.push_back(make_stmt(StmtKind::kOutput, expr->line));
    can_join = true;
    body.back()->output.push_back(std::move(expr));
  };
  while (!at(TokenKind::kEnd)) {
    if (at(TokenKind::kText)) {
      auto text = make_expr(ExprKind::kConst, line());
      text->value = Value::string(take().text);
      output(std::move(text));
    } else if (at(TokenKind::kPrintBegin)) {
      take();
      output(parse_tuple(true));
      expect(TokenKind::kPrintEnd, "'}}'");
    } else {
      expect(TokenKind::kBlockBegin, "a statement");
      for (const std::string_view end : ends) {
        if (at_name(end)) return body;
      }
      can_join = false;
      body.push_back(parse_statement());
      expect(TokenKind::kBlockEnd, "'%}'");
    }
  }
  if (ends.size() > 0) {
    throw SyntaxError(
        begin_line, fmt::format("the template ends inside a block that waits for {}", join(ends)));
  }
  return body;
}

// The rest of a statement's tag and what follows, up to one of `ends`.
Block Parser::parse_body(Words ends) {
  take_operator(":");
  expect(TokenKind::kBlockEnd, "'%}'");
  return parse_until(ends);
}

StmtPtr Parser::parse_statement() {
  if (!at(TokenKind::kName)) fail_unexpected("the name of a statement");
  const std::string& tag = current().text;
  if (tag == "for") return parse_for();
  if (tag == "if") return parse_if();
  if (tag == "set") return parse_set();
  if (tag == "with") return parse_with();
  if (tag == "macro") return parse_macro();
  if (tag == "call") return parse_call_block();
  if (tag == "generation") return parse_generation();
  if (tag == "filter") return parse_filter_block();
  if (tag == "print") return parse_print();
  if (tag == "break") return parse_loop_control(StmtKind::kBreak);
  if (tag == "continue") return parse_loop_control(StmtKind::kContinue);
  static constexpr std::string_view refused[] = {
      "block", "extends", "include", "import", "from", "autoescape", "do", "trans", "debug"};
  if (std::find(std::begin(refused), std::end(refused), tag) != std::end(refused)) {
    fail(fmt::format("the statement {{% {} %}} is not supported in chat templates", tag));
  }
  fail(fmt::format("unknown or misplaced statement {{% {} %}}", tag));
}

StmtPtr Parser::parse_for() {
  auto loop = make_stmt(StmtKind::kFor, take().line);
  ++loop_depth_;
  loop->target = parse_target({"in"}, false);
  --loop_depth_;
  if (!take_name("in")) fail_unexpected("'in'");
  loop->value = parse_tuple(false, {"recursive"});
  if (take_name("if")) loop->condition = parse_expression();
  loop->recursive = take_name("recursive");
  ++loop_depth_;
  loop->body = parse_body({"endfor", "else"});
  --loop_depth_;
  if (take().text == "else") {
    // A break in here belongs to a loop further out, if it can be reached: a recursive loop is a
    // function.
    const int loops = loop->recursive ? std::exchange(loop_depth_, 0) : loop_depth_;
    loop->otherwise = parse_body({"endfor"});
    loop_depth_ = loops;
    take();
  }
  return loop;
}

StmtPtr Parser::parse_if() {
  auto first = make_stmt(StmtKind::kIf, take().line);
  ++soft_depth_;
  Stmt* branch = first.get();
  for (int branches = 0;; ++branches) {
    if (branches > 500) fail("an if of more than 500 branches");
    branch->value = parse_tuple(false);
    branch->body = parse_body({"elif", "else", "endif"});
    const Token token = take();
    if (token.text == "elif") {
      branch->otherwise.push_back(make_stmt(StmtKind::kIf, token.line));
      branch = branch->otherwise.back().get();
      continue;
    }
    if (token.text == "else") {
      branch->otherwise = parse_body({"endif"});
      take();
    }
    break;
  }
  --soft_depth_;
  return first;
}

StmtPtr Parser::parse_set() {
  auto set = make_stmt(StmtKind::kSet, take().line);
  set->target = parse_target({}, true);
  if (take_operator("=")) {
    set->value = parse_tuple(true);
    return set;
  }
  set->kind = StmtKind::kSetBlock;
  if (at_operator("|")) set->value = parse_filter(nullptr, false);
  set->body = parse_body({"endset"});
  take();
  return set;
}

StmtPtr Parser::parse_with() {
  auto with = make_stmt(StmtKind::kWith, take().line);
  while (!at(TokenKind::kBlockEnd)) {
    if (!with->bindings.empty()) expect_operator(",");
    ExprPtr target = parse_target({}, false);
    expect_operator("=");
    ExprPtr value = parse_expression();
    with->bindings.emplace_back(std::move(target), std::move(value));
  }
  with->body = parse_body({"endwith"});
  take();
  return with;
}

void Parser::parse_signature(Function& function) {
  expect_operator("(");
  while (!at_operator(")")) {
    if (!function.parameter_names.empty()) expect_operator(",");
    function.parameter_names.push_back(parse_target_name());
    if (take_operator("=")) {
      function.defaults.push_back(parse_expression());
    } else if (!function.defaults.empty()) {
      fail("non-default argument follows default argument");
    }
  }
  take();
}

StmtPtr Parser::parse_macro() {
  auto macro = make_stmt(StmtKind::kMacro, take().line);
  macro->function = std::make_unique<Function>();
  macro->function->name = parse_target_name();
  parse_signature(*macro->function);
  const int loops = std::exchange(loop_depth_, 0);
  macro->function->body = parse_body({"endmacro"});
  loop_depth_ = loops;
  take();
  return macro;
}

StmtPtr Parser::parse_call_block() {
  auto call = make_stmt(StmtKind::kCallBlock, take().line);
  call->function = std::make_unique<Function>();
  if (at_operator("(")) parse_signature(*call->function);
  call->value = parse_expression();
  if (call->value->kind != ExprKind::kCall) fail("expected a call");
  const int loops = std::exchange(loop_depth_, 0);
  call->function->body = parse_body({"endcall"});
  loop_depth_ = loops;
  take();
  return call;
}

// transformers' mark around what the assistant wrote. It is a call block there, so variables set
// inside stay inside.
StmtPtr Parser::parse_generation() {
  auto mark = make_stmt(StmtKind::kGeneration, take().line);
  mark->function = std::make_unique<Function>();
  const int loops = std::exchange(loop_depth_, 0);
  mark->function->body = parse_body({"endgeneration"});
  loop_depth_ = loops;
  take();
  return mark;
}

StmtPtr Parser::parse_filter_block() {
  auto block = make_stmt(StmtKind::kFilterBlock, take().line);
  block->value = parse_filter(nullptr, true);
  block->body = parse_body({"endfilter"});
  take();
  return block;
}

StmtPtr Parser::parse_print() {
  auto print = make_stmt(StmtKind::kOutput, take().line);
  while (!at(TokenKind::kBlockEnd)) {
    if (!print->output.empty()) expect_operator(",");
    print->output.push_back(parse_expression());
  }
  return print;
}

StmtPtr Parser::parse_loop_control(StmtKind kind) {
  if (loop_depth_ == 0) fail(fmt::format("'{}' outside a loop", current().text));
  return make_stmt(kind, take().line);
}

std::string Parser::parse_target_name() {
  static constexpr std::string_view constants[] = {"true", "false", "none",
                                                   "True", "False", "None"};
  if (!at(TokenKind::kName)) fail_unexpected("a name");
  if (std::find(std::begin(constants), std::end(constants), current().text) !=
      std::end(constants)) {
    fail(fmt::format("cannot assign to '{}'", current().text));
  }
  return take().text;
}

ExprPtr Parser::parse_target(Words ends, bool with_namespace) {
  ExprPtr target = parse_tuple(true, ends, false, true, with_namespace);
  const auto check = [&](const auto& self, const Expr& expr) -> void {
    if (expr.kind == ExprKind::kTuple) {
      for (const ExprPtr& item : expr.items) self(self, *item);
    } else if (expr.kind != ExprKind::kName && expr.kind != ExprKind::kNamespaceField) {
      throw SyntaxError(expr.line, "cannot assign to this expression");
    } else if (expr.kind == ExprKind::kName && expr.name == "loop" && loop_depth_ > 0) {
      throw SyntaxError(expr.line, "cannot assign to the special variable 'loop' in a loop");
    }
  };
  check(check, *target);
  return target;
}

Block parse(std::string_view source) {
  return Parser(tokenize(source)).parse_template();
}

}  // namespace quadrille::text::jinja
