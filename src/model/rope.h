// Rotary position embedding: frequencies of every scaling type, and the table of cos and sin.
//
// The arithmetic follows the reference step by step in fp32 (docs/models.md, RoPE): one bit in a
// frequency is 0.006 of an angle at position 100,000.
#pragma once

#include <ATen/core/Tensor.h>

#include "model/config.h"
#include "tensor/ops.h"

namespace quadrille::model {

// 1 if scale <= 1, else 0.1 * mscale * ln(scale) + 1.
double yarn_mscale(double scale, double mscale);

struct RopeFrequencies {
  at::Tensor inv_freq;          // fp32 [dim / 2].
  double attention_factor = 1;  // Multiplies cos and sin.
};
RopeFrequencies rope_frequencies(const RopeConfig& rope, int64_t dim);

// For positions 0 .. positions-1.
tensor::RopeTable make_rope_table(const RopeConfig& rope, int64_t dim, int64_t positions,
                                  at::Device device);

}  // namespace quadrille::model
