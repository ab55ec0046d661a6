#include "loop/run_config.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace quadrille::loop {
namespace {

using Changes = std::vector<std::string>;

TEST(ConfigChanges, NamesKeysWithBothValues) {
  RunConfig config;
  const std::string before = to_toml(config);
  EXPECT_EQ(config_changes(before, before), Changes{});
  config.run.seed = 7;
  config.data.train = "other.jsonl";
  EXPECT_EQ(config_changes(before, to_toml(config)),
            (Changes{"run.seed: 0 -> 7", "data.train: \"\" -> \"other.jsonl\""}));
}

TEST(ConfigChanges, KeepsTablesOfAnArrayApart) {
  const std::string before = "[[reward.part]]\nkind = \"a\"\n[[reward.part]]\nkind = \"b\"\n";
  EXPECT_EQ(config_changes(before, before), Changes{});
  const std::string now = "[[reward.part]]\nkind = \"a\"\n[[reward.part]]\nkind = \"c\"\n";
  EXPECT_EQ(config_changes(before, now), (Changes{"reward.part[1].kind: \"b\" -> \"c\""}));
}

}  // namespace
}  // namespace quadrille::loop
