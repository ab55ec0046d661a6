#include "reward/verifiers.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace quadrille::reward {
namespace {

float judge(const RewardPart& part, const std::string& completion, const char* row) {
  RewardItem item{
      "0", "", completion,
      std::make_shared<const nlohmann::ordered_json>(nlohmann::ordered_json::parse(row))};
  return make_verifier(part)(item).reward;
}

TEST(Verifiers, Exact) {
  const RewardPart part{.kind = "exact"};
  EXPECT_EQ(judge(part, " 12 \n", R"({"answer": "12"})"), 1);
  EXPECT_EQ(judge(part, "12", R"({"answer": 12})"), 1);
  EXPECT_EQ(judge(part, "12.", R"({"answer": "12"})"), 0);
  EXPECT_EQ(judge(part, "", R"({"answer": ""})"), 1);
  EXPECT_TRUE(std::isnan(judge(part, "12", R"({"prompt": "x"})")));
  EXPECT_TRUE(std::isnan(judge(part, "12", R"({"answer": null})")));
}

TEST(Verifiers, Numeric) {
  const RewardPart part{.kind = "numeric"};
  for (const auto& [completion, answer] :
       std::vector<std::pair<std::string, std::string>>{{"so 3 + 4 = 7", "7"},
                                                        {"it is 1,234,567.5!", "1234567.5"},
                                                        {"-3", "-3"},
                                                        {"x = +2e3.", "2000"},
                                                        {"3/4", "0.75"},
                                                        {"50%", "0.5"},
                                                        {".5", "0.5"},
                                                        {"7.", "7"},
                                                        {"about 5-3", "3"},
                                                        {"first 9, then 12", "12"},
                                                        {"1e", "1"},
                                                        {"#### 1,000", "1000"},
                                                        {"12,34", "34"},
                                                        {"a2", "2"},
                                                        {"0", "-0"}}) {
    EXPECT_EQ(judge(part, completion, nlohmann::json{{"answer", answer}}.dump().c_str()), 1)
        << completion;
  }
  EXPECT_EQ(judge(part, "no number", R"({"answer": "7"})"), 0);
  EXPECT_EQ(judge(part, "8", R"({"answer": 7})"), 0);
  EXPECT_EQ(judge(part, "1e999", R"({"answer": 7})"), 0);
  EXPECT_EQ(judge({.kind = "numeric", .tolerance = 0.1}, "7.5", R"({"answer": 7})"), 1);
  EXPECT_TRUE(std::isnan(judge(part, "7", R"({"answer": "seven"})")));
}

TEST(Verifiers, RegexAndFormat) {
  EXPECT_EQ(judge({.kind = "regex", .pattern = "[0-3]"}, "a2b", "{}"), 1);
  EXPECT_EQ(judge({.kind = "regex", .pattern = "[0-3]"}, "a9b", "{}"), 0);
  const RewardPart group{.kind = "regex", .pattern = "<answer>(.*?)</answer>"};
  EXPECT_EQ(judge(group, "so <answer> 42 </answer>", R"({"answer": "42"})"), 1);
  EXPECT_EQ(judge(group, "so <answer>41</answer>", R"({"answer": "42"})"), 0);
  EXPECT_TRUE(std::isnan(judge(group, "<answer>42</answer>", "{}")));
  const RewardPart format{.kind = "format", .pattern = R"(\d+)"};
  EXPECT_EQ(judge(format, "123", "{}"), 1);
  EXPECT_EQ(judge(format, "123 ", "{}"), 0);
  EXPECT_EQ(judge({.kind = "regex", .pattern = "é"}, "caf\xc3\xa9 \xff", "{}"), 1);
  // Backtracking without end is cut off, not waited for.
  EXPECT_TRUE(std::isnan(judge({.kind = "format", .pattern = "(a|a)*(a|a)*b"},
                               std::string(5000, 'a'), "{}")) ||
              judge({.kind = "format", .pattern = "(a|a)*(a|a)*b"}, std::string(5000, 'a'), "{}") ==
                  0);
  EXPECT_THROW(make_verifier({.kind = "regex", .pattern = "("}), ConfigError);
  EXPECT_THROW(make_verifier({.kind = "regex"}), ConfigError);
}

TEST(Rewards, WeightedParts) {
  const std::string toml = R"(
[reward]
[[reward.part]]
name = "form"
kind = "format"
pattern = "[0-9]+"
weight = 0.25
[[reward.part]]
name = "right"
kind = "exact"
)";
  RewardConfig config;
  config.parts = read_parts(toml, "t.toml");
  ASSERT_EQ(config.parts.size(), 2U);
  const auto row =
      std::make_shared<const nlohmann::ordered_json>(nlohmann::ordered_json{{"answer", "7"}});
  const std::vector<RewardItem> items = {
      {"a", "", "7", row}, {"b", "", "8", row}, {"c", "", "x", row}};
  const auto results = make_reward(config)->score(items);
  EXPECT_EQ(results[0].reward, 1.25F);
  EXPECT_EQ(results[1].reward, 0.25F);
  EXPECT_EQ(results[2].reward, 0.0F);
  EXPECT_EQ(results[1].parts.at("form"), 1.0F);
  EXPECT_EQ(results[1].parts.at("right"), 0.0F);
  // The resolved configuration reads back to the same parts.
  RewardConfig again;
  again.parts = read_parts("[reward]\n" + parts_to_toml(config), "again.toml");
  EXPECT_EQ(parts_to_toml(again), parts_to_toml(config));
  EXPECT_EQ(again.parts[0].weight, 0.25);
  EXPECT_THROW(read_parts("[[reward.part]]\nknd = 'exact'\n", "t.toml"), UsageError);
  EXPECT_THROW(read_parts("[[reward.part]]\nname='a'\n[[reward.part]]\nname='a'\n", "t.toml"),
               UsageError);
}

TEST(Verifiers, TellTheAnswerTheyRead) {
  const auto read = [](const RewardPart& part, const std::string& completion) {
    const RewardItem item{
        "0", "", completion,
        std::make_shared<const nlohmann::ordered_json>(nlohmann::ordered_json{{"answer", "12"}})};
    return make_verifier(part)(item).extracted;
  };
  EXPECT_EQ(read({.kind = "exact"}, " a b\n"), "a b");
  EXPECT_EQ(read({.kind = "numeric"}, "so it is 1,200.0!"), "1200");
  EXPECT_EQ(read({.kind = "numeric"}, "50%"), read({.kind = "numeric"}, "1/2"));
  EXPECT_EQ(read({.kind = "numeric"}, "none"), "");
  const RewardPart group{.kind = "regex", .pattern = "<a>(.*)</a>"};
  EXPECT_EQ(read(group, "x<a> 7 </a>"), "7");
  EXPECT_EQ(read(group, "x"), "");
  EXPECT_EQ(read({.kind = "regex", .pattern = "[0-3]"}, "2"), std::nullopt);
  EXPECT_EQ(read({.kind = "format", .pattern = "(.*)"}, "2"), std::nullopt);
}

}  // namespace
}  // namespace quadrille::reward
