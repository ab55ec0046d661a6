// Looking at tensors as the kernels want them: raw pointers of a checked dtype, on the CPU,
// contiguous.
#pragma once

#include <ATen/core/Tensor.h>

#include <type_traits>
#include <utility>

#include "base/error.h"
#include "tensor/cpu/bf16.h"
#include "tensor/cpu/tensors.h"

namespace quadrille::tensor {

// Pointer to T (float, Bf16, int32_t, int64_t); null for an undefined tensor.
template <class T>
T* data(const at::Tensor& x) {
  if (!x.defined()) return nullptr;
  using Plain = std::remove_const_t<T>;
  if constexpr (std::is_same_v<Plain, cpu::Bf16>) {
    QD_CHECK(x.scalar_type() == at::kBFloat16 && x.is_contiguous(), "needs contiguous bfloat16");
    return reinterpret_cast<T*>(x.data_ptr());
  } else {
    QD_CHECK(x.scalar_type() == c10::CppTypeToScalarType<Plain>::value && x.is_contiguous(),
             "needs a contiguous tensor of {} bytes a number, got {}", sizeof(Plain), x.toString());
    return static_cast<T*>(x.data_ptr());
  }
}

// Calls f with a value of the compute dtype's type: by_dtype(x, [&](auto t) { using T =
// decltype(t); ... }).
template <class F>
decltype(auto) by_dtype(at::ScalarType dtype, F&& f) {
  QD_CHECK(dtype == at::kFloat || dtype == at::kBFloat16, "compute dtype is {}, need fp32 or bf16",
           c10::toString(dtype));
  if (dtype == at::kFloat) return std::forward<F>(f)(float{});
  return std::forward<F>(f)(cpu::Bf16{});
}

}  // namespace quadrille::tensor
