// The index tensors of one step, in one block of memory: written by the host with plain stores, and
// on a device moved there in one copy. While sizes stay the same (decoding does for many steps) the
// tensors are the same objects over and over, so a step allocates nothing.
//
// Shape letters as in tensor/ops.h; U rows of the hidden states that tokens are drawn from, B draws
// (a prompt's last row serves all samples of its group), N inputs that only the device knows yet.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <vector>

#include "model/batch.h"
#include "rollout/scheduler.h"
#include "tensor/ops.h"

namespace quadrille::rollout {

struct Draw {
  Sequence* sequence = nullptr;
  int64_t row = 0;  // Which of the U rows.
};

class StepBuffers {
 public:
  explicit StepBuffers(at::Device device) : device_(device) {}

  // `draws` as the plan asks for, siblings included; `draw_rows`: the hidden row behind each of the
  // U.
  void build(const StepPlan& plan, const std::vector<int64_t>& draw_rows,
             const std::vector<Draw>& draws, tensor::KvCache* cache);

  // Valid until the next build. tokens_T holds 0 where the host does not know the token yet.
  model::Batch batch;
  tensor::SamplingParams params;
  at::Tensor rows_U;    // int64.
  at::Tensor repeat_B;  // int64, into U.
  at::Tensor into_N;    // int64: rows of tokens_T to fill in ...
  at::Tensor from_N;    // int64: ... from these rows of the previous step's sampled tokens.
  // The N inputs are all rows of the batch, in order: the sampled tokens can be used as they are.
  bool continues = false;

 private:
  struct Sizes {
    int64_t tokens = 0, sequences = 0, table_width = 0, rows = 0, draws = 0, unknown = 0;
    bool operator==(const Sizes&) const = default;
  };
  struct Host;  // Pointers into the block.
  Host lay_out(const Sizes& sizes);

  at::Device device_;
  at::Tensor host_, block_;  // Bytes; the same tensor on CPU.
  Sizes sizes_;
  int64_t bytes_ = 0;  // Of the block, in use.
  bool laid_out_ = false;
  model::PagedContext paged_;
  std::vector<int64_t> into_, from_;
};

}  // namespace quadrille::rollout
