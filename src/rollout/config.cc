#include "rollout/config.h"

#include "base/error.h"

namespace quadrille::rollout {

EngineOptions RolloutConfig::engine() const {
  EngineOptions options;
  options.kv_cache_bytes = kv_cache_bytes;
  options.max_running = max_running;
  options.prefill_chunk = prefill_chunk;
  return options;
}

void RolloutConfig::validate() const {
  if (max_new_tokens < 1)
    throw UsageError("rollout.max_new_tokens must be at least 1, got {}", max_new_tokens);
  if (kv_cache_bytes < 0)
    throw UsageError("rollout.kv_cache_bytes must be 0 or more, got {}", kv_cache_bytes);
  if (max_running < 0)
    throw UsageError("rollout.max_running must be 0 or more, got {}", max_running);
  if (prefill_chunk < 1)
    throw UsageError("rollout.prefill_chunk must be at least 1, got {}", prefill_chunk);
  for (const std::string& text : stop) {
    if (text.empty()) throw UsageError("rollout.stop holds an empty string");
  }
  try {
    sampling(0).validate();
  } catch (const UsageError& error) {
    throw UsageError("rollout.{}", error.what());
  }
}

void bind(RolloutConfig& c, ConfigBinder& b) {
  b.field("max_new_tokens", c.max_new_tokens,
          "Longest answer, in tokens; a longer one is cut there and counts as truncated.");
  b.field("temperature", c.temperature,
          "Sampling temperature; 0 takes the most likely token. Training computes its "
          "log-probabilities at the same.");
  b.field("top_p", c.top_p,
          "Draw from the smallest set of tokens with this much probability; 1 is off. The trainer "
          "cannot reproduce "
          "it: leave it off for training.");
  b.field("top_k", c.top_k,
          "Draw from the k most likely tokens; 0 is off. As top_p, leave it off for training.");
  b.field("min_p", c.min_p,
          "Draw from tokens at least this likely relative to the most likely one; 0 is off. As "
          "top_p, leave it off "
          "for training.");
  b.field("stop", c.stop,
          "Strings that end an answer when they appear in its text. End tokens of the model always "
          "do.");
  b.field(
      "kv_cache_bytes", c.kv_cache_bytes,
      "Memory for keys and values of running sequences; 0 takes what the prompts need, at most "
      "half of what is "
      "free. Too little costs time (sequences are put back and computed again), never an answer.");
  b.field("max_running", c.max_running,
          "Sequences computed at a time; 0 chooses 64 to 512 by the size of the vocabulary. Lower "
          "it when logits of a large vocabulary take too much "
          "memory.");
  b.field("prefill_chunk", c.prefill_chunk,
          "Prompt tokens computed in a step beside the sequences that decode; long prompts are cut "
          "into such chunks.");
  b.field("record_routes", c.record_routes,
          "Record the experts that each token went to, for routing replay in training.");
}

}  // namespace quadrille::rollout
