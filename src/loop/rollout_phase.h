// Prompts in, scored samples out: the half of a step that does not train.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/metrics.h"
#include "base/sample.h"
#include "loop/session.h"
#include "loop/task.h"

namespace quadrille::loop {

struct RolloutPlan {
  const Task* task = nullptr;
  std::vector<int64_t> rows;
  int64_t samples = 1;                // Answers per row.
  rollout::SamplingOptions sampling;  // Its seed is the phase's; each row derives its own from it.
  uint64_t first_group_id = 0;
};

struct Scored {
  Sample sample;
  std::string prompt;
  std::shared_ptr<const nlohmann::ordered_json> row;
  std::string error;                     // Why it could not be scored.
  std::optional<std::string> extracted;  // reward/reward.h.
};

struct RolloutResult {
  std::vector<Scored> answers;  // Row by row, sample by sample.
  Metrics metrics;              // time/*, rollout/*, throughput/*.
  bool interrupted = false;     // The answers are incomplete.
};

// `stop` is asked between decode steps; `progress` is told how many answers are done of how many.
RolloutResult roll_out(Session& session, const RolloutPlan& plan, const std::function<bool()>& stop,
                       const std::function<void(int64_t done, int64_t all)>& progress);

// One line of samples.jsonl.
std::string sample_line(const Scored& answer, int64_t step, const std::string& split);

}  // namespace quadrille::loop
