// From sequences of any length to forward passes of a bounded size, without changing the loss.
//
// A mini-batch is what one optimizer step sees. Its denominators are counted first, over all of it;
// every token then carries its own weight, and a micro-batch's loss is a plain weighted sum.
// Nothing else divides, so the cut into micro-batches shows in the rounding alone.
//
// Index rule: the hidden state of position p predicts token p + 1. The last token of a sequence is
// never an input.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "model/batch.h"

namespace quadrille::learn {

enum class Aggregation { kTokenMean, kSeqMeanTokenMean, kSeqMeanTokenSum, kSeqMeanTokenSumNorm };

// One sequence as the trainer sees it. `tokens` belongs to the caller.
struct TrainSequence {
  std::span<const int32_t> tokens;
  std::vector<int64_t> positions;  // Of its trained tokens, ascending, each >= 1.
  double temperature = 1;

  int64_t input_tokens() const { return static_cast<int64_t>(tokens.size()) - 1; }
  int64_t trained_tokens() const { return static_cast<int64_t>(positions.size()); }
};

// Denominators of one mini-batch.
struct Counts {
  double trained_tokens = 0;  // N_tok; for weighted examples the sum of the weights.
  int64_t sequences = 0;      // N_seq: those with at least one trained token.
  int64_t input_tokens = 0;   // All tokens that the routers see.
};
Counts count(std::span<const TrainSequence* const> sequences);

// What one trained token of a sequence with `length` of them weighs in the mini-batch's loss.
double token_weight(Aggregation aggregation, int64_t length, const Counts& counts,
                    int64_t norm_length);

// Indices of `sequences` for each micro-batch: at most `budget` input tokens (a longer sequence
// goes alone), one temperature each, sequences without trained tokens left out. First fit over
// falling lengths: a pure function of lengths and temperatures, close to the fewest passes.
std::vector<std::vector<size_t>> pack_micro_batches(std::span<const TrainSequence* const> sequences,
                                                    int64_t budget);

// One forward pass: the packed inputs, which hidden rows to look at, and what they should predict.
struct PackedRows {
  model::Batch batch;
  at::Tensor rows_N;     // int64.
  at::Tensor targets_N;  // int64.
  double temperature = 1;
};
PackedRows pack_rows(std::span<const TrainSequence* const> sequences,
                     std::span<const size_t> chosen, at::Device device);

}  // namespace quadrille::learn
