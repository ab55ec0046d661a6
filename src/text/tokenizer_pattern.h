// Rewrites a regular expression of tokenizer.json for PCRE2.
//
// The library hands these patterns to Oniguruma with Ruby's rules, where \h is a hexadecimal digit,
// ^ and $ mean lines, \w is not PCRE2's \w, classes nest and intersect, and (?i) reaches over the
// next "|". What both engines understand alike is passed on, what can be said exactly in PCRE2 is
// rewritten, and the rest is refused.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace quadrille::text {

// What is wrong with a pattern, without the file's name: the caller knows the place.
class PatternError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A pattern for PCRE2_UTF | PCRE2_UCP without captures. Throws PatternError.
std::string to_pcre2(std::string_view ruby_pattern);

}  // namespace quadrille::text
