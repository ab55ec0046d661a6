// A weight: the value the kernels compute with, and the fp32 gradient they add to.
//
// Autograd does not know weights. The functions of ops.h take a ParamPtr, and their backward adds
// straight into `grad` in fp32, whatever the compute dtype: micro-batches accumulate without a bf16
// sum, no second copy of a gradient exists, and a frozen model (the reference policy) is one whose
// `grad` is undefined.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>

namespace quadrille::tensor {

struct Param {
  std::string name;  // As in Quadrille's own layout, e.g. "layers.3.moe.gate_up".
  at::Tensor value;  // Compute dtype, contiguous, requires_grad false.
  at::Tensor grad;   // fp32, same shape; undefined: frozen, or not training.
  // Whoever writes into `value` calls changed(): kernels keep packed copies by this number.
  uint64_t version = 0;
  void changed() { ++version; }

  // Room for the backend's packed copy of `value` (tensor/cpu/packed.h); not part of any state.
  std::shared_ptr<void> packed;
  uint64_t packed_version = UINT64_MAX;
};
using ParamPtr = std::shared_ptr<Param>;

}  // namespace quadrille::tensor
