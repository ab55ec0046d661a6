// The tables behind find_filter().
#pragma once

#include <string_view>
#include <unordered_map>

#include "text/jinja_builtins.h"

namespace quadrille::text::jinja {

using FilterTable = std::unordered_map<std::string_view, Builtin>;
const FilterTable& value_filters();
const FilterTable& sequence_filters();

}  // namespace quadrille::text::jinja
