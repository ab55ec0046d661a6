// Patterns as Oniguruma reads them, matched by PCRE2; and the characters on which the two disagree.
#include "text/tokenizer_regex.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "text/tokenizer_pattern.h"
#include "text/tokenizer_unicode.h"

namespace quadrille::text {
namespace {

using Strings = std::vector<std::string>;

Strings matches(std::string_view pattern, std::string_view text) {
  const Regex regex(pattern);
  RegexScratch scratch;
  std::string stand_ins;
  RegexMatches all(regex, with_stand_ins(text, stand_ins) ? stand_ins : text, scratch);
  Strings out;
  for (Range match; all.next(match);)
    out.emplace_back(text.substr(match.begin, match.end - match.begin));
  return out;
}

// The expectations of this file were taken from the Python library: Split(Regex(p), "removed",
// invert=True).
TEST(TokenizerRegex, RubySyntaxKeepsItsMeaning) {
  EXPECT_EQ(matches(R"(\h+)", "xfF 0g"), (Strings{"fF", "0"}));
  EXPECT_EQ(matches(R"(\w+)", "a²Ⓐⅷ_-½"), (Strings{"a²Ⓐⅷ_", "½"}));
  EXPECT_EQ(matches("^.", "ab\ncd"), (Strings{"a", "c"}));
  EXPECT_EQ(matches("a(?i)b|c", "aB C ac"), (Strings{"aB", "ac"}));
  EXPECT_EQ(matches("(?i:'s|'LL)", "'S 'ſ 'll"), (Strings{"'S", "'ſ", "'ll"}));
  EXPECT_EQ(matches("[a-z&&[^aeiou]]+", "hello"), (Strings{"h", "ll"}));
  EXPECT_EQ(matches("[^a[bc]]+", "axbyc"), (Strings{"x", "y"}));
  EXPECT_EQ(matches("a{,2}b", "aaab b"), (Strings{"aab", "b"}));
  EXPECT_EQ(matches("a{x}", "aa{x}"), Strings{"a{x}"});
  EXPECT_EQ(matches(R"(\p{^L}+)", "a12b"), Strings{"12"});
  EXPECT_EQ(matches(R"([^\S\n]+)", " \t\n x"), (Strings{" \t", " "}));
  EXPECT_EQ(matches("x*", "axb"), (Strings{"", "x", ""}));
  EXPECT_EQ(matches("", "é"), (Strings{"", ""}));
  EXPECT_EQ(matches(R"(\p{Han}+)", "ー々漢字"),
            Strings{"々漢字"});  // The script, not its extensions.
}

TEST(TokenizerRegex, WhatCannotBeSaidExactlyIsRefused) {
  for (const char* pattern : {"(",           ")",
                              "(?:",         "[",
                              "[]",          "[^]",
                              "a**",         "a{2}+",
                              "a{2}?",       "a{2}{3}",
                              "*a",          "+",
                              "?",           "(?=a)*",
                              "\\",          "\\p",
                              "\\p{",        "\\p{Nonsense}",
                              "\\q",         "\\1",
                              "\\k<a>",      "\\G",
                              "\\K",         "\\R",
                              "\\X",         "\\W",
                              "\\H",         "(?x:a)",
                              "(?m:a)",      "(?<name>a)",
                              "(?'n'a)",     "(?P<n>a)",
                              "(?|a)",       "(?R)",
                              "[[:alpha:]]", "[z-a]",
                              "[a-\\d]",     "(?i:é)",
                              "(?i:ss)",     "(?i:\\p{Lu})",
                              "(?i:[é])",    "\\x{110000}",
                              "\\x{D800}",   "\\xFF",
                              "\\u12",       "\\x{",
                              "(?#",         "a{99999}{1}",
                              "a{100000}",   "(?<=a+)b",
                              "[a",          "[a&&",
                              "[a&&]"}) {
    EXPECT_THROW(Regex{pattern}, PatternError) << pattern;
  }
}

TEST(TokenizerRegex, CharactersOfNewerAndOlderUnicode) {
  EXPECT_EQ(matches(R"(\p{Lo}+)", "a\U00031350\U0002EBF0"),
            Strings{"\U00031350\U0002EBF0"});  // Unicode 15.0 and 15.1.
  EXPECT_EQ(matches(R"(\p{Han})", "\U00031350"), Strings{"\U00031350"});
  EXPECT_EQ(matches(R"(\p{Nd}+)", "\U00010D40\U00010D49"),
            Strings{"\U00010D40\U00010D49"});                     // 16.0.
  EXPECT_EQ(matches(R"(\p{L}|\p{N})", "\U00011DE0"), Strings{});  // 17.0: not yet.
  EXPECT_EQ(matches(R"(\s)", "\u180e\u200b\u0085\u3000"), (Strings{"\u0085", "\u3000"}));
  EXPECT_TRUE(is_number(U'\U00011DE0'));  // Yet Digits knows it.
  EXPECT_TRUE(is_number(U'½'));
  EXPECT_FALSE(is_number(U'a'));
  EXPECT_TRUE(is_word(U'\u200d'));
  EXPECT_TRUE(is_word(U'Ⓐ'));
  EXPECT_FALSE(is_word(U'²'));
}

TEST(TokenizerUnicode, CompositionAsTheReferenceDoesIt) {
  const auto nfc = [](std::string_view text) {
    std::string out;
    return to_nfc(text, out) ? out : std::string(text);
  };
  EXPECT_EQ(nfc("e\u0301"), "\u00e9");
  EXPECT_EQ(nfc("xe\u0301y\u212bz"), "x\u00e9y\u00c5z");
  EXPECT_EQ(nfc("\u1112\u1161\u11ab"), "\ud55c");
  EXPECT_EQ(nfc("\u0301a\u0316\u0301"), "\u0301\u00e1\u0316");
  EXPECT_EQ(nfc("\u0344"), "\u0308\u0301");
  EXPECT_EQ(nfc("\u1fc9"), "\u0388");
  // Newer than the reference: no composition, no reordering.
  EXPECT_EQ(nfc("\U00011935\U00011930"), "\U00011935\U00011930");
  EXPECT_EQ(nfc("a\u08d3\u0301\u0323"), "a\u08d3\u0323\u0301");
  std::string untouched = "before";
  EXPECT_FALSE(to_nfc("plain, caf\u00e9, \u4f60\u597d, \ud55c\uae00", untouched));
  EXPECT_EQ(untouched, "before");
}

TEST(TokenizerUnicode, EveryCodePointThroughUtf8) {
  std::string all;
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    std::string one;
    append_utf8(one, c);
    ASSERT_EQ(valid_utf8_prefix(one), one.size());
    const CodePoint read = code_point_at(one, 0);
    ASSERT_TRUE(read.value == c && static_cast<size_t>(read.bytes) == one.size());
    ASSERT_TRUE(code_point_before(one, one.size()).value == c);
    for (size_t cut = 1; cut < one.size(); ++cut) {
      ASSERT_TRUE(is_unfinished_utf8(one.substr(0, cut)));
    }
    // A stand-in must keep every offset.
    std::string stand_in;
    if (with_stand_ins(one, stand_in)) {
      ASSERT_EQ(stand_in.size(), one.size());
    }
    if (c % 7 == 0) all += one;
  }
  EXPECT_EQ(repaired_utf8(all), std::nullopt);
}

}  // namespace
}  // namespace quadrille::text
