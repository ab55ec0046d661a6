// A model of each family that is small enough for a test of milliseconds but uses all of its parts,
// with every number fixed by a seed. For the tests of every room above `model` too.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "model/settings.h"
#include "model/transformer.h"
#include "tensor/threads.h"

namespace quadrille::model::testing {

inline constexpr int64_t kTinyVocab = 61;

inline InitConfig tiny(const std::string& family) {
  InitConfig init;
  init.family = family;
  init.vocab = kTinyVocab;
  init.layers = 3;
  init.hidden = 32;
  init.heads = 4;
  init.kv_heads = family == "deepseek_v3" ? 4 : 2;
  init.head_dim = family == "olmoe" ? 8 : 16;
  init.experts = 6;
  init.top_k = 2;
  init.expert_width = 12;
  init.dense_width = 40;
  init.dense_layers = family == "qwen3_moe" || family == "deepseek_v3" ? 1 : 0;
  init.q_lora_rank = 12;
  init.kv_lora_rank = 10;
  init.expert_groups = family == "deepseek_v3" ? 3 : 1;
  init.expert_groups_kept = family == "deepseek_v3" ? 2 : 1;
  init.init_scale = 0.2;
  return init;
}
inline const std::vector<std::string>& families() {
  static const std::vector<std::string> names = {"qwen3_moe",   "qwen2_moe", "olmoe", "mixtral",
                                                 "deepseek_v3", "llama",     "qwen3"};
  return names;
}
// Nothing here is large enough to share out, and threads that wait for each other on a busy machine
// take seconds: it sets one thread.
inline std::unique_ptr<Transformer> make_tiny(const std::string& family,
                                              at::ScalarType dtype = at::kFloat,
                                              uint64_t seed = 7) {
  tensor::set_threads(1);
  const InitConfig init = tiny(family);
  auto model = std::make_unique<Transformer>(make_model_config(init), dtype, at::kCPU);
  initialize_random(*model, seed, init.init_scale);
  return model;
}

}  // namespace quadrille::model::testing
