#include "text/jinja.h"

#include "base/error.h"
#include "text/jinja_interpreter.h"
#include "text/jinja_parser.h"
#include "text/jinja_scope.h"
#include "text/jinja_text.h"

namespace quadrille::text::jinja {
namespace {

bool contains_generation(const Block& block) {
  for (const StmtPtr& stmt : block) {
    if (stmt->kind == StmtKind::kGeneration || contains_generation(stmt->body) ||
        contains_generation(stmt->otherwise) ||
        (stmt->function && contains_generation(stmt->function->body))) {
      return true;
    }
  }
  return false;
}

}  // namespace

Template::Template(std::string name, std::string_view source, Limits limits)
    : name_(std::move(name)), limits_(limits), root_(std::make_unique<Function>()) {
  if (source.size() > limits_.template_bytes) {
    throw FormatError("{}: a template of {} bytes; the limit is {}", name_, source.size(),
                      limits_.template_bytes);
  }
  if (!is_utf8(source)) throw FormatError("{}: the template is not UTF-8", name_);
  try {
    root_->body = parse(source);
    resolve_names(*root_);
  } catch (const SyntaxError& error) {
    throw FormatError("{}:{}: {}", name_, error.line(), error.what());
  }
  has_generation_ = contains_generation(root_->body);
}

Template::~Template() = default;
Template::Template(Template&&) noexcept = default;
Template& Template::operator=(Template&&) noexcept = default;

Rendered Template::render(const Variables& variables, std::optional<std::tm> now) const {
  Interpreter interpreter(limits_, variables, now);
  try {
    std::string text = interpreter.run(*root_);
    return {std::move(text), interpreter.generations(), interpreter.generations_placed()};
  } catch (const RenderError& error) {
    throw FormatError("{}:{}: {}", name_, interpreter.line(), error.what());
  }
}

}  // namespace quadrille::text::jinja
