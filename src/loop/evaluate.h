// Held-out rows, answered and scored.
#pragma once

#include <functional>
#include <span>

#include "loop/rollout_phase.h"
#include "loop/session.h"

namespace quadrille::loop {

struct Evaluation {
  RolloutResult rollouts;
  Metrics metrics;  // evaluation_metrics, and time/eval_seconds.
};

// eval/accuracy: share of answers with the full reward of 1. eval/reward: mean reward. With more
// than one sample a row also, as means over the rows:
//   eval/pass_at_n      1 if any answer is right
//   eval/best_of_n      the largest reward
//   eval/majority_at_n  1 if the answer given most often, the first of equals, is right; only if
//                       the reward reads answers (RewardResult::extracted)
// An answer that cannot be scored counts as wrong, with a reward of 0. `answers` row by row,
// `samples` each.
Metrics evaluation_metrics(std::span<const Scored> answers, int64_t samples);

// Seeds depend on run.seed alone: two evaluations of the same weights give the same numbers.
Evaluation evaluate(Session& session, const std::function<bool()>& stop,
                    const std::function<void(int64_t, int64_t)>& progress);

}  // namespace quadrille::loop
