#include "model/checkpoint_io.h"

#include <ATen/ops/zeros.h>

#include <map>

#include "base/log.h"
#include "model/families.h"
#include "model/layout.h"
#include "support.h"
#include "tensor/safetensors.h"

namespace quadrille::model {
namespace {

using namespace testing;
using nlohmann::json;

// A checkpoint taken apart, to be put together again with something wrong in it.
struct Loose {
  json config;
  std::map<std::string, at::Tensor> tensors;

  explicit Loose(const std::string& name)
      : config(read_json(goldens() / "parity" / name / "config.json")) {
    const tensor::SafetensorsFolder files(goldens() / "parity" / name);
    for (const auto& [key, entry] : files.entries()) tensors[key] = entry.file->read(*entry.tensor);
  }
  void write(const std::filesystem::path& folder) const {
    std::filesystem::create_directories(folder);
    std::vector<tensor::TensorToWrite> list;
    for (const auto& [name, value] : tensors)
      list.push_back({name, value.scalar_type(), value.sizes().vec()});
    tensor::write_safetensors_folder(
        folder, list, 1 << 30, [&](const tensor::TensorToWrite& t) { return tensors.at(t.name); });
    write_text(folder / "config.json", config.dump());
  }
  std::string load_error() const {
    TempFolder temp;
    write(temp.path());
    return error_of<FormatError>([&] { load_model(temp.path(), DtypeChoice::kFp32, at::kCPU); });
  }
  std::unique_ptr<Transformer> load() const {
    TempFolder temp;
    write(temp.path());
    return load_model(temp.path(), DtypeChoice::kFp32, at::kCPU);
  }
};

TEST(Checkpoint, MissingExtraAndMisshapenTensorsAreNamed) {
  const Loose good("qwen3_moe_gradients");
  EXPECT_EQ(good.load_error(), "");
  // Each tensor in turn.
  for (const auto& [name, value] : good.tensors) {
    Loose bad = good;
    bad.tensors.erase(name);
    EXPECT_CONTAINS(bad.load_error(), "'" + name + "'");
  }
  Loose bad = good;
  bad.tensors["model.layers.0.self_attn.q_proj.bias"] = at::zeros({24});
  EXPECT_CONTAINS(bad.load_error(), "'model.layers.0.self_attn.q_proj.bias'");
  bad = good;
  bad.tensors["model.layers.7.input_layernorm.weight"] = at::zeros({16});
  EXPECT_CONTAINS(bad.load_error(), "'model.layers.7.input_layernorm.weight'");
  bad = good;
  bad.tensors["model.layers.1.mlp.experts.2.down_proj.weight"] = at::zeros({6, 16});
  EXPECT_CONTAINS(bad.load_error(),
                  "'model.layers.1.mlp.experts.2.down_proj.weight' has shape [6, 16]");
  EXPECT_CONTAINS(bad.load_error(), "asks for [16, 6]");
  bad = good;
  bad.tensors["model.norm.weight"] = at::zeros({16}, at::TensorOptions().dtype(at::kInt));
  EXPECT_CONTAINS(bad.load_error(), "'model.norm.weight' is stored as I32");
  bad = good;
  bad.tensors["model.norm.weight"] = at::zeros({16}).to(at::kFloat8_e4m3fn);
  EXPECT_CONTAINS(bad.load_error(), "F8_E4M3; convert the model to bfloat16");
  bad = good;
  bad.tensors["model.norm.weight"] = at::zeros({16}).to(at::kDouble);
  EXPECT_EQ(bad.load_error(), "");
  // One parameter in two layouts.
  bad = good;
  bad.tensors["model.layers.0.mlp.experts.down_proj"] = at::zeros({5, 16, 6});
  EXPECT_CONTAINS(bad.load_error(), "layers.0.moe.down is there twice");
  // Fewer experts than config.json says, and more.
  bad = good;
  bad.config["num_local_experts"] = 6;
  EXPECT_CONTAINS(bad.load_error(), "mlp.gate.weight");
  bad = good;
  bad.config["num_hidden_layers"] = 1;
  EXPECT_CONTAINS(bad.load_error(), "does not have: 'model.layers.1.");
  // Very old files carry the frequencies.
  bad = good;
  bad.tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = at::zeros({4});
  EXPECT_EQ(bad.load_error(), "");
}

TEST(Checkpoint, TiedEmbeddingsTable) {
  set_log_level(LogLevel::kError);
  const Loose good("qwen3_tied");
  ASSERT_TRUE(good.config["tie_word_embeddings"].get<bool>());
  ASSERT_FALSE(good.tensors.contains("lm_head.weight"));
  const at::Tensor embed = good.tensors.at("model.embed_tokens.weight");
  EXPECT_TRUE(good.load()->config().tied);

  Loose other = good;  // Only the head.
  other.tensors["lm_head.weight"] = embed;
  other.tensors.erase("model.embed_tokens.weight");
  auto model = other.load();
  EXPECT_TRUE(model->config().tied);
  EXPECT_TRUE(same_bits(model->head()->value, embed));

  other = good;  // Both, equal.
  other.tensors["lm_head.weight"] = embed.clone();
  EXPECT_TRUE(other.load()->config().tied);

  other.tensors["lm_head.weight"] = embed.add(1);  // Both, different: not tied.
  model = other.load();
  EXPECT_FALSE(model->config().tied);
  EXPECT_TRUE(same_bits(model->head()->value, embed.add(1)));
  EXPECT_TRUE(same_bits(model->parameters()[0]->value, embed));

  other.config["tie_word_embeddings"] = false;  // Both, and said so.
  EXPECT_FALSE(other.load()->config().tied);
  other = good;
  other.config["tie_word_embeddings"] = false;  // No head.
  EXPECT_CONTAINS(other.load_error(), "'lm_head.weight' (and tie_word_embeddings is false)");
  set_log_level(LogLevel::kInfo);
}

TEST(Checkpoint, SavesTheTieAsItIs) {
  const auto save = [](const std::string& name) {
    set_log_level(LogLevel::kError);
    TempFolder temp;
    const auto model = load_model(goldens() / "parity" / name, DtypeChoice::kFp32, at::kCPU);
    SaveOptions options;
    options.carry_from = goldens() / "parity" / name;
    save_model(*model, temp.path(), options);
    set_log_level(LogLevel::kInfo);
    return std::pair(read_json(temp.path() / "config.json")["tie_word_embeddings"].get<bool>(),
                     tensor::SafetensorsFolder(temp.path()).find("lm_head.weight") != nullptr);
  };
  EXPECT_EQ(save("qwen3_tied"), std::pair(true, false));
  // Said to be tied, but not: what is written says the truth.
  EXPECT_EQ(save("llama_untied_stop"), std::pair(false, true));
}

TEST(Checkpoint, PartialLoadsReadTheirExpertsOnly) {
  for (const std::string name : {"qwen3_moe_base", "qwen3_moe_fused_window"}) {
    const auto folder = goldens() / "parity" / name;
    const auto model = load_model(folder, DtypeChoice::kFp32, at::kCPU);
    const tensor::SafetensorsFolder files(folder);
    const auto layouts = match_files(model->plans(), model->config(), files);
    for (size_t i = 0; i < model->plans().size(); ++i) {
      const auto& plan = model->plans()[i];
      if (!plan.by_expert) continue;
      std::vector<int64_t> shape = plan.shape;
      shape[0] = 2;
      const at::Tensor part = at::zeros(shape);
      read_parameter(plan, layouts[i], files, part, {2, 4});
      EXPECT_TRUE(same_bits(part, model->parameters()[i]->value.narrow(0, 2, 2)))
          << name << " " << plan.name;
    }
  }
}

TEST(Checkpoint, RandomModelsSaveAndLoad) {
  for (const auto& family : families()) {
    TempFolder temp;
    const auto model = make_tiny(family);
    SaveOptions options;
    options.end_tokens = {3, 5};
    save_model(*model, temp.path() / "made", options);
    const auto again = load_model(temp.path() / "made", DtypeChoice::kAuto, at::kCPU);
    EXPECT_EQ(again->config(), model->config()) << family;
    for (size_t i = 0; i < model->parameters().size(); ++i) {
      EXPECT_TRUE(same_bits(model->parameters()[i]->value, again->parameters()[i]->value));
    }
    EXPECT_EQ(read_end_tokens(temp.path() / "made"), (std::vector<int32_t>{3, 5}));
    EXPECT_EQ(read_json(temp.path() / "made/config.json")["dtype"], "float32");

    // Values from outside (fp32 masters), in bf16, into a model that exists.
    std::vector<at::Tensor> masters;
    for (const auto& param : model->parameters()) masters.push_back(param->value.add(1));
    options.dtype = at::kBFloat16;
    options.max_shard_bytes = 20'000;
    save_model(*model, temp.path() / "made", options, masters);
    load_weights(*again, temp.path() / "made");
    for (size_t i = 0; i < model->parameters().size(); ++i) {
      const auto dtype = model->plans()[i].written_fp32 ? at::kFloat : at::kBFloat16;
      EXPECT_TRUE(same_bits(masters[i].to(dtype).to(at::kFloat), again->parameters()[i]->value));
    }
    const auto other = make_tiny(family == "llama" ? "qwen3" : "llama");
    EXPECT_CONTAINS(error_of<FormatError>([&] { load_weights(*other, temp.path() / "made"); }),
                    "another shape");
  }
}

TEST(Checkpoint, ConfigKeepsWhatIsNotOurs) {
  TempFolder temp;
  Loose loose("deepseek_v3_yarn");
  loose.config["custom_key"] = {{"a", 1}};
  loose.config["torch_dtype"] = "float32";
  loose.config.erase("dtype");
  loose.write(temp.path() / "from");
  for (const char* file : {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}) {
    write_text(temp.path() / "from" / file, file);
  }
  std::filesystem::create_directories(temp.path() / "from/additional_chat_templates");
  write_text(temp.path() / "from/additional_chat_templates/rag.jinja", "rag");
  write_text(temp.path() / "from/notes.txt", "not carried");

  const auto model =
      load_model(temp.path() / "from", DtypeChoice::kFp32, at::kCPU, /*router_fp32=*/true);
  SaveOptions options;
  options.dtype = at::kBFloat16;
  options.carry_from = temp.path() / "from";
  save_model(*model, temp.path() / "to", options);
  const json written = read_json(temp.path() / "to/config.json");
  json expected = loose.config;
  expected["torch_dtype"] = "bfloat16";
  expected["num_nextn_predict_layers"] = 0;
  EXPECT_EQ(written, expected);
  EXPECT_EQ(read_file(temp.path() / "to/tokenizer.json"), "tokenizer.json");
  EXPECT_EQ(read_file(temp.path() / "to/additional_chat_templates/rag.jinja"), "rag");
  EXPECT_FALSE(std::filesystem::exists(temp.path() / "to/notes.txt"));
  // The router of this family stays in fp32.
  const tensor::SafetensorsFolder files(temp.path() / "to");
  EXPECT_EQ(files.find("model.layers.1.mlp.gate.weight")->tensor->dtype, at::kFloat);
  EXPECT_EQ(files.find("model.layers.1.mlp.gate.e_score_correction_bias")->tensor->dtype,
            at::kFloat);
  EXPECT_EQ(files.find("model.norm.weight")->tensor->dtype, at::kBFloat16);
  EXPECT_EQ(files.find("model.layers.2.eh_proj.weight"), nullptr);

  // Another shape under the same tokenizer: its keys, their leftovers gone.
  const auto shaped = make_tiny("qwen3_moe");
  save_model(*shaped, temp.path() / "shaped", options);
  EXPECT_EQ(read_model_config(temp.path() / "shaped"), shaped->config());
  EXPECT_TRUE(read_json(temp.path() / "shaped/config.json").contains("custom_key"));
}

TEST(Checkpoint, EndTokens) {
  TempFolder temp;
  const auto tokens = [&](const char* generation, const char* config) {
    write_text(temp.path() / "generation_config.json", generation);
    write_text(temp.path() / "config.json", config);
    return read_end_tokens(temp.path());
  };
  using Ids = std::vector<int32_t>;
  EXPECT_EQ(tokens(R"({"eos_token_id": [151645, 151643]})", R"({"eos_token_id": 1})"),
            (Ids{151645, 151643}));
  EXPECT_EQ(tokens(R"({"eos_token_id": 7})", R"({"eos_token_id": 1})"), (Ids{7}));
  EXPECT_EQ(tokens(R"({"eos_token_id": 0})", "{}"), (Ids{0}));
  EXPECT_EQ(tokens(R"({"eos_token_id": null})", R"({"eos_token_id": 1})"), (Ids{1}));
  EXPECT_EQ(tokens("{}", R"({"eos_token_id": [4, 5]})"), (Ids{4, 5}));
  EXPECT_EQ(tokens("{}", "{}"), Ids{});
  EXPECT_THROW(tokens(R"({"eos_token_id": "x"})", "{}"), FormatError);
  EXPECT_THROW(tokens(R"({"eos_token_id": [-1]})", "{}"), FormatError);
  std::filesystem::remove(temp.path() / "generation_config.json");
  EXPECT_EQ(read_end_tokens(temp.path()), Ids{});
}

TEST(Checkpoint, DescribesAndFindsDamage) {
  const std::string text = describe_model(goldens() / "parity/qwen3_moe_tied_sharded_bf16");
  for (const char* part : {"qwen3_moe", "tied head", "5 of width 12, 3 a token", "in 4 files",
                           "BF16", "end tokens   0"}) {
    EXPECT_CONTAINS(text, part);
  }
  EXPECT_CONTAINS(describe_model(goldens() / "parity/deepseek_v3_base"), "latent, 4 heads");

  TempFolder temp;
  Loose("qwen3_moe_gradients").write(temp.path());
  const auto file = temp.path() / "model.safetensors";
  std::filesystem::resize_file(file, std::filesystem::file_size(file) - 1);
  EXPECT_CONTAINS(error_of<FormatError>([&] { describe_model(temp.path()); }), "cut short");
  std::filesystem::remove(temp.path() / "config.json");
  EXPECT_CONTAINS(error_of<IoError>([&] { describe_model(temp.path()); }), "config.json");
}

}  // namespace
}  // namespace quadrille::model
