// Every golden case against what transformers computed: log-probabilities, logits, greedy text,
// gradients.
#include <ATen/core/grad_mode.h>

#include "model/layout.h"
#include "support.h"
#include "tensor/safetensors.h"

namespace quadrille::model {
namespace {

using namespace testing;

struct Golden {
  std::filesystem::path folder;
  nlohmann::json json;
  std::vector<std::vector<int32_t>> sequences;

  explicit Golden(const std::string& name)
      : folder(goldens() / "parity" / name), json(read_json(folder / "golden.json")) {
    for (const auto& s : json["sequences"])
      sequences.push_back(s["tokens"].get<std::vector<int32_t>>());
  }
};

class Parity : public ::testing::TestWithParam<std::string> {};

TEST_P(Parity, LogProbabilitiesAndLogits) {
  const Golden golden(GetParam());
  at::NoGradGuard no_grad;
  const auto model = load_model(golden.folder, DtypeChoice::kFp32, at::kCPU);
  const at::Tensor hidden = model->forward(pack_sequences(golden.sequences, at::kCPU));
  const Targets targets = next_tokens(golden.sequences);
  const at::Tensor logprobs = tensor::token_logprobs(hidden.index_select(0, targets.rows_N),
                                                     model->head(), targets.tokens_N, 1.0, false)
                                  .logprobs_N;
  const at::Tensor logits = tensor::logits(hidden, model->head());

  double worst_logprob = 0;
  double worst_logit = 0;
  double worst_ratio = 0;
  int64_t predicted = 0;
  int64_t first_row = 0;
  for (const auto& sequence : golden.json["sequences"]) {
    for (size_t i = 1; i < sequence["logprobs"].size(); ++i) {
      const double difference = std::abs(logprobs.const_data_ptr<float>()[predicted++] -
                                         sequence["logprobs"][i].get<double>());
      worst_logprob = difference <= worst_logprob ? worst_logprob : difference;
    }
    for (const auto& [row, values] : sequence["logit_rows"].items()) {
      for (size_t v = 0; v < values.size(); ++v) {
        const double want = values[v].get<double>();
        const double got =
            logits.const_data_ptr<float>()[(first_row + std::stoll(row)) * logits.size(1) +
                                           static_cast<int64_t>(v)];
        worst_logit = std::max(worst_logit, std::abs(got - want));
        worst_ratio =
            std::max(worst_ratio, std::abs(got - want) / (1e-5 * std::max(1.0, std::abs(want))));
      }
    }
    first_row += static_cast<int64_t>(sequence["tokens"].size());
  }
  RecordProperty("logprob_error", fmt::format("{:.2e}", worst_logprob));
  fmt::print("{:36} log-prob {:.1e}  logit {:.1e} ({:.2f} of the bar)  max |logit| {:.1f}\n",
             GetParam(), worst_logprob, worst_logit, worst_ratio,
             golden.json["max_abs_logit"].get<double>());
  EXPECT_LE(worst_logprob, 2e-4);
  // The bar of a new family: tighter, so that a small mistake cannot hide in the promise to users.
  EXPECT_LE(worst_logit, 1e-5 * std::max(1.0, golden.json["max_abs_logit"].get<double>()));
}

TEST_P(Parity, GreedyTextFromThePagedCache) {
  const Golden golden(GetParam());
  const auto model = load_model(golden.folder, DtypeChoice::kFp32, at::kCPU);
  const auto end_tokens = read_end_tokens(golden.folder);
  constexpr size_t kNewTokens = 32;
  PagedRun run(*model, static_cast<int64_t>(golden.sequences.size()), 96);
  std::vector<size_t> live;
  for (size_t s = 0; s < golden.sequences.size(); ++s) live.push_back(s);
  std::vector<std::vector<int32_t>> text(live.size());
  std::vector<std::vector<int32_t>> feed = golden.sequences;
  while (!live.empty()) {
    const at::Tensor hidden = run.feed(live, feed);
    int64_t row = -1;
    std::vector<size_t> next_live;
    std::vector<std::vector<int32_t>> next_feed;
    for (size_t i = 0; i < live.size(); ++i) {
      row += static_cast<int64_t>(feed[i].size());
      const auto token = static_cast<int32_t>(
          tensor::logits(hidden.narrow(0, row, 1), model->head()).argmax().item<int64_t>());
      auto& out = text[live[i]];
      out.push_back(token);
      const bool ended = std::find(end_tokens.begin(), end_tokens.end(), token) != end_tokens.end();
      if (ended || out.size() == kNewTokens) continue;
      next_live.push_back(live[i]);
      next_feed.push_back({token});
    }
    live = next_live;
    feed = next_feed;
  }
  for (size_t s = 0; s < text.size(); ++s) {
    EXPECT_EQ(text[s], golden.json["sequences"][s]["greedy"].get<std::vector<int32_t>>()) << s;
  }
}

TEST_P(Parity, LoadSaveLoadKeepsEveryByte) {
  const Golden golden(GetParam());
  const tensor::SafetensorsFolder original(golden.folder);
  const auto model = load_model(golden.folder, DtypeChoice::kFp32, at::kCPU);
  const bool bf16 = original.find("model.norm.weight")->tensor->dtype == at::kBFloat16;
  TempFolder temp;
  SaveOptions options;
  options.dtype = bf16 ? at::kBFloat16 : at::kFloat;
  options.carry_from = golden.folder;
  options.max_shard_bytes = 50'000;
  save_model(*model, temp.path(), options);

  const tensor::SafetensorsFolder saved(temp.path());
  int64_t compared = 0;
  for (const auto& [name, entry] : original.entries()) {
    const auto* again = saved.find(name);
    if (again == nullptr) {
      // Fused experts are written one by one; prediction layers and a tied head are not written.
      EXPECT_TRUE(name.find("experts.gate_up_proj") != std::string::npos ||
                  name.find("experts.down_proj") != std::string::npos ||
                  name.find("mlp.gate.weight") != std::string::npos ||
                  model->config().prediction_layers > 0)
          << name;
      continue;
    }
    const auto left = entry.file->bytes(*entry.tensor);
    const auto right = again->file->bytes(*again->tensor);
    EXPECT_TRUE(entry.tensor->dtype == again->tensor->dtype &&
                entry.tensor->shape == again->tensor->shape &&
                std::equal(left.begin(), left.end(), right.begin(), right.end()))
        << name;
    ++compared;
  }
  EXPECT_GT(compared, 10);

  const auto twice = load_model(temp.path(), DtypeChoice::kFp32, at::kCPU);
  ModelConfig config = model->config();
  config.prediction_layers = 0;
  EXPECT_EQ(twice->config(), config);
  for (size_t i = 0; i < model->parameters().size(); ++i) {
    EXPECT_TRUE(same_bits(model->parameters()[i]->value, twice->parameters()[i]->value))
        << model->parameters()[i]->name;
  }
  EXPECT_EQ(read_end_tokens(temp.path()), read_end_tokens(golden.folder));
}

class GradientParity : public ::testing::TestWithParam<std::string> {};

TEST_P(GradientParity, EveryTensor) {
  const Golden golden(GetParam());
  const tensor::SafetensorsFile file(golden.folder / "gradients.safetensors");
  const auto model = load_model(golden.folder, DtypeChoice::kFp32, at::kCPU);
  model->enable_gradients();
  const at::Tensor loss = mean_loss(*model, golden.sequences);
  EXPECT_NEAR(loss.item<double>(), golden.json["gradient_loss"].get<double>(), 1e-5);
  loss.backward();
  size_t compared = 0;
  double worst = 0;
  for (size_t i = 0; i < model->plans().size(); ++i) {
    const auto& param = *model->parameters()[i];
    if (!param.grad.defined()) continue;
    for (const auto& piece : model->plans()[i].layouts[0]) {
      const auto* stored = file.find(piece.name);
      ASSERT_NE(stored, nullptr) << piece.name;
      const at::Tensor want = file.read(*stored);
      const double scale = std::max(1e-3, want.abs().max().item<double>());
      const double difference = largest_difference(piece_of(param.grad, piece), want) / scale;
      EXPECT_LE(difference, 2e-5) << piece.name;
      worst = std::max(worst, difference);
      ++compared;
    }
  }
  EXPECT_EQ(compared, file.tensors().size());
  fmt::print("{:36} gradient, relative to the largest of its tensor: {:.1e}\n", GetParam(), worst);
}

std::vector<std::string> gradient_cases() {
  std::vector<std::string> names;
  for (const auto& name : golden_cases()) {
    if (std::filesystem::exists(goldens() / "parity" / name / "gradients.safetensors"))
      names.push_back(name);
  }
  return names;
}

INSTANTIATE_TEST_SUITE_P(Goldens, GradientParity, ::testing::ValuesIn(gradient_cases()),
                         [](const auto& info) { return info.param; });
INSTANTIATE_TEST_SUITE_P(Goldens, Parity, ::testing::ValuesIn(golden_cases()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace quadrille::model
