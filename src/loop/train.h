// One run, from its configuration to its last checkpoint: `quadrille train`.
//
// Invariant: a run is a function of its configuration and seed. What a checkpoint does not hold is
// derived from (run.seed, step, row, sample), so a run that was killed and resumed writes the same
// metrics, bit for bit, as one that was never stopped (time/*, throughput/* and memory aside).
#pragma once

#include "base/clock.h"
#include "loop/run_config.h"
#include "loop/stop_flag.h"

namespace quadrille::loop {

enum class Outcome { kDone, kInterrupted };

struct TrainOptions {
  bool resume = false;
  bool dry_run = false;  // Build everything, print what it needs, write nothing.
};

Outcome train(RunConfig config, const TrainOptions& options, const Clock& clock,
              const StopFlag& stop);

}  // namespace quadrille::loop
