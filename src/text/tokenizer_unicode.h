// Characters as the tokenizer sees them: UTF-8, and the few Unicode properties it needs.
//
// Our libraries carry another Unicode version than the one behind published token ids, and a
// character that is a letter in one and unassigned in the other would be split elsewhere.
// tokenizer_unicode_tables.inc lists the differences; everything here answers with them applied.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace quadrille::text {

struct CodePoint {
  char32_t value = 0;
  int bytes = 0;
};

// The character at text[at], which must be the first byte of one. `text` must be valid UTF-8.
CodePoint code_point_at(std::string_view text, size_t at);
// The character that ends just before text[at]; at > 0.
CodePoint code_point_before(std::string_view text, size_t at);
void append_utf8(std::string& out, char32_t code_point);

// Length of the longest prefix of `bytes` that is valid UTF-8.
size_t valid_utf8_prefix(std::string_view bytes);
// True if `bytes`, which valid_utf8_prefix() refuses at once, could still become a character with
// more bytes.
bool is_unfinished_utf8(std::string_view bytes);
// Length of the maximal damaged part at the start of such `bytes`: what one U+FFFD stands for.
size_t damaged_utf8_prefix(std::string_view bytes);
// `bytes` with U+FFFD for each maximal damaged part. nullopt: nothing to repair.
std::optional<std::string> repaired_utf8(std::string_view bytes);

// White_Space; \w of Rust's regex (letters, marks, decimal and letter numbers, connectors,
// joiners); char::is_numeric of Rust.
bool is_space(char32_t c);
bool is_word(char32_t c);
bool is_number(char32_t c);

// Makes `out` a copy of valid UTF-8 `text` in which each character that PCRE2 would classify
// differently is replaced by one of the right class and the same number of bytes, so that offsets
// carry over. Returns false and leaves `out` alone when there is none, which is nearly always.
bool with_stand_ins(std::string_view text, std::string& out);

// Normalization form C of valid UTF-8. Returns false, `out` untouched, when `text` already is in
// that form.
bool to_nfc(std::string_view text, std::string& out);

}  // namespace quadrille::text
