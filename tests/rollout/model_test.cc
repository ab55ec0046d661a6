// The engine over real models: the parity goldens of all families, with tiny random weights.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/rng.h"
#include "model/checkpoint_io.h"
#include "rollout/engine.h"
#include "rollout/score.h"
#include "tensor/threads.h"

namespace quadrille::rollout {
namespace {

const std::filesystem::path kGoldens =
    std::filesystem::path(QD_SOURCE_DIR) / "tests/goldens/parity";

std::unique_ptr<model::Transformer> load(const std::string& name) {
  return model::load_model(kGoldens / name, model::DtypeChoice::kFp32, at::kCPU);
}

// Groups of prompts around page borders; answers short and long, drawn from a flat and a sharp
// distribution.
std::vector<Request> sampled_requests(int64_t vocab, bool record_routes) {
  std::vector<Request> requests;
  for (const int64_t prompt : {1, 7, 16, 17, 33}) {
    Request request;
    request.id = requests.size();
    for (int64_t i = 0; i < prompt; ++i) {
      request.prompt.push_back(static_cast<int32_t>(
          mix_seed(request.id + 5, static_cast<uint64_t>(i)) % static_cast<uint64_t>(vocab)));
    }
    request.samples = 1 + static_cast<int64_t>(request.id) % 4;
    request.sampling.seed = request.id;
    request.sampling.temperature = request.id % 2 == 0 ? 1.0 : 0.7;
    request.stop_tokens = {0, 5};
    request.max_new_tokens = 24;
    request.record_routes = record_routes;
    requests.push_back(std::move(request));
  }
  return requests;
}

class Goldens : public testing::TestWithParam<std::string> {
 protected:
  // The models are tiny: a second thread would only be waited for.
  void SetUp() override { tensor::set_threads(1); }
  void TearDown() override { tensor::set_threads(0); }
};

TEST_P(Goldens, GreedyTextIsThatOfTransformers) {
  std::ifstream file(kGoldens / GetParam() / "golden.json");
  const nlohmann::json golden = nlohmann::json::parse(file);
  const auto model = load(GetParam());
  const std::vector<int32_t> ends = model::read_end_tokens(kGoldens / GetParam());
  for (const int64_t prefill_chunk : {int64_t{7}, int64_t{2048}}) {
    std::vector<Request> requests;
    for (const nlohmann::json& sequence : golden.at("sequences")) {
      Request request;
      request.id = requests.size();
      request.prompt = sequence.at("tokens").get<std::vector<int32_t>>();
      request.sampling.temperature = 0;
      request.stop_tokens = ends;
      request.max_new_tokens = 32;
      requests.push_back(std::move(request));
    }
    EngineOptions options;
    options.prefill_chunk = prefill_chunk;
    Engine engine(*model, nullptr, options);
    const auto answers = engine.run(requests);
    for (size_t i = 0; i < answers.size(); ++i) {
      const nlohmann::json& sequence = golden.at("sequences").at(i);
      EXPECT_EQ(answers[i].tokens, sequence.at("greedy").get<std::vector<int32_t>>())
          << "sequence " << i;
      EXPECT_EQ(public_name(answers[i].finish), sequence.at("finish_reason").get<std::string>());
    }
  }
}

// One computation or many: the bits are the same.
void expect_same_bits(const std::string& name) {
  const auto model = load(name);
  const std::vector<Request> requests =
      sampled_requests(model->config().vocab, model->config().moe_layers() > 0);
  Engine wide(*model, nullptr, {});
  const auto expected = wide.run(requests);
  EXPECT_EQ(wide.stats().scheduler.preemptions, 0);
  const int64_t page_bytes = tensor::kv_page_bytes(model->kv_shape(), model->dtype());
  int64_t preemptions = 0;
  for (const auto& [max_running, prefill_chunk, pages, lag] : std::vector<std::array<int64_t, 4>>{
           {1, 2048, 40, 0}, {3, 5, 40, 0}, {64, 16, 6, 0}, {5, 16, 5, 1}}) {
    EngineOptions options;
    options.max_running = max_running;
    options.prefill_chunk = prefill_chunk;
    options.kv_cache_bytes = pages * page_bytes;
    options.lag = lag;
    Engine narrow(*model, nullptr, options);
    const auto answers = narrow.run(requests);
    preemptions += narrow.stats().scheduler.preemptions;
    ASSERT_EQ(answers.size(), expected.size());
    for (size_t i = 0; i < answers.size(); ++i) {
      EXPECT_EQ(answers[i].tokens, expected[i].tokens) << i;
      EXPECT_EQ(answers[i].logprobs, expected[i].logprobs) << i;
      EXPECT_EQ(answers[i].sampling_logprobs, expected[i].sampling_logprobs) << i;
      EXPECT_EQ(answers[i].routing.ids, expected[i].routing.ids) << i;
    }
  }
  EXPECT_GT(preemptions, 0);
}

TEST_P(Goldens, LimitsDoNotChangeABit) {
  expect_same_bits(GetParam());
}

TEST(Threads, LimitsDoNotChangeABitOnTwo) {
  tensor::set_threads(2);
  for (const char* name : {"qwen3_moe_base", "qwen2_moe_base", "deepseek_v3_base"})
    expect_same_bits(name);
  tensor::set_threads(0);
}

TEST_P(Goldens, ScoringAndPackedForwardAgreeWithGeneration) {
  const auto model = load(GetParam());
  const std::vector<Request> requests =
      sampled_requests(model->config().vocab, model->config().moe_layers() > 0);
  Engine engine(*model, nullptr, {});
  const auto answers = engine.run(requests);
  std::vector<std::vector<int32_t>> whole;
  for (const Completion& answer : answers) {
    whole.push_back(requests[answer.request_id].prompt);
    whole.back().insert(whole.back().end(), answer.tokens.begin(), answer.tokens.end());
  }
  ScoreOptions score_options;
  score_options.batch_tokens = 100;
  const auto scores = score_tokens(*model, whole, score_options);
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < answers.size(); ++i) {
    const Completion& answer = answers[i];
    const Request& request = requests[answer.request_id];
    const size_t prompt = request.prompt.size();
    ASSERT_EQ(scores[i].size(), whole[i].size());
    EXPECT_TRUE(std::isnan(scores[i][0]));
    for (size_t t = 0; t < answer.tokens.size(); ++t) {
      EXPECT_EQ(scores[i][prompt + t], answer.logprobs[t]) << "answer " << i << " token " << t;
    }
    // The trainer's view of the same answer: whole, packed, at the sampling temperature, routes
    // beside it.
    std::vector<int32_t> inputs(whole[i].begin(), whole[i].end() - 1);
    model::ForwardExtras extras;
    extras.want_routes = model->config().moe_layers() > 0;
    const at::Tensor hidden_TD = model->forward(model::pack_sequences({inputs}, at::kCPU), &extras);
    std::vector<int64_t> targets(whole[i].begin() + 1, whole[i].end());
    const at::Tensor tempered =
        tensor::token_logprobs(hidden_TD, model->head(), at::tensor(targets),
                               request.sampling.temperature, false)
            .logprobs_N;
    for (size_t t = 0; t < answer.tokens.size(); ++t) {
      EXPECT_EQ(tempered.const_data_ptr<float>()[prompt + t - 1], answer.tempered_logprobs[t])
          << i << " " << t;
      if (request.sampling.temperature == 1) {
        EXPECT_EQ(answer.logprobs[t], answer.tempered_logprobs[t]);
      }
      EXPECT_NEAR(answer.sampling_logprobs[t], answer.tempered_logprobs[t],
                  1e-5);  // No filter is on.
    }
    if (!extras.want_routes) continue;
    const int64_t layers = model->config().moe_layers(), top_k = model->config().top_k;
    ASSERT_EQ(static_cast<int64_t>(answer.routing.ids.size()),
              static_cast<int64_t>(inputs.size()) * layers * top_k);
    for (size_t p = 0; p < inputs.size(); ++p) {
      for (int64_t layer = 0; layer < layers; ++layer) {
        for (int64_t k = 0; k < top_k; ++k) {
          const auto row = static_cast<int64_t>(p);
          EXPECT_EQ(answer.routing.ids[static_cast<size_t>((row * layers + layer) * top_k + k)],
                    extras.routes_TK[static_cast<size_t>(layer)]
                        .const_data_ptr<int32_t>()[row * top_k + k]);
        }
      }
    }
  }
}

std::vector<std::string> golden_names() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(kGoldens)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}
INSTANTIATE_TEST_SUITE_P(Families, Goldens, testing::ValuesIn(golden_names()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace quadrille::rollout
