#include "base/config.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace quadrille {
namespace {

struct Demo {
  double lr = 1e-3;
  int64_t steps = 10;
  bool shuffle = true;
  std::string kind = "exact";
  std::vector<std::string> stop;
  std::vector<double> betas = {0.9, 0.95};

  ConfigBinder binder() {
    ConfigBinder b;
    b.section("run", "The run.");
    b.field("steps", steps, "Optimizer steps.");
    b.field("shuffle", shuffle, "Shuffle.");
    b.section("optimizer", "AdamW.");
    b.field("lr", lr, "Learning rate.");
    b.field("betas", betas, "Moments.");
    b.section("reward", "Rewards.");
    b.field("kind", kind, "Kind.", {"exact", "numeric"});
    b.field("stop", stop, "Stop strings.");
    return b;
  }
};

std::string usage_error(const std::function<void()>& call) {
  try {
    call();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no error";
}

TEST(Config, ReadsEachType) {
  Demo d;
  d.binder().read_text(
      "[run]\nsteps = 7\nshuffle = false\n[optimizer]\nlr = 1\nbetas = [0.5, 1]\n"
      "[reward]\nkind = 'numeric'\nstop = ['a\"b', '\\n']\n",
      "t.toml");
  EXPECT_EQ(d.steps, 7);
  EXPECT_FALSE(d.shuffle);
  EXPECT_EQ(d.lr, 1.0);
  EXPECT_EQ(d.betas, (std::vector<double>{0.5, 1.0}));
  EXPECT_EQ(d.stop, (std::vector<std::string>{"a\"b", "\\n"}));
}

TEST(Config, ErrorsNameFileLineAndNearestKey) {
  Demo d;
  auto b = d.binder();
  EXPECT_EQ(usage_error([&] { b.read_text("[optimizer]\nlrr = 1.0\n", "t.toml"); }),
            "t.toml:2: unknown key optimizer.lrr; the nearest is optimizer.lr");
  EXPECT_EQ(usage_error([&] { b.read_text("[optimiser]\nlr = 1.0\n", "t.toml"); }),
            "t.toml:1: unknown section [optimiser]; the nearest is [optimizer]");
  EXPECT_EQ(usage_error([&] { b.read_text("[run]\nsteps = 1.5\n", "t.toml"); }),
            "t.toml:2: run.steps must be an integer, got 1.5");
  EXPECT_EQ(usage_error([&] { b.read_text("[reward]\nkind = 'exakt'\n", "t.toml"); }),
            "t.toml:2: reward.kind must be one of exact, numeric, got \"exakt\"");
  EXPECT_NE(usage_error([&] { b.read_text("[run\n", "t.toml"); }).find("t.toml:"),
            std::string::npos);
  EXPECT_NE(usage_error([&] { b.set("run.steps"); }).find("section.key=value"), std::string::npos);
}

TEST(Config, SetTakesBareWordsAndToml) {
  Demo d;
  auto b = d.binder();
  b.set("reward.kind=numeric");
  b.set("run.steps=3");
  b.set("optimizer.betas=[0.1,0.2]");
  EXPECT_EQ(d.kind, "numeric");
  EXPECT_EQ(d.steps, 3);
  EXPECT_EQ(d.betas[1], 0.2);
  EXPECT_TRUE(b.was_set("run", "steps"));
  EXPECT_FALSE(b.was_set("run", "shuffle"));
}

TEST(Config, ResolvedTomlReadsBack) {
  Demo d;
  d.lr = 3.0000000000000004e-7;
  d.stop = {"\n", "tab\t", "quote\""};
  const std::string text = d.binder().to_toml();
  Demo e;
  e.binder().read_text(text, "resolved");
  EXPECT_EQ(e.lr, d.lr);
  EXPECT_EQ(e.stop, d.stop);
  EXPECT_EQ(e.binder().to_toml(), text);
}

}  // namespace
}  // namespace quadrille
