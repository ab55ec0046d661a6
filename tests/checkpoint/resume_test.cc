// Checkpoints of a real trainer: a run that is saved, thrown away and resumed goes on bit for bit,
// and its weights leave as a model folder that loads to the same values.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/rng.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/export.h"
#include "learn/trainer.h"
#include "model/tiny.h"

namespace quadrille::checkpoint {
namespace {

namespace fs = std::filesystem;

using learn::Trainer;
using learn::TrainerOptions;
using model::testing::make_tiny;

const SystemClock kClock;

class Resume : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "quadrille-resume-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    dir_ = pattern;
  }
  void TearDown() override { fs::remove_all(dir_); }

  fs::path dir_;
};

TrainerOptions options() {
  TrainerOptions o;
  o.algorithm.preset = "sft";
  o.algorithm.micro_batch_tokens = 32;
  o.optimizer.lr = 1e-2;
  o.optimizer.schedule = "linear";
  o.optimizer.warmup_steps = 2;
  o.total_steps = 6;
  return o;
}

// The examples of one step, a function of the step.
std::vector<learn::SftExample> examples(int64_t step) {
  Rng rng(static_cast<uint64_t>(step + 100));
  std::vector<learn::SftExample> out(4);
  for (learn::SftExample& e : out) {
    for (int t = 0; t < 9; ++t) {
      e.tokens.push_back(static_cast<int32_t>(rng.below(model::testing::kTinyVocab)));
      e.weights.push_back(t < 3 ? 0.0F : 1.0F);
    }
  }
  return out;
}

Metrics step(Trainer& trainer, int64_t at) {
  const auto data = examples(at);
  Metrics metrics = trainer.sft_step(data);
  std::erase_if(metrics, [](const auto& entry) { return entry.first.starts_with("time/"); });
  return metrics;
}

Content content_of(const Trainer& trainer, const model::Transformer& model, int64_t at) {
  Content c;
  c.step = at;
  c.weights = trainer.weights();
  c.moments = trainer.moments();
  c.state_json = trainer.state_json();
  c.model_files = model_files(model.config(), {});
  return c;
}

TEST_F(Resume, IsBitIdentical) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const fs::path dir = dir_ / (dtype == at::kFloat ? "fp32" : "bf16");
    auto straight = make_tiny("qwen3_moe", dtype);
    Trainer one(*straight, nullptr, options(), kClock);
    std::vector<Metrics> expected;
    for (int64_t s = 0; s < 6; ++s) expected.push_back(step(one, s));

    {
      auto first = make_tiny("qwen3_moe", dtype);
      Trainer before(*first, nullptr, options(), kClock);
      for (int64_t s = 0; s < 3; ++s) step(before, s);
      save(dir, content_of(before, *first, 3), {});
    }
    const auto checkpoint = load_newest(dir);
    ASSERT_TRUE(checkpoint.has_value());
    auto second = make_tiny("qwen3_moe", dtype, 99);
    Trainer after(*second, nullptr, options(), kClock);
    after.load([&](const std::string& name) { return checkpoint->tensor(name); },
               checkpoint->state_json());
    EXPECT_EQ(after.steps(), 3);
    for (int64_t s = 3; s < 6; ++s)
      EXPECT_EQ(step(after, s), expected[static_cast<size_t>(s)]) << "step " << s;
    for (size_t i = 0; i < straight->parameters().size(); ++i) {
      EXPECT_TRUE(at::equal(straight->parameters()[i]->value, second->parameters()[i]->value))
          << straight->parameters()[i]->name;
    }
    const auto moments = one.moments();
    const auto resumed = after.moments();
    for (size_t i = 0; i < moments.size(); ++i) {
      EXPECT_TRUE(at::equal(moments[i].second, resumed[i].second)) << moments[i].first;
    }
  }
}

TEST_F(Resume, AnotherModelsCheckpointIsRefused) {
  auto model = make_tiny("qwen3_moe");
  Trainer trainer(*model, nullptr, options(), kClock);
  save(dir_, content_of(trainer, *model, 0), {});
  const auto checkpoint = load_newest(dir_);
  model::InitConfig wider = model::testing::tiny("qwen3_moe");
  wider.expert_width = 16;
  model::Transformer other(model::make_model_config(wider), at::kFloat, at::kCPU);
  Trainer second(other, nullptr, options(), kClock);
  EXPECT_THROW(second.load([&](const std::string& name) { return checkpoint->tensor(name); },
                           checkpoint->state_json()),
               FormatError);
}

TEST_F(Resume, ExportsAModelFolderOfTheMasters) {
  auto model = make_tiny("qwen3_moe", at::kBFloat16);
  Trainer trainer(*model, nullptr, options(), kClock);
  step(trainer, 0);
  save(dir_ / "checkpoints", content_of(trainer, *model, 1), {});
  export_model(*load_newest(dir_ / "checkpoints"), dir_ / "out", {});
  const auto loaded = model::load_model(dir_ / "out", model::DtypeChoice::kFp32, at::kCPU);
  EXPECT_EQ(loaded->config(), model->config());
  std::map<std::string, at::Tensor> masters;
  for (const auto& [name, value] : trainer.weights()) masters[name] = value;
  for (const auto& param : loaded->parameters()) {
    EXPECT_TRUE(at::equal(param->value, masters.at(param->name))) << param->name;
  }
}

TEST_F(Resume, TheCheckpointCarriesTheTokenizerAndStandsAlone) {
  const fs::path base = dir_ / "base";
  auto model = make_tiny("qwen3_moe");
  model::save_model(*model, base, {});
  std::ofstream(base / "tokenizer.json") << "{\"version\": \"1.0\"}";
  std::ofstream(base / "chat_template.jinja") << "{{ messages }}";
  fs::create_directory(base / "additional_chat_templates");
  std::ofstream(base / "additional_chat_templates/tool_use.jinja") << "tools";
  nlohmann::json config = nlohmann::json::parse(read_file(base / "config.json"));
  config["note"] = "kept";
  std::ofstream(base / "config.json") << config.dump(3);

  Trainer trainer(*model, nullptr, options(), kClock);
  Content c = content_of(trainer, *model, 1);
  c.model_files = model_files(model->config(), base);
  save(dir_ / "checkpoints", c, {});
  const std::string original = read_file(base / "config.json");
  fs::remove_all(base);

  const auto checkpoint = load_newest(dir_ / "checkpoints");
  EXPECT_EQ(read_file(checkpoint->model_folder() / "config.json"), original);
  export_model(*checkpoint, dir_ / "out", {});
  EXPECT_EQ(read_file(dir_ / "out/tokenizer.json"), "{\"version\": \"1.0\"}");
  EXPECT_EQ(read_file(dir_ / "out/chat_template.jinja"), "{{ messages }}");
  EXPECT_EQ(read_file(dir_ / "out/additional_chat_templates/tool_use.jinja"), "tools");
  EXPECT_EQ(nlohmann::json::parse(read_file(dir_ / "out/config.json")).at("note"), "kept");
  EXPECT_FALSE(fs::exists(checkpoint->model_folder() / "model.safetensors"));
}

TEST_F(Resume, ACarriedConfigOfAnotherShapeIsCorrected) {
  const fs::path base = dir_ / "base";
  auto model = make_tiny("qwen3_moe");
  model::save_model(*model, base, {});
  nlohmann::json config = nlohmann::json::parse(read_file(base / "config.json"));
  config["tie_word_embeddings"] = true;  // As some files say whose head is not tied.
  std::ofstream(base / "config.json") << config.dump();
  const auto files = model_files(model->config(), base);
  ASSERT_EQ(files.front().name, "config.json");
  fs::create_directory(dir_ / "alone");
  std::ofstream(dir_ / "alone/config.json") << files.front().text;
  EXPECT_EQ(model::read_model_config(dir_ / "alone"), model->config());
}

TEST_F(Resume, IsDescribedForPeople) {
  auto model = make_tiny("qwen3_moe");
  Trainer trainer(*model, nullptr, options(), kClock);
  Content c = content_of(trainer, *model, 7);
  c.metric = 0.25;
  save(dir_, content_of(trainer, *model, 6), {});
  const fs::path folder = save(dir_, c, {});
  const std::string text = describe_checkpoint(dir_);
  EXPECT_NE(text.find("checkpoint of step 7"), std::string::npos) << text;
  EXPECT_NE(text.find("others there: step 6"), std::string::npos) << text;
  EXPECT_NE(text.find("model: qwen3_moe"), std::string::npos) << text;
  EXPECT_NE(text.find(fmt::format("parameters: {} in", model->parameter_count())),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("evaluation: 0.25"), std::string::npos) << text;
  EXPECT_NE(describe_checkpoint(folder).find("checkpoint of step 7"), std::string::npos);
  fs::resize_file(folder / "state.json", 3);
  EXPECT_THROW((void)describe_checkpoint(dir_), FormatError);
  EXPECT_THROW((void)describe_checkpoint(dir_ / "none"), IoError);
  fs::create_directory(dir_ / "empty");
  EXPECT_THROW((void)describe_checkpoint(dir_ / "empty"), FormatError);
}

}  // namespace
}  // namespace quadrille::checkpoint
