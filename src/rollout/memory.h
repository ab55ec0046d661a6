// How much memory a cache may take when nobody says.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace quadrille::rollout {

// On CPU: what the machine has available or what the control group still allows, whichever is less.
// On a device: its free memory.
int64_t free_memory_bytes(at::Device device);

}  // namespace quadrille::rollout
