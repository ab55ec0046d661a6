#include "model/batch.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "base/error.h"

namespace quadrille::model {

Batch pack_sequences(const std::vector<std::vector<int32_t>>& sequences, at::Device device) {
  int64_t total = 0;
  for (const auto& sequence : sequences) total += static_cast<int64_t>(sequence.size());
  QD_CHECK(total <= INT32_MAX, "{} tokens in one batch", total);
  at::Tensor tokens = at::empty({total}, at::TensorOptions().dtype(at::kLong));
  at::Tensor positions = at::empty({total}, at::TensorOptions().dtype(at::kLong));
  at::Tensor cu =
      at::empty({static_cast<int64_t>(sequences.size()) + 1}, at::TensorOptions().dtype(at::kInt));
  auto* token = tokens.mutable_data_ptr<int64_t>();
  auto* position = positions.mutable_data_ptr<int64_t>();
  auto* end = cu.mutable_data_ptr<int32_t>();

  Batch batch;
  int32_t at = 0;
  *end++ = 0;
  for (const auto& sequence : sequences) {
    for (size_t i = 0; i < sequence.size(); ++i) {
      token[at] = sequence[i];
      position[at++] = static_cast<int64_t>(i);
    }
    *end++ = at;
    batch.max_seqlen = std::max(batch.max_seqlen, static_cast<int64_t>(sequence.size()));
  }
  batch.tokens_T = tokens.to(device);
  batch.positions_T = positions.to(device);
  batch.cu_seqlens_S1 = cu.to(device);
  return batch;
}

}  // namespace quadrille::model
