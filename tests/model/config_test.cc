#include "model/config.h"

#include "base/log.h"
#include "model/config_json.h"
#include "model/families.h"
#include "support.h"

namespace quadrille::model {
namespace {

using namespace testing;
using nlohmann::json;

json golden_config(const std::string& name) {
  return read_json(goldens() / "parity" / name / "config.json");
}

ModelConfig read(const json& file, const HasTensor& has = {}) {
  return read_config(ConfigJson(file, "test.json"), has);
}

TEST(ModelConfig, WhatIsWrittenReadsBackTheSame) {
  for (const auto& name : golden_cases()) {
    ModelConfig config = read_model_config(goldens() / "parity" / name);
    config.prediction_layers = 0;  // Never written.
    EXPECT_EQ(read(write_config(config)), config) << name;
  }
  for (const auto& family : families()) {
    const ModelConfig config = make_model_config(tiny(family));
    EXPECT_EQ(read(write_config(config)), config) << family;
  }
}

// Keys that change the numbers: missing is an error that names the key and the file.
TEST(ModelConfig, MissingNumbersAreNamed) {
  struct Case {
    const char* golden;
    std::vector<const char*> keys;
  };
  const std::vector<Case> cases = {
      {"qwen3_moe_base",
       {"model_type", "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads",
        "rms_norm_eps", "max_position_embeddings", "num_experts_per_tok", "moe_intermediate_size",
        "norm_topk_prob"}},
      {"qwen3_moe_dense_mix", {"intermediate_size"}},
      {"mixtral_base", {"intermediate_size", "num_experts_per_tok"}},
      {"olmoe_base", {"norm_topk_prob", "num_experts", "intermediate_size"}},
      {"qwen2_moe_base", {"shared_expert_intermediate_size"}},
      {"qwen2_moe_window", {"max_window_layers"}},
      {"qwen3_window_sharded_bf16", {"max_window_layers"}},
      {"deepseek_v3_base",
       {"q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim",
        "n_routed_experts", "n_group", "topk_group", "routed_scaling_factor", "norm_topk_prob",
        "first_k_dense_replace", "moe_intermediate_size"}},
      {"llama_llama3_rope", {"intermediate_size"}},
  };
  for (const auto& c : cases) {
    for (const char* key : c.keys) {
      json file = golden_config(c.golden);
      ASSERT_TRUE(file.contains(key)) << c.golden << " " << key;
      file.erase(key);
      const std::string said = error_of<FormatError>([&] { read(file); });
      EXPECT_CONTAINS(said, "test.json");
      EXPECT_CONTAINS(said, key);
    }
  }
}

TEST(ModelConfig, RefusesWhatItCannotCompute) {
  struct Case {
    const char* golden;
    json patch;
    const char* said;
  };
  const std::vector<Case> cases = {
      {"qwen3_moe_base",
       {{"quantization_config", {{"quant_method", "fp8"}}}},
       "quantization_config"},
      {"qwen3_moe_base", {{"hidden_act", "gelu"}}, "hidden_act 'gelu'"},
      {"qwen3_moe_base", {{"attention_dropout", 0.1}}, "attention_dropout"},
      {"qwen3_moe_base",
       {{"model_type", "gpt2"}},
       "model_type 'gpt2' is not supported (known: qwen3_moe"},
      {"qwen3_moe_base",
       {{"rope_parameters", {{"rope_type", "dynamic"}, {"rope_theta", 1e4}}}},
       "rope_type 'dynamic'"},
      {"qwen3_moe_base",
       {{"rope_parameters", {{"rope_type", "longrope"}, {"rope_theta", 1e4}}}},
       "longrope"},
      {"qwen3_moe_base",
       {{"rope_parameters", {{"full_attention", {{"rope_type", "default"}}}}}},
       "layer type"},
      {"qwen3_moe_base",
       {{"rope_parameters", {{"rope_type", "yarn"}, {"rope_theta", 1e4}}}},
       "rope_parameters.factor"},
      {"qwen3_moe_base", {{"partial_rotary_factor", 0.5}}, "partial_rotary_factor"},
      {"qwen3_moe_base", {{"num_experts_per_tok", 9}}, "top_k 9 is more than the 5 experts"},
      {"qwen3_moe_base",
       {{"num_key_value_heads", 3}},
       "4 query heads cannot be shared out among 3"},
      {"qwen3_moe_base", {{"head_dim", 15}}, "15"},
      {"qwen3_moe_base", {{"head_dim", "sixteen"}}, "head_dim is \"sixteen\", not an integer"},
      {"qwen3_moe_base", {{"hidden_size", -1}}, "hidden_size is -1"},
      {"qwen3_moe_base", {{"num_hidden_layers", 1000000000}}, "num_hidden_layers"},
      {"qwen3_moe_base", {{"vocab_size", 9000000000000LL}}, "vocab"},
      {"qwen3_moe_base", {{"decoder_sparse_step", 0}}, "decoder_sparse_step"},
      {"qwen3_layer_types",
       {{"layer_types", {"full_attention"}}},
       "layer_types has 1 entries for 3 layers"},
      {"qwen3_layer_types",
       {{"layer_types", {"chunked", "full_attention", "full_attention"}}},
       "'chunked'"},
      {"qwen3_layer_types", {{"use_sliding_window", false}}, "no sliding_window is in use"},
      {"mixtral_base", {{"router_jitter_noise", 0.1}}, "router_jitter_noise"},
      {"olmoe_base", {{"head_dim", 16}}, "head_dim 16 times 4 heads must be hidden_size 32"},
      {"deepseek_v3_base", {{"scoring_func", "softmax"}}, "scoring_func"},
      {"deepseek_v3_base", {{"topk_method", "greedy"}}, "topk_method"},
      {"deepseek_v3_base", {{"n_group", 5}}, "12 experts cannot be split into 5 groups"},
      {"deepseek_v3_base", {{"topk_group", 1}, {"num_experts_per_tok", 4}}, "top_k 4"},
      {"deepseek_v3_base", {{"num_key_value_heads", 2}}, "latent attention"},
      {"llama_llama3_rope",
       {{"rope_parameters", {{"rope_type", "llama3"}, {"factor", 8}}}},
       "low_freq_factor"},
  };
  for (const auto& c : cases) {
    json file = golden_config(c.golden);
    file.update(c.patch);
    const std::string said = error_of<FormatError>([&] { read(file); });
    EXPECT_CONTAINS(said, c.said);
    EXPECT_CONTAINS(said, "test.json");
  }
}

TEST(ModelConfig, HeadsAndExpertsUnderAllTheirNames) {
  json file = golden_config("qwen3_moe_base");
  EXPECT_EQ(read(file).head_dim, 16);
  EXPECT_EQ(read(file).experts, 5);
  file["head_dim"] = nullptr;
  EXPECT_EQ(read(file).head_dim, 8);
  file.erase("head_dim");
  EXPECT_EQ(read(file).head_dim, 8);
  file["hidden_size"] = 33;
  EXPECT_CONTAINS(error_of<FormatError>([&] { read(file); }), "head_dim is missing");

  file = golden_config("qwen3_moe_base");
  file.erase("num_experts");
  file.erase("num_local_experts");
  EXPECT_CONTAINS(error_of<FormatError>([&] { read(file); }), "num_experts");
  for (const char* key : {"num_experts", "num_local_experts", "n_routed_experts"}) {
    json named = file;
    named[key] = 9;
    EXPECT_EQ(read(named).experts, 9) << key;
  }

  file = golden_config("olmoe_base");
  EXPECT_EQ(read(file).kv_heads, 4);  // null in the file.
  file.erase("num_key_value_heads");
  EXPECT_EQ(read(file).kv_heads, 4);
}

TEST(ModelConfig, RopeInEveryPlace) {
  json file = golden_config("qwen3_moe_base");
  file.erase("rope_parameters");
  file["rope_theta"] = 5e5;
  EXPECT_EQ(read(file).rope.theta, 5e5);
  EXPECT_EQ(read(file).rope.type, "default");
  file["rope_scaling"] = nullptr;
  EXPECT_EQ(read(file).rope.type, "default");
  file["rope_scaling"] = {{"type", "linear"}, {"factor", 3.0}};
  EXPECT_EQ(read(file).rope.type, "linear");
  EXPECT_EQ(read(file).rope.factor, 3.0);
  EXPECT_EQ(read(file).rope.theta, 5e5);
  // With both, transformers takes the whole of the old place, unless that is null or empty.
  file["rope_parameters"] = {{"rope_type", "yarn"}, {"rope_theta", 7e5}, {"factor", 2.0}};
  EXPECT_EQ(read(file).rope.type, "linear");
  EXPECT_EQ(read(file).rope.factor, 3.0);
  EXPECT_EQ(read(file).rope.theta, 5e5);
  file["rope_scaling"] = nullptr;
  EXPECT_EQ(read(file).rope.type, "yarn");
  file["rope_scaling"] = json::object();
  EXPECT_EQ(read(file).rope.type, "yarn");
  EXPECT_EQ(read(file).rope.theta, 7e5);
  EXPECT_EQ(read(file).rope.original_max_positions, 128);  // max_position_embeddings.
  file["rope_parameters"]["original_max_position_embeddings"] = 32;
  EXPECT_EQ(read(file).rope.original_max_positions, 32);
  file["original_max_position_embeddings"] = 64;
  EXPECT_EQ(read(file).rope.original_max_positions, 64);
  file["rope_parameters"]["factor"] = nullptr;
  EXPECT_EQ(read(file).rope.factor, 2.0);  // 128 / 64.

  // No theta anywhere: the family's default (and a warning).
  set_log_level(LogLevel::kError);
  file = golden_config("qwen3_moe_base");
  file.erase("rope_parameters");
  EXPECT_EQ(read(file).rope.theta, 10000);
  file = golden_config("mixtral_base");
  file.erase("rope_parameters");
  EXPECT_EQ(read(file).rope.theta, 1e6);
  set_log_level(LogLevel::kInfo);
}

std::vector<int64_t> windows(const ModelConfig& config) {
  std::vector<int64_t> result;
  for (const auto& layer : config.layers) result.push_back(layer.window);
  return result;
}

TEST(ModelConfig, WindowsByFamily) {
  using Windows = std::vector<int64_t>;
  json file = golden_config("qwen3_moe_fused_window");
  EXPECT_EQ(windows(read(file)), (Windows{7, 7}));
  file["use_sliding_window"] = false;
  EXPECT_EQ(windows(read(file)), (Windows{0, 0}));
  file.erase("use_sliding_window");
  EXPECT_EQ(windows(read(file)), (Windows{0, 0}));

  file = golden_config("mixtral_window_sharded");
  EXPECT_EQ(windows(read(file)), (Windows{6, 6}));
  file["sliding_window"] = nullptr;
  EXPECT_EQ(windows(read(file)), (Windows{0, 0}));
  file["sliding_window"] = 0;
  EXPECT_EQ(windows(read(file)), (Windows{0, 0}));

  // Qwen2-MoE: even layers below max_window_layers. Qwen3: layers from max_window_layers on.
  EXPECT_EQ(windows(read(golden_config("qwen2_moe_window"))), (Windows{6, 0, 6, 0, 0}));
  EXPECT_EQ(windows(read(golden_config("qwen3_window_sharded_bf16"))), (Windows{0, 5, 5}));
  EXPECT_EQ(windows(read(golden_config("qwen3_layer_types"))), (Windows{6, 0, 6}));
}

TEST(ModelConfig, WhichLayersAreMixtures) {
  const ModelConfig qwen = read(golden_config("qwen3_moe_dense_mix"));
  EXPECT_EQ(qwen.moe_layers(), 1);
  EXPECT_EQ(qwen.moe_index(), (std::vector<int64_t>{-1, -1, -1, 0}));
  const ModelConfig deepseek = read(golden_config("deepseek_v3_base"));
  EXPECT_EQ(deepseek.moe_index(), (std::vector<int64_t>{-1, 0, 1}));
  EXPECT_TRUE(deepseek.router_fp32);
  EXPECT_EQ(deepseek.key_dim(), 16);
  EXPECT_EQ(deepseek.value_dim(), 6);
}

TEST(ModelConfig, BiasFlagsFallBackToTheTensors) {
  const auto holds = [](std::string_view wanted) {
    return HasTensor([wanted](std::string_view name) { return name == wanted; });
  };
  const auto q_bias = holds("model.layers.0.self_attn.q_proj.bias");
  const auto nothing = holds("");
  json file = golden_config("qwen2_moe_base");
  ASSERT_FALSE(file.contains("qkv_bias"));
  EXPECT_TRUE(read(file, q_bias).qkv_bias);
  EXPECT_FALSE(read(file, nothing).qkv_bias);
  EXPECT_TRUE(
      read(file).qkv_bias);  // Without weights to look at, what the family was released with.
  EXPECT_FALSE(read(file).o_bias);
  file["qkv_bias"] = false;
  EXPECT_FALSE(read(file, q_bias).qkv_bias);

  file = golden_config("llama_tied_biases_old_config");
  file.erase("attention_bias");
  file.erase("mlp_bias");
  EXPECT_FALSE(read(file).qkv_bias);
  EXPECT_TRUE(read(file, q_bias).o_bias);
  EXPECT_TRUE(read(file, holds("model.layers.0.mlp.gate_proj.bias")).mlp_bias);
}

TEST(ModelConfig, SkipsOnlyWhatTheRulesName) {
  ModelConfig config = read(golden_config("deepseek_v3_yarn"));
  ASSERT_EQ(config.prediction_layers, 1);
  ASSERT_EQ(config.layers.size(), 2U);
  EXPECT_TRUE(is_skipped(config, "model.layers.2.eh_proj.weight"));
  EXPECT_FALSE(is_skipped(config, "model.layers.3.eh_proj.weight"));
  EXPECT_FALSE(is_skipped(config, "model.layers.1.eh_proj.weight"));
  EXPECT_FALSE(is_skipped(config, "model.layers.2"));
  EXPECT_FALSE(is_skipped(config, "model.layers.x.weight"));
  EXPECT_TRUE(is_skipped(config, "model.layers.0.self_attn.rotary_emb.inv_freq"));
  config.prediction_layers = 0;
  EXPECT_FALSE(is_skipped(config, "model.layers.2.eh_proj.weight"));
}

TEST(ModelConfig, DuplicateKeysAndBrokenJsonAreErrors) {
  TempFolder temp;
  const auto path = temp.path() / "config.json";
  for (const auto& [text, said] : std::vector<std::pair<std::string, std::string>>{
           {R"({"hidden_size": 1, "hidden_size": 2})", "'hidden_size' stands twice"},
           {R"({"a": {"b": 1, "b": 2}})", "'b' stands twice"},
           {R"({"a": 1)", "not JSON"},
           {R"([1, 2])", "not a JSON object"},
           {std::string("{}\0{}", 5), "zero byte"},
           {"{\"a\": \"\xff\"}", "not JSON"},
       }) {
    write_text(path, text);
    EXPECT_CONTAINS(error_of<FormatError>([&] { ConfigJson file(path); }), said);
  }
  EXPECT_CONTAINS(error_of<IoError>([&] { ConfigJson file(temp.path() / "none.json"); }),
                  "none.json");
}

TEST(Settings, EveryFamilyCanBeMade) {
  for (const auto& family : families()) {
    InitConfig init;
    init.family = family;
    init.vocab = 100;
    const ModelConfig config = make_model_config(init);
    EXPECT_EQ(config.family, family);
    EXPECT_EQ(config.hidden, 128);
  }
}

TEST(Settings, ContradictionsAreFound) {
  const auto said = [](const std::function<void(InitConfig&)>& change) {
    InitConfig init = tiny("qwen3_moe");
    change(init);
    return error_of<ConfigError>([&] { make_model_config(init); });
  };
  EXPECT_EQ(said([](InitConfig&) {}), "");
  EXPECT_CONTAINS(said([](InitConfig& i) { i.top_k = 7; }), "top_k 7");
  EXPECT_CONTAINS(said([](InitConfig& i) { i.vocab = 0; }), "model.vocab");
  EXPECT_CONTAINS(said([](InitConfig& i) { i.kv_heads = 3; }), "kv heads");
  EXPECT_CONTAINS(said([](InitConfig& i) { i.family = "gpt2"; }), "gpt2");
  EXPECT_CONTAINS(said([](InitConfig& i) { i.family = "mixtral"; }), "");
  EXPECT_CONTAINS(said([](InitConfig& i) {
                    i.family = "mixtral";
                    i.dense_layers = 1;
                  }),
                  "dense_layers");
  EXPECT_CONTAINS(said([](InitConfig& i) {
                    i.family = "llama";
                    i.window = 8;
                  }),
                  "window");
}

TEST(Settings, BindsAndHelps) {
  ModelSettings settings;
  ConfigBinder binder;
  binder.section("model", "The model.");
  bind(settings, binder);
  binder.read_text("[model]\ninit = \"random\"\nfamily = \"olmoe\"\nexperts = 16\n", "test");
  EXPECT_EQ(settings.shape.family, "olmoe");
  EXPECT_EQ(settings.shape.experts, 16);
  EXPECT_THROW(binder.read_text("[model]\nfamily = \"gpt\"\n", "test"), UsageError);
}

}  // namespace
}  // namespace quadrille::model
