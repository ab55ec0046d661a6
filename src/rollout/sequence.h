// A request being answered: one Group, with one Sequence a sample.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/sample.h"
#include "rollout/request.h"
#include "rollout/stop_text.h"

namespace quadrille::rollout {

// Turns the tokens of one answer into text as they come. StreamDecoder behind it, or a test's own.
class TokenText {
 public:
  virtual ~TokenText() = default;
  virtual std::string push(int32_t token) = 0;
  virtual std::string finish() = 0;  // What was held back; called once at the end.
};

struct Group;

enum class SequenceState {
  kHeld,  // No pages: its first token comes from the prompt that sample 0 computes; or nothing is
          // left to draw.
  kWaiting,  // No pages: in the queue.
  kRunning,  // Has pages.
  kDone,
};

struct Sequence {
  Group* group = nullptr;
  int64_t index = 0;  // Which sample of the group.
  int64_t order = 0;  // Age: smaller is older. Unique in the engine.
  uint64_t seed = 0;
  SequenceState state = SequenceState::kHeld;

  std::vector<int32_t> pages;  // Block table.
  int64_t computed = 0;   // Positions whose keys and values are in the pages (or on their way).
  int64_t unread = 0;     // Tokens drawn on the device that the host has not read yet.
  int64_t drawn_row = 0;  // Row of the last draw in its step's sampled tokens.

  std::vector<int32_t> tokens;  // Drawn and read.
  std::vector<float> logprobs, sampling_logprobs, tempered_logprobs;
  std::vector<VersionSpan> versions;
  std::vector<int32_t> routes;  // Of positions behind the prompt.
  std::unique_ptr<TokenText> decoder;
  StopText text;

  int64_t drawn() const { return static_cast<int64_t>(tokens.size()) + unread; }
  int64_t length() const;  // Prompt and all that was drawn.
  bool wants_draws() const;
};

struct Group {
  Request request;
  std::vector<Sequence> samples;  // Never resized: sequences are named by address.
  // The prompt's full pages, held once more for samples that start (or start again) later.
  std::vector<int32_t> prefix;
  int64_t running = 0;     // Samples with pages.
  int64_t unfinished = 0;  // Samples not done.
  int64_t unread = 0;      // Sum over the samples.
  bool drawn = false;      // The prompt is computed and every sample has its first token.
  std::vector<int32_t> prompt_routes;

  int64_t prompt_tokens() const { return static_cast<int64_t>(request.prompt.size()); }
};

inline int64_t Sequence::length() const {
  return group->prompt_tokens() + drawn();
}
inline bool Sequence::wants_draws() const {
  return drawn() < group->request.max_new_tokens;
}

}  // namespace quadrille::rollout
