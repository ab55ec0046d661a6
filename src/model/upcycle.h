// Dense to Mixture-of-Experts without losing what the dense model knows ("sparse upcycling",
// Komatsuzaki et al. 2023; fine-grained splitting after He et al. 2024).
//
// Every feed-forward layer of width F becomes copies * split experts of width F / split: expert c *
// split + s holds slice s of the dense layer, in copy c. A token goes to top_copies copies, whole:
// top_k = top_copies * split. The slices of a copy share one router row, so that they win or lose
// together, and since the chosen weights are normalised to 1 over top_k experts, each slice's
// output is multiplied by `split`. With identical copies the MoE therefore computes the dense
// model's function exactly (to rounding), whatever the router says; training tells the copies
// apart, since each sees other tokens.
#pragma once

#include <cstdint>
#include <memory>

#include "model/transformer.h"

namespace quadrille::model {

struct UpcycleOptions {
  int64_t copies = 4;
  int64_t split = 1;
  int64_t top_copies = 1;
  double router_scale = 0.02;  // Standard deviation of the new router's weights.
  double noise =
      0;  // Noise on each expert's weights, relative to their own deviation; 0: identical copies.
  uint64_t seed = 0;
};

// Shape of the result: llama -> mixtral, qwen3 -> qwen3_moe. Throws ConfigError for another family,
// a part the MoE family does not have (biases, windows that differ by layer), or sizes that do not
// divide.
ModelConfig upcycled_config(const ModelConfig& dense, const UpcycleOptions& options);
std::unique_ptr<Transformer> upcycle(const Transformer& dense, const UpcycleOptions& options);

}  // namespace quadrille::model
