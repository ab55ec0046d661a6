// Number of threads the kernels use. One setting for the process: at::set_num_threads and OpenMP
// agree.
#pragma once

namespace quadrille::tensor {

// More than any machine has; OpenMP itself dies of a hundred thousand.
constexpr int kMaxThreads = 1024;

// 0: all cores this process may run on.
void set_threads(int threads);
int threads();

}  // namespace quadrille::tensor
