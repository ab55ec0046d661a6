// What generation is asked for and what it gives back.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/sample.h"

namespace quadrille::rollout {

struct SamplingOptions {
  double temperature = 1;  // 0: the most likely token, lowest id on a tie.
  double top_p = 1;        // 1: off.
  int64_t top_k = 0;       // 0: off.
  double min_p = 0;        // 0: off.
  // Sample i of the request draws with mix_seed(seed, i), its token j with counter j: an answer is
  // a pure function of (weights, prompt, these options, i), whatever else the engine is doing.
  uint64_t seed = 0;

  // True if the distribution drawn from is the model's own (temperature 1, no filter).
  bool plain() const { return temperature == 1 && top_p == 1 && top_k == 0 && min_p == 0; }
  // Throws UsageError naming the option.
  void validate() const;
};

struct Request {
  uint64_t id = 0;
  std::vector<int32_t> prompt;
  int64_t samples = 1;  // Answers wanted; the prompt is computed once for all of them.
  SamplingOptions sampling;
  std::vector<int32_t> stop_tokens;  // Any of them ends an answer and stays in it.
  std::vector<std::string>
      stop_strings;  // End an answer when they appear in its text; need a tokenizer.
  int64_t max_new_tokens = 128;
  bool record_routes = false;
};

// One answer. Every per-token list has one entry for each of `tokens`.
struct Completion {
  uint64_t request_id = 0;
  int64_t sample = 0;           // 0 .. samples-1.
  uint64_t seed = 0;            // The sample's own: mix_seed(request seed, sample).
  std::vector<int32_t> tokens;  // All that was sampled: end token and stop string included.
  std::vector<float> logprobs;  // Temperature 1, no filter.
  std::vector<float> sampling_logprobs;  // Of the distribution drawn from; 0 when greedy.
  std::vector<float> tempered_logprobs;  // Temperature only: what a trainer can reproduce.
  std::vector<VersionSpan> versions;     // In positions of `tokens`.
  Routing routing;                       // Of prompt and answer; see base/sample.h.
  FinishReason finish = FinishReason::kAborted;
  std::string
      text;  // Special tokens left out, cut before a stop string. Empty without a tokenizer.
};

// The record that crosses rooms: prompt and answer in one list, every sampled token trained on (the
// end token too), log-probs at the sampling temperature, NaN over the prompt. group_id is the
// request's id; prompt_index and reward are left for the caller. An answer without any token
// (aborted before its first) has none to train on and is not a Sample: the caller drops it.
Sample to_sample(const Request& request, const Completion& completion);

}  // namespace quadrille::rollout
