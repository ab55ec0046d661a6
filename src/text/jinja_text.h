// Python's str, over UTF-8: what chat templates slice, strip, split and print.
//
// Positions and lengths count code points, as Python's do. Bytes that are not UTF-8 never get here:
// templates and values are checked on their way in.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace quadrille::text::jinja {

// Well-formed: shortest forms, no surrogates, nothing above U+10FFFF. All else here relies on it.
bool is_utf8(std::string_view s);
bool is_ascii(std::string_view s);
int64_t count_code_points(std::string_view s);
std::u32string to_code_points(std::string_view s);
void append_utf8(std::string& out, char32_t c);
std::string to_utf8(std::u32string_view s);

// str.isspace() of one character; also what \s matches in Jinja's lexer.
bool is_space(char32_t c);
std::u32string_view strip_space(std::u32string_view s, bool left, bool right);

// s[start:stop:step] with Python's rules: indices from the end, clamping; step is never 0.
struct SliceRange {
  int64_t start = 0;
  int64_t step = 1;
  int64_t count = 0;
};
SliceRange slice_range(int64_t length, std::optional<int64_t> start, std::optional<int64_t> stop,
                       int64_t step);
std::string slice(std::string_view s, const SliceRange& range);
// s[i] for 0 <= i < length.
std::string character_at(std::string_view s, int64_t i);

// nullopt as `chars` strips white space.
std::string strip(std::string_view s, std::optional<std::string_view> chars, bool left, bool right);
// max_splits -1: no limit. No separator: runs of white space, as str.split().
std::vector<std::string> split(std::string_view s, std::optional<std::string_view> separator,
                               int64_t max_splits, bool from_right);
std::vector<std::string> split_lines(std::string_view s, bool keep_ends);
// How often `what` occurs without overlap; the empty string occurs length + 1 times.
int64_t count(std::string_view s, std::string_view what);
// limit -1: all occurrences.
std::string replace(std::string_view s, std::string_view from, std::string_view to, int64_t limit);

std::string to_lower(std::string_view s);
std::string to_upper(std::string_view s);
// str.title(): each run of letters starts with an upper-case letter.
std::string to_title(std::string_view s);
std::string capitalize(std::string_view s);
std::string swap_case(std::string_view s);

enum class CharClass { kAlpha, kDigit, kDecimal, kNumeric, kAlnum, kSpace, kPrintable, kAscii };
// str.isalpha() and its family: true if all characters are of the class (and there is one, except
// for kPrintable and kAscii).
bool all_of_class(std::string_view s, CharClass what);
bool is_lower(std::string_view s);
bool is_upper(std::string_view s);
bool is_title(std::string_view s);

// & < > " ' as HTML writes them.
std::string escape_html(const std::string& s);

// repr(): quotes, backslash escapes, and \x, \u, \U for what cannot be printed.
std::string repr(std::string_view s);
// repr(float): the shortest digits that read back, exponent below 1e-4 and from 1e16 on.
std::string repr(double value);

}  // namespace quadrille::text::jinja
