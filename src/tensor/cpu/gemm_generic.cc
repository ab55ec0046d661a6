#include <utility>

#include "tensor/cpu/gemm_pack.h"
#include "tensor/cpu/gemm_tile.h"

namespace quadrille::tensor::cpu {

GemmKernels generic_gemm_kernels() {
  constexpr int kRows = 4;
  constexpr int kVecs = 2;
  return {kRows, &run_tile<MultiplyAdd, kRows, kVecs>, nullptr, &pack_b_typed, &pack_a_typed};
}

}  // namespace quadrille::tensor::cpu
