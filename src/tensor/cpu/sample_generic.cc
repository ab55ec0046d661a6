#include "tensor/cpu/sample_rows.h"

namespace quadrille::tensor::cpu {

SampleKernels generic_sample_kernels() {
  return kSampleKernels;
}

}  // namespace quadrille::tensor::cpu
