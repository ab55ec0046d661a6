#include "loop/evaluate.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>

#include "base/rng.h"

namespace quadrille::loop {
namespace {

bool is_right(const Scored& answer) {
  return answer.sample.reward >= 1.0F - 1e-6F;
}

// The first answer of those that were given most often; null if none was read.
const Scored* majority(std::span<const Scored> answers) {
  std::map<std::string_view, int64_t> votes;
  for (const Scored& answer : answers) {
    if (answer.extracted) ++votes[*answer.extracted];
  }
  const Scored* winner = nullptr;
  for (const Scored& answer : answers) {
    if (!answer.extracted) continue;
    if (winner == nullptr || votes[*answer.extracted] > votes[*winner->extracted]) winner = &answer;
  }
  return winner;
}

}  // namespace

Metrics evaluation_metrics(std::span<const Scored> answers, int64_t samples) {
  double right = 0;
  double reward = 0;
  double length = 0;
  double passed_rows = 0;
  double best_rewards = 0;
  double majority_rows = 0;
  bool voted = false;
  const auto each = static_cast<size_t>(samples);
  for (size_t begin = 0; begin < answers.size(); begin += each) {
    const auto row = answers.subspan(begin, each);
    std::optional<double> best;
    for (const Scored& answer : row) {
      right += is_right(answer) ? 1 : 0;
      length += static_cast<double>(answer.sample.response_tokens());
      if (std::isnan(answer.sample.reward)) continue;
      const auto score = static_cast<double>(answer.sample.reward);
      reward += score;
      best = std::max(best.value_or(score), score);
    }
    passed_rows += std::any_of(row.begin(), row.end(), is_right) ? 1 : 0;
    best_rewards += best.value_or(0);
    if (const Scored* winner = majority(row)) {
      voted = true;
      majority_rows += is_right(*winner) ? 1 : 0;
    }
  }
  const auto count = static_cast<double>(answers.size());
  Metrics metrics;
  metrics["eval/accuracy"] = right / count;
  metrics["eval/reward"] = reward / count;
  metrics["eval/length_mean_tokens"] = length / count;
  if (samples > 1) {
    const double rows = count / static_cast<double>(samples);
    metrics["eval/pass_at_n"] = passed_rows / rows;
    metrics["eval/best_of_n"] = best_rewards / rows;
    if (voted) metrics["eval/majority_at_n"] = majority_rows / rows;
  }
  return metrics;
}

Evaluation evaluate(Session& session, const std::function<bool()>& stop,
                    const std::function<void(int64_t, int64_t)>& progress) {
  const EvalConfig& config = session.config.eval;
  constexpr uint64_t kEvalStream = 0x6576616C;  // Apart from the seeds of training steps.
  RolloutPlan plan;
  plan.task = session.eval_task.get();
  plan.rows.resize(static_cast<size_t>(
      config.max_rows > 0 ? std::min(config.max_rows, plan.task->rows()) : plan.task->rows()));
  std::iota(plan.rows.begin(), plan.rows.end(), 0);
  plan.samples = config.samples;
  plan.sampling.temperature = config.temperature;
  plan.sampling.seed = mix_seed(static_cast<uint64_t>(session.config.run.seed), kEvalStream);

  Evaluation result;
  result.rollouts = roll_out(session, plan, stop, progress);
  if (result.rollouts.interrupted) return result;
  result.metrics = evaluation_metrics(result.rollouts.answers, plan.samples);
  result.metrics["time/eval_seconds"] = result.rollouts.metrics["time/rollout_seconds"] +
                                        result.rollouts.metrics["time/reward_seconds"];
  return result;
}

}  // namespace quadrille::loop
