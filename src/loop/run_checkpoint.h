// A run's state in and out of checkpoint folders.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <optional>

#include "loop/session.h"
#include "text/dataset.h"

namespace quadrille::loop {

// All that decides the future of a run beside weights and optimizer.
struct RunState {
  int64_t step = 0;     // Done.
  int64_t version = 0;  // Of the weights: counts published updates, never falls.
  uint64_t next_group_id = 0;
  text::SamplerState sampler;
  Metrics unfinished;  // Of the last step, if its evaluation was interrupted and is still owed.
                       // Else empty.
};

// With the session's weights, optimizer and date.
void save_run_state(const std::filesystem::path& checkpoints, const RunState& state,
                    const Session& session, std::optional<double> accuracy);
// The newest good checkpoint's state; weights, optimizer and date go into `session`. None if the
// folder holds none. A checkpoint of a version that kept no date leaves the session's as it is.
std::optional<RunState> load_run_state(const std::filesystem::path& checkpoints, Session& session);

// Weights and date alone: to evaluate as the run itself did.
void load_for_evaluation(const std::filesystem::path& checkpoint, Session& session);
void export_checkpoint(const std::filesystem::path& checkpoint, const std::filesystem::path& output,
                       at::ScalarType dtype);

}  // namespace quadrille::loop
