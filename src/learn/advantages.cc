#include "learn/advantages.h"

#include <algorithm>
#include <cmath>
#include <map>

namespace quadrille::learn {
namespace {

bool all_equal(std::span<const Answer> answers, const std::vector<size_t>& members,
               double Answer::*field) {
  return std::all_of(members.begin(), members.end(), [&](size_t i) {
    return answers[i].*field == answers[members.front()].*field;
  });
}

void fill_group(std::span<const Answer> answers, const std::vector<size_t>& members,
                const AdvantageOptions& options, std::vector<double>& values) {
  // Rounding of the mean must not turn equal scores into tiny advantages, which grpo would divide
  // by a tiny deviation.
  if (all_equal(answers, members, &Answer::score)) return;
  const auto n = static_cast<double>(members.size());
  double sum = 0;
  for (const size_t i : members) sum += answers[i].score;
  const double mean = sum / n;
  double squares = 0;
  for (const size_t i : members) squares += (answers[i].score - mean) * (answers[i].score - mean);
  double scale = 1;
  switch (options.method) {
    case AdvantageMethod::kGrpo:
      scale = 1 / (std::sqrt(squares / (n - 1)) + options.eps);
      break;
    case AdvantageMethod::kDrGrpo:
      break;
    case AdvantageMethod::kRloo:
      scale = n / (n - 1);
      break;
  }
  for (const size_t i : members) values[i] = (answers[i].score - mean) * scale;
}

}  // namespace

Advantages group_advantages(std::span<const Answer> answers, const AdvantageOptions& options) {
  std::map<uint64_t, std::vector<size_t>> groups;
  for (size_t i = 0; i < answers.size(); ++i) {
    const Answer& answer = answers[i];
    if (!answer.excluded && std::isfinite(answer.reward) && std::isfinite(answer.score)) {
      groups[answer.group_id].push_back(i);
    }
  }
  Advantages out;
  out.values.assign(answers.size(), 0.0);
  out.kept.assign(answers.size(), 0);
  out.groups = static_cast<int64_t>(groups.size());
  for (const auto& [id, members] : groups) {
    if (members.size() < 2) {
      ++out.single_groups;
      continue;
    }
    // Rewards, not scores: a KL term or a length penalty makes every group differ.
    if (all_equal(answers, members, &Answer::reward)) {
      ++out.zero_variance_groups;
      ++(answers[members.front()].reward > 0 ? out.all_right_groups : out.all_wrong_groups);
      if (options.drop_zero_variance) continue;
    }
    for (const size_t i : members) out.kept[i] = 1;
    fill_group(answers, members, options, out.values);
  }
  return out;
}

double overlong_penalty(int64_t length, int64_t limit, int64_t buffer) {
  const int64_t free = limit - buffer;
  if (buffer <= 0 || length <= free) return 0;
  return std::max(-1.0, static_cast<double>(free - length) / static_cast<double>(buffer));
}

double adapted_kl_coef(double coef, double kl, double target, int64_t answers, int64_t horizon) {
  const double error = std::clamp(kl / target - 1, -0.2, 0.2);
  return coef * (1 + error * static_cast<double>(answers) / static_cast<double>(horizon));
}

}  // namespace quadrille::learn
