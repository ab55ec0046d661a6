// A run's state in and out of checkpoint folders.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <optional>

#include "learn/trainer.h"
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

void save_run_state(const std::filesystem::path& checkpoints, const RunState& state,
                    const Session& session, std::optional<double> accuracy);
// The newest good checkpoint's state; weights and optimizer go into `trainer`. None if the folder
// holds none.
std::optional<RunState> load_run_state(const std::filesystem::path& checkpoints,
                                       learn::Trainer& trainer);

// Weights alone, for evaluation and export.
void load_checkpoint_weights(const std::filesystem::path& checkpoint, model::Transformer& model);
void export_checkpoint(const std::filesystem::path& checkpoint, const std::filesystem::path& output,
                       at::ScalarType dtype);

}  // namespace quadrille::loop
