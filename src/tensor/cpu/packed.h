// Weights in the form the matrix products read (gemm.h), kept with the Param until its version
// changes.
//
// Generation multiplies by the same weights at every step, so packing is paid once per policy
// version. The packed copy takes as much memory as the weight. Backward reads the weight itself.
#pragma once

#include <memory>

#include "tensor/cpu/gemm.h"
#include "tensor/param.h"

namespace quadrille::tensor::cpu {

// param.value seen as matrices [count, n, k], each packed for x · matrixᵀ.
class PackedWeight {
 public:
  PackedWeight(const Param& param, int64_t n, Type compute, int threads);
  const float* matrix(int64_t i) const { return data_.get() + i * stride_; }
  bool fits(int64_t n, Type compute) const { return n == n_ && compute == compute_; }

 private:
  struct Free {
    void operator()(float* p) const;
  };
  int64_t n_;
  Type compute_;
  int64_t stride_ = 0;
  std::unique_ptr<float, Free> data_;
};

// The kept copy, made or renewed if need be. Callers hold the pointer while they use it.
std::shared_ptr<const PackedWeight> packed(Param& param, int64_t n, Type compute, int threads);

}  // namespace quadrille::tensor::cpu
