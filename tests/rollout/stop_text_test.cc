#include "rollout/stop_text.h"

#include <gtest/gtest.h>

namespace quadrille::rollout {
namespace {

TEST(StopText, FindsStopsAcrossPieces) {
  const std::vector<std::string> stops = {"</s>", "\n\nQ:"};
  StopText text(&stops);
  EXPECT_FALSE(text.append("one <"));
  EXPECT_EQ(text.take_settled(), "one ");
  EXPECT_FALSE(text.append("/"));
  EXPECT_EQ(text.take_settled(), "");
  EXPECT_FALSE(text.append("p> two</"));
  EXPECT_EQ(text.take_settled(), "</p> two");
  EXPECT_TRUE(text.append("s> three"));
  EXPECT_EQ(text.text(), "one </p> two");
  EXPECT_EQ(text.take_settled(), "");
  EXPECT_TRUE(text.append("more"));
  EXPECT_EQ(text.text(), "one </p> two");
}

TEST(StopText, CutsBeforeTheOneThatBeginsFirst) {
  const std::vector<std::string> stops = {"b", "abc"};
  StopText text(&stops);
  EXPECT_TRUE(text.append("xabcb"));
  EXPECT_EQ(text.text(), "x");
}

TEST(StopText, LetsGoAtTheEnd) {
  const std::vector<std::string> stops = {"stop"};
  StopText text(&stops);
  EXPECT_FALSE(text.append("do not sto"));
  EXPECT_EQ(text.take_settled(), "do not ");
  text.settle();
  EXPECT_EQ(text.take_settled(), "sto");
}

TEST(StopText, WithoutStopsEverythingIsSettled) {
  const std::vector<std::string> none;
  StopText text(&none);
  EXPECT_FALSE(text.append("abc"));
  EXPECT_EQ(text.take_settled(), "abc");
}

}  // namespace
}  // namespace quadrille::rollout
