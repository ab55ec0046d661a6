// Resolves every name of a template to a slot, before it runs, by the rules of Jinja's compiler.
//
// The rules are worth following to the letter: what a loop sets is gone after each turn; a name
// that a template sets anywhere at its top level hides the caller's variable of that name from
// loops and macros, even before it is set. Templates are written and tested against this behaviour.
#pragma once

#include "text/jinja_ast.h"

namespace quadrille::text::jinja {

// Fills in slots and loads. Throws SyntaxError.
void resolve_names(Function& root);

}  // namespace quadrille::text::jinja
