// Case, character classes and repr() of jinja_text.h: the part that needs the Unicode tables.
//
// Case maps are one to one, except for the German sharp s, the Latin ligatures, I with a dot and
// the final sigma; Python also expands some eighty Greek and Armenian letters.
#include <utf8proc.h>

#include <fmt/format.h>

#include "text/jinja_text.h"

namespace quadrille::text::jinja {
namespace {

utf8proc_category_t category(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}

bool is_letter(char32_t c) {
  const auto k = category(c);
  return k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO;
}

bool is_upper_letter(char32_t c) {
  // Beside the category: Roman numerals and circled capitals have the property Other_Uppercase.
  return category(c) == UTF8PROC_CATEGORY_LU || (c >= 0x2160 && c <= 0x216F) ||
         (c >= 0x24B6 && c <= 0x24CF);
}

bool is_lower_letter(char32_t c) {
  return category(c) == UTF8PROC_CATEGORY_LL || c == 0xAA || c == 0xBA ||
         (c >= 0x2170 && c <= 0x217F) || (c >= 0x24D0 && c <= 0x24E9);
}

bool is_cased(char32_t c) {
  return is_upper_letter(c) || is_lower_letter(c) || category(c) == UTF8PROC_CATEGORY_LT;
}

bool is_decimal(char32_t c) {
  return category(c) == UTF8PROC_CATEGORY_ND;
}

bool is_digit(char32_t c) {
  return is_decimal(c) || c == 0xB2 || c == 0xB3 || c == 0xB9 || c == 0x2070 ||
         (c >= 0x2074 && c <= 0x2079) || (c >= 0x2080 && c <= 0x2089) ||
         (c >= 0x2460 && c <= 0x2468);
}

bool is_numeric(char32_t c) {
  const auto k = category(c);
  return k == UTF8PROC_CATEGORY_ND || k == UTF8PROC_CATEGORY_NL || k == UTF8PROC_CATEGORY_NO;
}

bool is_printable(char32_t c) {
  if (c == ' ') return true;
  const auto k = category(c);
  return k != UTF8PROC_CATEGORY_CN && k < UTF8PROC_CATEGORY_ZS;
}

// The ligatures U+FB00 to U+FB06, spelled out.
constexpr const char* kLigatures[][2] = {{"FF", "Ff"},   {"FI", "Fi"}, {"FL", "Fl"}, {"FFI", "Ffi"},
                                         {"FFL", "Ffl"}, {"ST", "St"}, {"ST", "St"}};

void append_upper(std::string& out, char32_t c, bool title) {
  if (c == 0xDF) {
    out += title ? "Ss" : "SS";
  } else if (c >= 0xFB00 && c <= 0xFB06) {
    out += kLigatures[c - 0xFB00][title ? 1 : 0];
  } else {
    const auto in = static_cast<utf8proc_int32_t>(c);
    append_utf8(out, static_cast<char32_t>(title ? utf8proc_totitle(in) : utf8proc_toupper(in)));
  }
}

bool is_case_ignorable(char32_t c) {
  const auto k = category(c);
  return k == UTF8PROC_CATEGORY_MN || k == UTF8PROC_CATEGORY_ME || k == UTF8PROC_CATEGORY_CF ||
         k == UTF8PROC_CATEGORY_LM || k == UTF8PROC_CATEGORY_SK || c == '\'' || c == '.' ||
         c == ':' || c == 0xB7 || c == 0x2019;
}

// Sigma at the end of a word has a form of its own.
bool is_final_sigma(const std::u32string& all, size_t at) {
  size_t before = at;
  while (before > 0 && is_case_ignorable(all[before - 1])) --before;
  if (before == 0 || !is_cased(all[before - 1])) return false;
  size_t after = at + 1;
  while (after < all.size() && is_case_ignorable(all[after])) ++after;
  return after == all.size() || !is_cased(all[after]);
}

void append_lower(std::string& out, const std::u32string& all, size_t at) {
  const char32_t c = all[at];
  if (c == 0x130) {
    out += "i\xCC\x87";
  } else if (c == 0x3A3) {
    append_utf8(out, is_final_sigma(all, at) ? 0x3C2 : 0x3C3);
  } else {
    append_utf8(out, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
  }
}

}  // namespace

std::string to_lower(std::string_view s) {
  const std::u32string all = to_code_points(s);
  std::string out;
  for (size_t i = 0; i < all.size(); ++i) append_lower(out, all, i);
  return out;
}

std::string to_upper(std::string_view s) {
  std::string out;
  for (const char32_t c : to_code_points(s)) append_upper(out, c, false);
  return out;
}

std::string to_title(std::string_view s) {
  const std::u32string all = to_code_points(s);
  std::string out;
  bool in_word = false;
  for (size_t i = 0; i < all.size(); ++i) {
    if (in_word) {
      append_lower(out, all, i);
    } else {
      append_upper(out, all[i], true);
    }
    in_word = is_cased(all[i]);
  }
  return out;
}

std::string capitalize(std::string_view s) {
  const std::u32string all = to_code_points(s);
  std::string out;
  for (size_t i = 0; i < all.size(); ++i) {
    if (i == 0) {
      append_upper(out, all[i], true);
    } else {
      append_lower(out, all, i);
    }
  }
  return out;
}

std::string swap_case(std::string_view s) {
  const std::u32string all = to_code_points(s);
  std::string out;
  for (size_t i = 0; i < all.size(); ++i) {
    if (is_upper_letter(all[i])) {
      append_lower(out, all, i);
    } else if (is_lower_letter(all[i])) {
      append_upper(out, all[i], false);
    } else {
      append_utf8(out, all[i]);
    }
  }
  return out;
}

bool all_of_class(std::string_view s, CharClass what) {
  if (what == CharClass::kAscii) return is_ascii(s);
  if (s.empty()) return what == CharClass::kPrintable;
  for (const char32_t c : to_code_points(s)) {
    bool ok = false;
    switch (what) {
      case CharClass::kAlpha:
        ok = is_letter(c);
        break;
      case CharClass::kDigit:
        ok = is_digit(c);
        break;
      case CharClass::kDecimal:
        ok = is_decimal(c);
        break;
      case CharClass::kNumeric:
        ok = is_numeric(c);
        break;
      case CharClass::kAlnum:
        ok = is_letter(c) || is_numeric(c) || is_digit(c);
        break;
      case CharClass::kSpace:
        ok = is_space(c);
        break;
      case CharClass::kPrintable:
        ok = is_printable(c);
        break;
      case CharClass::kAscii:
        break;
    }
    if (!ok) return false;
  }
  return true;
}

bool is_lower(std::string_view s) {
  bool cased = false;
  for (const char32_t c : to_code_points(s)) {
    if (is_upper_letter(c) || category(c) == UTF8PROC_CATEGORY_LT) return false;
    cased = cased || is_lower_letter(c);
  }
  return cased;
}

bool is_upper(std::string_view s) {
  bool cased = false;
  for (const char32_t c : to_code_points(s)) {
    if (is_lower_letter(c) || category(c) == UTF8PROC_CATEGORY_LT) return false;
    cased = cased || is_upper_letter(c);
  }
  return cased;
}

bool is_title(std::string_view s) {
  bool cased = false;
  bool in_word = false;
  for (const char32_t c : to_code_points(s)) {
    const bool starts = is_upper_letter(c) || category(c) == UTF8PROC_CATEGORY_LT;
    if (starts ? in_word : (is_lower_letter(c) && !in_word)) return false;
    in_word = starts || is_lower_letter(c);
    cased = cased || in_word;
  }
  return cased;
}

std::string repr(std::string_view s) {
  const bool single = s.find('\'') != std::string_view::npos;
  const bool use_double = single && s.find('"') == std::string_view::npos;
  const char32_t quote = use_double ? '"' : '\'';
  std::string out;
  append_utf8(out, quote);
  for (const char32_t c : to_code_points(s)) {
    if (c == quote || c == '\\') {
      out.push_back('\\');
      append_utf8(out, c);
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (is_printable(c)) {
      append_utf8(out, c);
    } else if (c < 0x100) {
      out += fmt::format("\\x{:02x}", static_cast<uint32_t>(c));
    } else if (c < 0x10000) {
      out += fmt::format("\\u{:04x}", static_cast<uint32_t>(c));
    } else {
      out += fmt::format("\\U{:08x}", static_cast<uint32_t>(c));
    }
  }
  append_utf8(out, quote);
  return out;
}

}  // namespace quadrille::text::jinja
