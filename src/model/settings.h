// The [model] section of a configuration: a folder to load, or a shape to make from random numbers.
#pragma once

#include <cstdint>
#include <string>

#include "base/config.h"
#include "model/config.h"

namespace quadrille::model {

// A small model of any family, for tests, demos and pretraining. 0 means: follow from the others.
struct InitConfig {
  std::string family = "qwen3_moe";
  int64_t vocab = 0;  // 0: the tokenizer's size; the caller fills it in.
  int64_t layers = 4;
  int64_t hidden = 128;
  int64_t heads = 4;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t dense_width = 0;
  int64_t dense_layers = 0;
  int64_t experts = 8;
  int64_t top_k = 2;
  int64_t expert_width = 0;
  int64_t shared_width = 0;
  int64_t window = 0;
  int64_t max_positions = 4096;
  double rope_theta = 10000;
  double norm_eps = 1e-6;
  double init_scale = 0.02;
  bool tied = false;
  bool norm_topk = true;
  int64_t q_lora_rank = 0;
  int64_t kv_lora_rank = 0;
  int64_t qk_rope_dim = 0;
  int64_t expert_groups = 1;
  int64_t expert_groups_kept = 1;
};

struct ModelSettings {
  std::string path;
  std::string init;
  std::string tokenizer;
  std::string dtype = "auto";
  std::string router_dtype = "family";
  InitConfig shape;
};

void bind(ModelSettings& settings, ConfigBinder& binder);

// Valid for its family, or ConfigError. Needs `vocab`.
ModelConfig make_model_config(const InitConfig& init);

}  // namespace quadrille::model
