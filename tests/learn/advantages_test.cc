// Worked examples of docs/rl.md: 14.1 (group methods) and the schedules of 14.4.
#include "learn/advantages.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace quadrille::learn {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

std::vector<Answer> example() {
  std::vector<Answer> answers;
  const auto add = [&](uint64_t group, double score) {
    answers.push_back({group, score, score, false});
  };
  for (const double score : {1.0, 0.0, 0.5, 0.0}) add(7, score);
  add(9, 0.3);
  add(9, 0.3);
  add(11, 0.7);
  return answers;
}

void expect_near(const std::vector<double>& got, const std::vector<double>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], expected[i], 1e-6) << "answer " << i;
}

TEST(Advantages, Grpo) {
  const Advantages a = group_advantages(example(), {AdvantageMethod::kGrpo, 1e-6, true});
  expect_near(a.values, {1.305580, -0.783348, 0.261116, -0.783348, 0, 0, 0});
  EXPECT_EQ(a.kept, (std::vector<uint8_t>{1, 1, 1, 1, 0, 0, 0}));
  EXPECT_EQ(a.groups, 3);
  EXPECT_EQ(a.single_groups, 1);
  EXPECT_EQ(a.zero_variance_groups, 1);
  EXPECT_EQ(a.all_right_groups, 1);
  EXPECT_EQ(a.all_wrong_groups, 0);
}

TEST(Advantages, GrpoWithTheOtherEpsilon) {
  const Advantages a = group_advantages(example(), {AdvantageMethod::kGrpo, 1e-4, true});
  expect_near(a.values, {1.305310, -0.783186, 0.261062, -0.783186, 0, 0, 0});
}

TEST(Advantages, DrGrpo) {
  const Advantages a = group_advantages(example(), {AdvantageMethod::kDrGrpo, 1e-6, true});
  expect_near(a.values, {0.625, -0.375, 0.125, -0.375, 0, 0, 0});
}

TEST(Advantages, Rloo) {
  const Advantages a = group_advantages(example(), {AdvantageMethod::kRloo, 1e-6, true});
  expect_near(a.values, {0.833333, -0.5, 0.166667, -0.5, 0, 0, 0});
}

TEST(Advantages, ZeroVarianceGroupsCanStayInTheDenominator) {
  const Advantages a = group_advantages(example(), {AdvantageMethod::kGrpo, 1e-6, false});
  expect_near(a.values, {1.305580, -0.783348, 0.261116, -0.783348, 0, 0, 0});
  // A group of one never does.
  EXPECT_EQ(a.kept, (std::vector<uint8_t>{1, 1, 1, 1, 1, 1, 0}));
}

TEST(Advantages, EqualScoresGiveExactlyZero) {
  // 0.1 three times has a mean that is not 0.1.
  std::vector<Answer> answers(3, Answer{1, 0.1, 0.1, false});
  const Advantages a = group_advantages(answers, {AdvantageMethod::kGrpo, 1e-6, false});
  EXPECT_EQ(a.values, (std::vector<double>{0, 0, 0}));
}

TEST(Advantages, UnscoredAndExcludedAnswersLeaveTheirGroupBeforeMeanAndDeviation) {
  std::vector<Answer> answers = example();
  answers.insert(answers.begin() + 2, Answer{7, kNan, kNan, false});
  answers.insert(answers.begin(), Answer{7, 100, 100, true});
  const Advantages a = group_advantages(answers, {AdvantageMethod::kGrpo, 1e-6, true});
  expect_near(a.values, {0, 1.305580, -0.783348, 0, 0.261116, -0.783348, 0, 0, 0});
  EXPECT_EQ(a.kept, (std::vector<uint8_t>{0, 1, 1, 0, 1, 1, 0, 0, 0}));
}

TEST(Advantages, AGroupWithOneSurvivorIsSingleAndOneWithoutIsNone) {
  const std::vector<Answer> answers = {
      {1, 1, 1, false}, {1, kNan, kNan, false}, {2, 1, 1, true}, {2, kNan, kNan, false}};
  const Advantages a = group_advantages(answers, {});
  EXPECT_EQ(a.groups, 1);
  EXPECT_EQ(a.single_groups, 1);
  EXPECT_EQ(a.values, (std::vector<double>{0, 0, 0, 0}));
  EXPECT_EQ(a.kept, (std::vector<uint8_t>{0, 0, 0, 0}));
}

TEST(Advantages, AGroupIsJudgedByItsRewardsNotByTheKlInItsScores) {
  const std::vector<Answer> answers = {{1, 1, 0.99, false}, {1, 1, 0.98, false}};
  const Advantages dropped = group_advantages(answers, {AdvantageMethod::kRloo, 1e-6, true});
  EXPECT_EQ(dropped.zero_variance_groups, 1);
  EXPECT_EQ(dropped.kept, (std::vector<uint8_t>{0, 0}));
  const Advantages kept = group_advantages(answers, {AdvantageMethod::kRloo, 1e-6, false});
  expect_near(kept.values, {0.01, -0.01});
}

TEST(Advantages, GroupsMayStandInAnyOrder) {
  std::vector<Answer> answers = example();
  std::swap(answers[1], answers[6]);
  const Advantages a = group_advantages(answers, {AdvantageMethod::kGrpo, 1e-6, true});
  expect_near(a.values, {1.305580, 0, 0.261116, -0.783348, 0, 0, -0.783348});
}

TEST(OverlongPenalty, FallsOverTheBuffer) {
  const double expected[] = {0, -0.25, -0.5, -1, -1};
  const int64_t lengths[] = {16, 17, 18, 20, 21};
  for (int i = 0; i < 5; ++i) EXPECT_DOUBLE_EQ(overlong_penalty(lengths[i], 20, 4), expected[i]);
  EXPECT_EQ(overlong_penalty(100, 20, 0), 0);
}

TEST(AdaptedKl, MovesByABoundedStep) {
  EXPECT_NEAR(adapted_kl_coef(0.1, 0.15, 0.1, 256, 10000), 0.100512, 1e-6);
  EXPECT_NEAR(adapted_kl_coef(0.1, 0.09, 0.1, 256, 10000), 0.099744, 1e-6);
}

}  // namespace
}  // namespace quadrille::learn
