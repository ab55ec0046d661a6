// [rollout] of a run's configuration.
#pragma once

#include <string>
#include <vector>

#include "base/config.h"
#include "rollout/engine.h"
#include "rollout/request.h"

namespace quadrille::rollout {

struct RolloutConfig {
  int64_t max_new_tokens = 128;
  double temperature = 1;
  double top_p = 1;
  int64_t top_k = 0;
  double min_p = 0;
  std::vector<std::string> stop;
  int64_t kv_cache_bytes = 0;
  int64_t max_running = 0;
  int64_t prefill_chunk = 2048;
  bool record_routes = false;

  SamplingOptions sampling(uint64_t seed) const { return {temperature, top_p, top_k, min_p, seed}; }
  EngineOptions engine() const;
  void validate() const;  // Throws UsageError naming the key.
};

// Into the section that the binder is in.
void bind(RolloutConfig& config, ConfigBinder& binder);

}  // namespace quadrille::rollout
