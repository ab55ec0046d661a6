#include "tensor/cpu/pointwise_rows.h"

namespace quadrille::tensor::cpu {

PointwiseKernels generic_pointwise_kernels() {
  return kernels();
}

}  // namespace quadrille::tensor::cpu
