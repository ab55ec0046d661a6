// What a step gave, on its way to the host. On CPU it is already there; on a device the copies are
// queued behind the step's kernels, and wait() returns when they are done, whatever was queued
// after them.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "tensor/ops.h"

namespace quadrille::rollout {

class Readback {
 public:
  // `sampled` may be empty (a step that drew nothing); routes: one int32 [T, K] per MoE layer, or
  // none.
  void start(const tensor::Sampled& sampled, const std::vector<at::Tensor>& routes_TK);
  void wait();

  // After wait().
  const int64_t* tokens() const { return tokens_.const_data_ptr<int64_t>(); }
  const float* logprobs() const { return logprobs_.const_data_ptr<float>(); }
  const float* sampling_logprobs() const { return sampling_logprobs_.const_data_ptr<float>(); }
  const float* tempered_logprobs() const { return tempered_logprobs_.const_data_ptr<float>(); }
  const std::vector<at::Tensor>& routes_TK() const { return routes_TK_; }

 private:
  at::Tensor tokens_, logprobs_, sampling_logprobs_, tempered_logprobs_;
  std::vector<at::Tensor> routes_TK_;
  std::optional<c10::Event> copied_;
};

}  // namespace quadrille::rollout
