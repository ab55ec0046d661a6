// What must be true of a JSON text from outside before nlohmann's parser sees it.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace quadrille {

// Why a text is not to be parsed: a zero byte, which the parser would take for the end of the text,
// or brackets nested deeper than 256, which its recursive copy and dump would answer with a stack
// overflow. nullopt: neither; whether it is JSON is for the parser to say.
std::optional<std::string> json_text_danger(std::string_view text);

// The parser's message without the code it begins with ("[json.exception.parse_error.101] ...").
std::string_view json_reason(std::string_view message);

}  // namespace quadrille
