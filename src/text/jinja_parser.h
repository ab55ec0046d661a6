// From tokens to a tree, by Jinja's grammar. Statements that make no sense in a chat template
// (block, extends, include, import) are refused by name.
#pragma once

#include <string_view>

#include "text/jinja_ast.h"
#include "text/jinja_lexer.h"

namespace quadrille::text::jinja {

// The names still have to be resolved. Throws SyntaxError.
Block parse(std::string_view source);

}  // namespace quadrille::text::jinja
