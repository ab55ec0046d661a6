#include "loop/evaluate.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/rng.h"

namespace quadrille::loop {

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
  double right = 0;
  double reward = 0;
  double passed_rows = 0;
  const auto& answers = result.rollouts.answers;
  for (size_t begin = 0; begin < answers.size(); begin += static_cast<size_t>(plan.samples)) {
    bool passed = false;
    for (size_t i = begin; i < begin + static_cast<size_t>(plan.samples); ++i) {
      const float score = answers[i].sample.reward;
      const bool is_right = score >= 1.0F - 1e-6F;
      right += is_right ? 1 : 0;
      passed = passed || is_right;
      reward += std::isnan(score) ? 0 : static_cast<double>(score);
    }
    passed_rows += passed ? 1 : 0;
  }
  const auto count = static_cast<double>(answers.size());
  result.metrics["eval/accuracy"] = right / count;
  result.metrics["eval/reward"] = reward / count;
  if (plan.samples > 1) {
    result.metrics["eval/pass_at_n"] = passed_rows / static_cast<double>(plan.rows.size());
  }
  double length = 0;
  for (const Scored& answer : answers)
    length += static_cast<double>(answer.sample.response_tokens());
  result.metrics["eval/length_mean_tokens"] = length / count;
  result.metrics["time/eval_seconds"] = result.rollouts.metrics["time/rollout_seconds"] +
                                        result.rollouts.metrics["time/reward_seconds"];
  return result;
}

}  // namespace quadrille::loop
