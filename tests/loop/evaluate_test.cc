#include "loop/evaluate.h"

#include <gtest/gtest.h>

#include <limits>

namespace quadrille::loop {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

Scored answer(float reward, std::optional<std::string> extracted = std::nullopt) {
  Scored scored;
  scored.sample.reward = reward;
  scored.sample.tokens = {1, 2, 3};
  scored.sample.prompt_tokens = 1;
  scored.extracted = std::move(extracted);
  return scored;
}

TEST(EvaluationMetrics, OneSampleARow) {
  const Metrics metrics =
      evaluation_metrics(std::vector{answer(1, "7"), answer(0.5), answer(kNan)}, 1);
  EXPECT_EQ(
      metrics,
      (Metrics{{"eval/accuracy", 1.0 / 3}, {"eval/reward", 0.5}, {"eval/length_mean_tokens", 2}}));
}

TEST(EvaluationMetrics, SeveralSamplesARow) {
  const std::vector<Scored> answers = {
      answer(0, "8"), answer(1, "7"), answer(1, "7"),     // The majority is right.
      answer(0, "8"), answer(0, "8"), answer(1, "7"),     // It is wrong.
      answer(1, "7"), answer(0, "8"), answer(0, ""),      // The first of equals.
      answer(0, "8"), answer(1, "7"), answer(kNan, "9"),  // Likewise.
      answer(-1, ""), answer(-2, ""), answer(kNan),       // No answer wins: wrong.
      answer(kNan),   answer(kNan),   answer(kNan),       // None to vote on: wrong.
  };
  const Metrics metrics = evaluation_metrics(answers, 3);
  EXPECT_EQ(metrics.at("eval/accuracy"), 5.0 / 18);
  EXPECT_EQ(metrics.at("eval/reward"), 2.0 / 18);
  EXPECT_EQ(metrics.at("eval/pass_at_n"), 4.0 / 6);
  EXPECT_EQ(metrics.at("eval/best_of_n"), 3.0 / 6);
  EXPECT_EQ(metrics.at("eval/majority_at_n"), 2.0 / 6);
}

TEST(EvaluationMetrics, NoVoteWhereNoAnswerIsRead) {
  const Metrics metrics = evaluation_metrics(std::vector{answer(1), answer(0.25)}, 2);
  EXPECT_EQ(metrics.at("eval/best_of_n"), 1);
  EXPECT_FALSE(metrics.contains("eval/majority_at_n"));
}

}  // namespace
}  // namespace quadrille::loop
