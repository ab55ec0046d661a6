// Held-out rows, answered and scored.
#pragma once

#include <functional>

#include "loop/rollout_phase.h"
#include "loop/session.h"

namespace quadrille::loop {

struct Evaluation {
  RolloutResult rollouts;
  // eval/accuracy: share of answers with the full reward of 1. eval/reward: mean reward.
  // eval/pass_at_n with more than one sample a row. An answer that cannot be scored counts as
  // wrong.
  Metrics metrics;
};

// Seeds depend on run.seed alone: two evaluations of the same weights give the same numbers.
Evaluation evaluate(Session& session, const std::function<bool()>& stop,
                    const std::function<void(int64_t, int64_t)>& progress);

}  // namespace quadrille::loop
