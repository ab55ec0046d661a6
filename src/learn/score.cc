#include "learn/score.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/index_select.h>
#include <c10/core/GradMode.h>

#include "tensor/ops.h"

namespace quadrille::learn {

std::vector<std::vector<float>> score(const model::Transformer& model,
                                      std::span<const TrainSequence* const> sequences,
                                      int64_t budget) {
  const c10::NoGradGuard no_grad;
  std::vector<std::vector<float>> out(sequences.size());
  for (const std::vector<size_t>& chosen : pack_micro_batches(sequences, budget)) {
    const PackedRows packed = pack_rows(sequences, chosen, model.device());
    const at::Tensor hidden_ND = model.forward(packed.batch).index_select(0, packed.rows_N);
    const at::Tensor logprobs_N =
        tensor::token_logprobs(hidden_ND, model.head(), packed.targets_N, packed.temperature, false)
            .logprobs_N.cpu()
            .contiguous();
    const float* next = logprobs_N.const_data_ptr<float>();
    for (const size_t i : chosen) {
      out[i].assign(next, next + sequences[i]->trained_tokens());
      next += sequences[i]->trained_tokens();
    }
  }
  return out;
}

}  // namespace quadrille::learn
