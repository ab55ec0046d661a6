// The one record that crosses all rooms: an answer of the policy with everything known about it.
//
// rollout fills tokens, log-probs, versions and routes; reward fills the reward; loop groups and
// ages it; learn reads it. Invariants are checked by validate().
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <vector>

namespace quadrille {

enum class FinishReason { kEos, kStopString, kLength, kAborted };

// "stop" for the first two, "length", "aborted": what public JSONL says.
const char* public_name(FinishReason reason);

// Policy version that sampled tokens [begin, end).
struct VersionSpan {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t version = 0;
};

// Expert ids the router chose, for input positions 0 .. tokens-2 (the last token is never an
// input). ids is [positions, moe_layers, top_k] row-major, in the order the router gave. Empty: not
// recorded.
struct Routing {
  int64_t moe_layers = 0;
  int64_t top_k = 0;
  std::vector<int32_t> ids;
};

struct Sample {
  uint64_t group_id = 0;           // Unique per prompt instance, never reused.
  int64_t prompt_index = 0;        // Row of the data set.
  std::vector<int32_t> tokens;     // Prompt and response, no padding.
  int64_t prompt_tokens = 0;       // First response position.
  std::vector<uint8_t> loss_mask;  // [tokens]: 1 where the policy sampled it and it is trained on.
  std::vector<float>
      logprobs;  // [tokens]: behaviour policy at the sampling temperature; NaN where mask 0.
  std::vector<VersionSpan> versions;  // Cover all response tokens, no gap, no overlap.
  Routing routing;
  float reward = std::numeric_limits<float>::quiet_NaN();  // NaN: could not be scored.
  std::map<std::string, float> reward_parts;
  FinishReason finish = FinishReason::kLength;
  float temperature = 1.0F;
  uint64_t seed = 0;
  std::string text;  // Decoded response, special tokens left out.

  int64_t response_tokens() const { return static_cast<int64_t>(tokens.size()) - prompt_tokens; }
  // Throws InternalError naming the field that breaks an invariant: sizes, mask over the prompt, a
  // trained token whose log-prob is missing, not finite or positive, version spans with a gap.
  void validate() const;
};

}  // namespace quadrille
