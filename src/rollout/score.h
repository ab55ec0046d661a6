// Log-probabilities of given tokens, at temperature 1 and in fp32.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "model/transformer.h"

namespace quadrille::rollout {

struct ScoreOptions {
  // Sequences are packed into batches of about this many tokens; one that is longer stands alone.
  int64_t batch_tokens = 4096;
  std::function<void(int64_t tokens)> progress;  // Told how many tokens are done.
};

// Entry i of a sequence's list is ln p(token i | tokens before it); the first is NaN, since nothing
// stands before it. Throws UsageError for an empty sequence, an id outside the vocabulary or one
// too long for the model.
std::vector<std::vector<float>> score_tokens(const model::Transformer& model,
                                             const std::vector<std::vector<int32_t>>& sequences,
                                             const ScoreOptions& options = {});
// What score_tokens would throw for this one, so that a caller can say where it came from.
void check_scorable(const model::Transformer& model, const std::vector<int32_t>& sequence);

}  // namespace quadrille::rollout
