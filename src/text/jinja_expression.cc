#include <fmt/format.h>

#include <algorithm>

#include "text/jinja_builtins.h"
#include "text/jinja_parser_impl.h"

namespace quadrille::text::jinja {

ExprPtr make_expr(ExprKind kind, int line) {
  auto expr = std::make_unique<Expr>();
  expr->kind = kind;
  expr->line = line;
  return expr;
}

void seal(Expr& expr) {
  int deepest = 0;
  const auto look = [&](const ExprPtr& part) {
    if (part) deepest = std::max(deepest, part->depth);
  };
  for (const ExprPtr& item : expr.items) look(item);
  for (const auto& [name, value] : expr.keywords) look(value);
  look(expr.star);
  look(expr.double_star);
  expr.depth = deepest + 1;
  if (expr.depth > 500)
    throw SyntaxError(expr.line, "an expression of more than 500 steps in a row");
}

namespace {

template <class... Items>
ExprPtr make(ExprKind kind, int line, Items... items) {
  ExprPtr expr = make_expr(kind, line);
  (expr->items.push_back(std::move(items)), ...);
  seal(*expr);
  return expr;
}

ExprPtr make_binary(std::string op, int line, ExprPtr left, ExprPtr right) {
  ExprPtr expr = make(ExprKind::kBinary, line, std::move(left), std::move(right));
  expr->name = std::move(op);
  return expr;
}

ExprPtr make_const(Value value, int line) {
  ExprPtr expr = make_expr(ExprKind::kConst, line);
  expr->value = std::move(value);
  return expr;
}

}  // namespace

ExprPtr Parser::parse_expression(bool with_condition) {
  const DepthGuard guard(depth_, line());
  return with_condition ? parse_conditional() : parse_or();
}

ExprPtr Parser::parse_conditional() {
  ExprPtr then = parse_or();
  while (at_name("if")) {
    const int begin = take().line;
    ExprPtr condition = parse_or();
    ExprPtr otherwise;
    if (take_name("else")) otherwise = parse_expression();
    then = make(ExprKind::kConditional, begin, std::move(then), std::move(condition),
                std::move(otherwise));
  }
  return then;
}

ExprPtr Parser::parse_or() {
  ExprPtr left = parse_and();
  while (at_name("or")) {
    const int begin = take().line;
    ExprPtr right = parse_and();
    left = make(ExprKind::kOr, begin, std::move(left), std::move(right));
  }
  return left;
}

ExprPtr Parser::parse_and() {
  ExprPtr left = parse_not();
  while (at_name("and")) {
    const int begin = take().line;
    ExprPtr right = parse_not();
    left = make(ExprKind::kAnd, begin, std::move(left), std::move(right));
  }
  return left;
}

ExprPtr Parser::parse_not() {
  if (!at_name("not")) return parse_compare();
  const DepthGuard guard(depth_, line());
  const int begin = take().line;
  return make(ExprKind::kNot, begin, parse_not());
}

ExprPtr Parser::parse_compare() {
  static constexpr std::string_view comparisons[] = {"==", "!=", "<", "<=", ">", ">="};
  const int begin = line();
  ExprPtr first = parse_sum();
  std::vector<std::string> operators;
  std::vector<ExprPtr> operands;
  while (true) {
    if (at(TokenKind::kOperator) && std::find(std::begin(comparisons), std::end(comparisons),
                                              current().text) != std::end(comparisons)) {
      operators.push_back(take().text);
    } else if (take_name("in")) {
      operators.emplace_back("in");
    } else if (at_name("not") && next().kind == TokenKind::kName && next().text == "in") {
      take();
      take();
      operators.emplace_back("not in");
    } else {
      break;
    }
    operands.push_back(parse_sum());
  }
  if (operators.empty()) return first;
  ExprPtr chain = make(ExprKind::kCompare, begin, std::move(first));
  for (ExprPtr& operand : operands) chain->items.push_back(std::move(operand));
  chain->operators = std::move(operators);
  seal(*chain);
  return chain;
}

ExprPtr Parser::parse_sum() {
  ExprPtr left = parse_concat();
  while (at_operator("+") || at_operator("-")) {
    const Token op = take();
    ExprPtr right = parse_concat();
    left = make_binary(op.text, op.line, std::move(left), std::move(right));
  }
  return left;
}

ExprPtr Parser::parse_concat() {
  const int begin = line();
  ExprPtr first = parse_product();
  if (!at_operator("~")) return first;
  ExprPtr concat = make(ExprKind::kConcat, begin, std::move(first));
  while (take_operator("~")) concat->items.push_back(parse_product());
  seal(*concat);
  return concat;
}

ExprPtr Parser::parse_product() {
  ExprPtr left = parse_power();
  while (at_operator("*") || at_operator("/") || at_operator("//") || at_operator("%")) {
    const Token op = take();
    ExprPtr right = parse_power();
    left = make_binary(op.text, op.line, std::move(left), std::move(right));
  }
  return left;
}

ExprPtr Parser::parse_power() {
  ExprPtr left = parse_unary();
  while (at_operator("**")) {
    const Token op = take();
    ExprPtr right = parse_unary();
    left = make_binary(op.text, op.line, std::move(left), std::move(right));
  }
  return left;
}

// A filter after `-x` filters the negative, since the sign binds to the bare name alone.
ExprPtr Parser::parse_unary(bool with_filter) {
  const DepthGuard guard(depth_, line());
  ExprPtr expr;
  if (at_operator("-") || at_operator("+")) {
    const Token sign = take();
    const ExprKind kind = sign.text == "-" ? ExprKind::kNegative : ExprKind::kPositive;
    expr = make(kind, sign.line, parse_unary(false));
  } else {
    expr = parse_primary();
  }
  expr = parse_postfix(std::move(expr));
  return with_filter ? parse_filters_and_tests(std::move(expr)) : std::move(expr);
}

ExprPtr Parser::parse_primary(bool with_namespace) {
  const int begin = line();
  if (at(TokenKind::kName)) {
    const std::string name = take().text;
    if (name == "true" || name == "True") return make_const(Value::boolean(true), begin);
    if (name == "false" || name == "False") return make_const(Value::boolean(false), begin);
    if (name == "none" || name == "None") return make_const(Value::none(), begin);
    ExprPtr expr = make_expr(ExprKind::kName, begin);
    expr->name = name;
    if (with_namespace && take_operator(".")) {
      ExprPtr field = make(ExprKind::kNamespaceField, begin, std::move(expr));
      field->name = expect_name();
      return field;
    }
    return expr;
  }
  if (at(TokenKind::kString)) {
    std::string text;
    while (at(TokenKind::kString)) text += take().text;
    return make_const(Value::string(std::move(text)), begin);
  }
  if (at(TokenKind::kNumber)) return make_const(take().number, begin);
  if (take_operator("(")) {
    ExprPtr inner = parse_tuple(true, {}, true);
    expect_operator(")");
    return inner;
  }
  if (at_operator("[")) return parse_list();
  if (at_operator("{")) return parse_dict();
  fail_unexpected("an expression");
}

bool Parser::at_tuple_end(Words ends) const {
  if (at(TokenKind::kPrintEnd) || at(TokenKind::kBlockEnd) || at_operator(")")) return true;
  return std::any_of(ends.begin(), ends.end(), [&](std::string_view end) { return at_name(end); });
}

ExprPtr Parser::parse_tuple(bool with_condition, Words ends, bool explicit_parentheses,
                            bool simplified, bool with_namespace) {
  const DepthGuard guard(depth_, line());
  ExprPtr tuple = make_expr(ExprKind::kTuple, line());
  bool is_tuple = false;
  while (true) {
    if (!tuple->items.empty()) expect_operator(",");
    if (at_tuple_end(ends)) break;
    tuple->items.push_back(simplified ? parse_primary(with_namespace)
                                      : parse_expression(with_condition));
    if (!at_operator(",")) break;
    is_tuple = true;
  }
  if (!is_tuple) {
    if (!tuple->items.empty()) return std::move(tuple->items.front());
    if (!explicit_parentheses) fail_unexpected("an expression");
  }
  seal(*tuple);
  return tuple;
}

ExprPtr Parser::parse_list() {
  ExprPtr list = make_expr(ExprKind::kList, take().line);
  while (!at_operator("]")) {
    if (!list->items.empty()) expect_operator(",");
    if (at_operator("]")) break;
    list->items.push_back(parse_expression());
  }
  take();
  seal(*list);
  return list;
}

ExprPtr Parser::parse_dict() {
  ExprPtr dict = make_expr(ExprKind::kDict, take().line);
  while (!at_operator("}")) {
    if (!dict->items.empty()) expect_operator(",");
    if (at_operator("}")) break;
    dict->items.push_back(parse_expression());
    expect_operator(":");
    dict->items.push_back(parse_expression());
  }
  take();
  seal(*dict);
  return dict;
}

ExprPtr Parser::parse_postfix(ExprPtr expr) {
  while (true) {
    if (at_operator(".") || at_operator("[")) {
      expr = parse_subscript(std::move(expr));
    } else if (at_operator("(")) {
      ExprPtr call = make(ExprKind::kCall, line(), std::move(expr));
      parse_arguments(*call);
      expr = std::move(call);
    } else {
      return expr;
    }
  }
}

ExprPtr Parser::parse_filters_and_tests(ExprPtr expr) {
  while (true) {
    if (at_operator("|")) {
      expr = parse_filter(std::move(expr), false);
    } else if (at_name("is")) {
      expr = parse_test(std::move(expr));
    } else if (at_operator("(")) {
      ExprPtr call = make(ExprKind::kCall, line(), std::move(expr));
      parse_arguments(*call);
      expr = std::move(call);
    } else {
      return expr;
    }
  }
}

ExprPtr Parser::parse_subscript(ExprPtr object) {
  const Token token = take();
  if (token.text == ".") {
    if (at(TokenKind::kNumber) && current().number.is(Kind::kInt)) {
      return make(ExprKind::kItem, token.line, std::move(object),
                  make_const(take().number, token.line));
    }
    ExprPtr attribute = make(ExprKind::kAttribute, token.line, std::move(object));
    attribute->name = expect_name();
    return attribute;
  }
  std::vector<ExprPtr> keys;
  while (!at_operator("]")) {
    if (!keys.empty()) expect_operator(",");
    keys.push_back(parse_subscribed());
  }
  take();
  ExprPtr key;
  if (keys.size() == 1) {
    key = std::move(keys.front());
  } else {
    key = make_expr(ExprKind::kTuple, token.line);
    key->items = std::move(keys);
    seal(*key);
  }
  return make(ExprKind::kItem, token.line, std::move(object), std::move(key));
}

ExprPtr Parser::parse_subscribed() {
  const int begin = line();
  ExprPtr start;
  if (!at_operator(":")) {
    start = parse_expression();
    if (!at_operator(":")) return start;
  }
  take();
  const auto part = [&]() -> ExprPtr {
    return at_operator(":") || at_operator("]") || at_operator(",") ? nullptr : parse_expression();
  };
  ExprPtr stop = part();
  ExprPtr step;
  if (take_operator(":")) step = part();
  return make(ExprKind::kSlice, begin, std::move(start), std::move(stop), std::move(step));
}

void Parser::parse_arguments(Expr& call) {
  expect_operator("(");
  bool first = true;
  const auto ensure = [&](bool ok) {
    if (!ok) fail("arguments in the wrong order");
  };
  while (!at_operator(")")) {
    if (!first) {
      expect_operator(",");
      if (at_operator(")")) break;
    }
    first = false;
    if (take_operator("*")) {
      ensure(!call.star && !call.double_star);
      call.star = parse_expression();
    } else if (take_operator("**")) {
      ensure(!call.double_star);
      call.double_star = parse_expression();
    } else if (at(TokenKind::kName) && next().kind == TokenKind::kOperator && next().text == "=") {
      ensure(!call.double_star);
      std::string name = take().text;
      take();
      call.keywords.emplace_back(std::move(name), parse_expression());
    } else {
      ensure(!call.star && !call.double_star && call.keywords.empty());
      call.items.push_back(parse_expression());
    }
  }
  take();
  seal(call);
}

ExprPtr Parser::parse_filter(ExprPtr input, bool first_is_inline) {
  while (at_operator("|") || first_is_inline) {
    if (!first_is_inline) take();
    first_is_inline = false;
    ExprPtr filter = make(ExprKind::kFilter, line(), std::move(input));
    filter->name = expect_name();
    while (take_operator(".")) filter->name += "." + expect_name();
    if (at_operator("(")) parse_arguments(*filter);
    if (soft_depth_ == 0 && find_filter(filter->name) == nullptr) {
      throw SyntaxError(filter->line,
                        fmt::format("the filter '{}' is not supported", filter->name));
    }
    input = std::move(filter);
  }
  return input;
}

ExprPtr Parser::parse_test(ExprPtr input) {
  const int begin = take().line;
  const bool negated = take_name("not");
  ExprPtr test = make(ExprKind::kTest, begin, std::move(input));
  test->name = expect_name();
  while (take_operator(".")) test->name += "." + expect_name();
  const bool takes_value =
      at(TokenKind::kString) || at(TokenKind::kNumber) || at_operator("[") || at_operator("{") ||
      (at(TokenKind::kName) && !at_name("else") && !at_name("or") && !at_name("and"));
  if (at_operator("(")) {
    parse_arguments(*test);
  } else if (takes_value) {
    if (at_name("is")) fail("tests cannot be chained with 'is'");
    test->items.push_back(parse_postfix(parse_primary()));
    seal(*test);
  }
  if (soft_depth_ == 0 && find_test(test->name) == nullptr) {
    throw SyntaxError(test->line, fmt::format("the test '{}' is not supported", test->name));
  }
  return negated ? make(ExprKind::kNot, begin, std::move(test)) : std::move(test);
}

}  // namespace quadrille::text::jinja
