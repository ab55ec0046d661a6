// From tensors to what the kernels take, and the few things every function of ops.h does first.
#pragma once

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include "base/error.h"
#include "tensor/cpu/gemm.h"

namespace quadrille::tensor::cpu {

inline Type type_of(at::ScalarType dtype) {
  QD_CHECK(dtype == at::kFloat || dtype == at::kBFloat16, "dtype must be fp32 or bf16, not {}",
           c10::toString(dtype));
  return dtype == at::kFloat ? Type::kFp32 : Type::kBf16;
}
inline Type type_of(const at::Tensor& t) {
  return type_of(t.scalar_type());
}

// Uninitialised; without the dispatcher, which costs as much as a small matrix product.
inline at::Tensor empty(at::IntArrayRef sizes, at::ScalarType dtype) {
  return at::Tensor(at::detail::empty_cpu(sizes, dtype));
}

// The tensor itself where it is plain, a contiguous copy else. Kernels run on the CPU only so far.
inline at::Tensor plain(const at::Tensor& t) {
  QD_CHECK(t.device().is_cpu(), "tensor is on {}", t.device().str());
  if (t.is_contiguous()) return t;
  const at::NoGradGuard no_grad;
  return t.contiguous();
}

}  // namespace quadrille::tensor::cpu
