#include "base/json_text.h"

#include <gtest/gtest.h>

namespace quadrille {
namespace {

std::string nested(int depth) {
  return std::string(static_cast<size_t>(depth), '[') +
         std::string(static_cast<size_t>(depth), ']');
}

TEST(JsonText, DepthIsLimited) {
  EXPECT_FALSE(json_text_danger(nested(256)));
  EXPECT_EQ(json_text_danger(nested(257)), "nested deeper than 256 levels");
  std::string beside;
  for (int i = 0; i < 1000; ++i) beside += "[{}],";
  EXPECT_FALSE(json_text_danger(beside));
  // Brackets inside strings nest nothing, whatever is escaped there.
  EXPECT_FALSE(json_text_danger("[\"" + std::string(999, '[') + "\"]"));
  EXPECT_FALSE(json_text_danger("\"\\\"" + std::string(999, '{') + "\""));
  EXPECT_TRUE(json_text_danger("\"\\\\\"" + std::string(999, '{')));
}

TEST(JsonText, AZeroByteIsNoEnd) {
  using std::string_literals::operator""s;
  EXPECT_EQ(json_text_danger("{}\0{"s), "a zero byte at 2");
  EXPECT_TRUE(json_text_danger("\"a\\\0\""s));
}

TEST(JsonText, ReasonWithoutTheParsersCode) {
  EXPECT_EQ(json_reason("[json.exception.parse_error.101] parse error at 1"), "parse error at 1");
  EXPECT_EQ(json_reason("something [else] than that"), "something [else] than that");
}

}  // namespace
}  // namespace quadrille
