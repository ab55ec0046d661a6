// The configuration of one run: every section, each struct owned by the room that reads it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/config.h"
#include "checkpoint/checkpoint.h"
#include "learn/algorithm.h"
#include "learn/optimizer.h"
#include "model/settings.h"
#include "reward/reward.h"
#include "rollout/config.h"

namespace quadrille::loop {

struct RunSettings {
  std::string dir = "run";
  int64_t seed = 0;
  int64_t steps = 100;
  std::string device = "auto";
  int64_t threads = 0;
};

struct DataConfig {
  std::string train;
  bool shuffle = true;
  int64_t max_prompt_tokens = 0;
};

struct EvalConfig {
  std::string data;
  int64_t every = 20;
  int64_t samples = 1;
  double temperature = 0;
  int64_t max_rows = 0;
};

struct ObserveConfig {
  bool tensorboard = true;
  int64_t samples_per_step = 4;
};

struct RunConfig {
  RunSettings run;
  model::ModelSettings model;
  DataConfig data;
  EvalConfig eval;
  rollout::RolloutConfig rollout;
  reward::RewardConfig reward;
  learn::AlgorithmConfig algorithm;
  learn::OptimizerConfig optimizer;
  checkpoint::CheckpointConfig checkpoint;
  ObserveConfig observe;

  // Contradictions that need no model: throws ConfigError with the numbers.
  void validate() const;
};

// Binds every section; the binder points into `config`.
ConfigBinder bind(RunConfig& config);

// Reads the file, applies each --set in order, fills presets, validates. The file's paths are
// relative to the working directory.
RunConfig read_run_config(const std::filesystem::path& file, const std::vector<std::string>& sets);

// The resolved configuration, [[reward.part]] tables included.
std::string to_toml(RunConfig& config);

// Which keys of two texts of to_toml() differ, as "section.key: old -> new", in the order of `now`.
std::vector<std::string> config_changes(const std::string& before, const std::string& now);

}  // namespace quadrille::loop
