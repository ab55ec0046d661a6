#include "rollout/score.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "tensor/ops.h"

namespace quadrille::rollout {
namespace {

// Sequences [begin, end) as one batch.
void score_batch(const model::Transformer& model,
                 const std::vector<std::vector<int32_t>>& sequences, size_t begin, size_t end,
                 std::vector<std::vector<float>>& out) {
  // Row p predicts token p + 1. The last token predicts nothing known, so it is no input.
  std::vector<std::vector<int32_t>> inputs;
  std::vector<int64_t> targets;
  for (size_t s = begin; s < end; ++s) {
    const std::vector<int32_t>& sequence = sequences[s];
    out[s].assign(sequence.size(), std::numeric_limits<float>::quiet_NaN());
    if (sequence.size() == 1) continue;
    inputs.emplace_back(sequence.begin(), sequence.end() - 1);
    targets.insert(targets.end(), sequence.begin() + 1, sequence.end());
  }
  if (inputs.empty()) return;
  const auto index = at::TensorOptions().dtype(at::kLong).device(model.device());
  const at::Tensor hidden_TD = model.forward(model::pack_sequences(inputs, model.device()));
  const tensor::TokenLogprobs scored = tensor::token_logprobs(
      hidden_TD, model.head(), at::tensor(targets, index), /*temperature=*/1.0,
      /*want_entropy=*/false);
  const at::Tensor logprobs = scored.logprobs_N.to(at::kCPU).contiguous();
  const float* next = logprobs.const_data_ptr<float>();
  for (size_t s = begin; s < end; ++s) {
    std::copy(next, next + sequences[s].size() - 1, out[s].begin() + 1);
    next += sequences[s].size() - 1;
  }
}

}  // namespace

void check_scorable(const model::Transformer& model, const std::vector<int32_t>& sequence) {
  const model::ModelConfig& config = model.config();
  if (sequence.empty()) throw UsageError("there are no tokens to score");
  if (config.max_positions > 0 &&
      static_cast<int64_t>(sequence.size()) > config.max_positions + 1) {
    throw UsageError("{} tokens are too long, the model takes {} positions", sequence.size(),
                     config.max_positions);
  }
  for (const int32_t token : sequence) {
    if (token < 0 || token >= config.vocab) {
      throw UsageError("token {} is outside the vocabulary of {}", token, config.vocab);
    }
  }
}

std::vector<std::vector<float>> score_tokens(const model::Transformer& model,
                                             const std::vector<std::vector<int32_t>>& sequences,
                                             const ScoreOptions& options) {
  const at::NoGradGuard no_grad;
  for (const std::vector<int32_t>& sequence : sequences) check_scorable(model, sequence);
  std::vector<std::vector<float>> out(sequences.size());
  int64_t done = 0;
  for (size_t begin = 0; begin < sequences.size();) {
    size_t end = begin;
    int64_t tokens = 0;
    do {
      tokens += static_cast<int64_t>(sequences[end].size());
      ++end;
    } while (end < sequences.size() &&
             tokens + static_cast<int64_t>(sequences[end].size()) <= options.batch_tokens);
    score_batch(model, sequences, begin, end, out);
    begin = end;
    done += tokens;
    if (options.progress) options.progress(done);
  }
  return out;
}

}  // namespace quadrille::rollout
