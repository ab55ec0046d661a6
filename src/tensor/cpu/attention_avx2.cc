#include "tensor/cpu/attention_tile.h"

namespace quadrille::tensor::cpu {

AttentionKernels avx2_attention_kernels() {
  return kKernels;
}

}  // namespace quadrille::tensor::cpu
