// Log-probabilities of chosen tokens under a model that is only read: the proximal and the
// reference policy.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "learn/microbatch.h"
#include "model/transformer.h"

namespace quadrille::learn {

// One list per sequence, aligned with its positions, at the sequence's temperature. No gradient,
// `budget` tokens a forward pass.
std::vector<std::vector<float>> score(const model::Transformer& model,
                                      std::span<const TrainSequence* const> sequences,
                                      int64_t budget);

}  // namespace quadrille::learn
