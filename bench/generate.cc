// Tokens a second of generation, and what the engine itself costs a step.
//
//   bench_generate [MODEL_DIR] [--prompts 16] [--prompt-tokens 64] [--group 4] [--new-tokens 128]
//   [--max-running 0]
//                  [--threads 0] [--dtype auto] [--runs 5]
//
// Without a folder: a Qwen3-MoE of a million parameters, random weights (the demo's shape).
//
// Checked before it is timed: the same requests one sequence at a time give the same answers
// (fp32), and scoring them gives back their log-probabilities.
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/error.h"
#include "base/rng.h"
#include "model/checkpoint_io.h"
#include "model/settings.h"
#include "rollout/engine.h"
#include "rollout/score.h"
#include "tensor/threads.h"

namespace quadrille {
namespace {

struct Options {
  std::string model, dtype = "auto";
  int64_t prompts = 16, prompt_tokens = 64, group = 4, new_tokens = 128, max_running = 0, runs = 5;
  int threads = 0;
};

// Computes nothing: what is left is the engine.
class NullRunner final : public rollout::Runner {
 public:
  explicit NullRunner(int64_t rows)
      : hidden_TD_(at::zeros({rows, 1})),
        sampled_{at::zeros({rows}, at::kLong), at::zeros({rows}), at::zeros({rows}),
                 at::zeros({rows})} {}
  rollout::RunnerShape shape() const override { return {2, 0, 0, 0, 1, at::kCPU}; }
  void make_cache(int64_t) override {}
  tensor::KvCache* cache() override { return &cache_; }
  void copy_pages(const at::Tensor&, const at::Tensor&) override {}
  at::Tensor forward(const model::Batch&, model::ForwardExtras*) override { return hidden_TD_; }
  at::Tensor logits(const at::Tensor& hidden_BD) override { return hidden_BD; }
  tensor::Sampled sample(const at::Tensor&, const tensor::SamplingParams&) override {
    return sampled_;
  }

 private:
  at::Tensor hidden_TD_;
  tensor::Sampled sampled_;
  tensor::KvCache cache_;
};

std::unique_ptr<model::Transformer> random_model(model::DtypeChoice dtype) {
  model::InitConfig shape;
  shape.vocab = 512;
  shape.head_dim = 32;
  shape.kv_heads = 2;
  shape.expert_width = 64;
  auto model = std::make_unique<model::Transformer>(
      model::make_model_config(shape),
      dtype == model::DtypeChoice::kBf16 ? at::kBFloat16 : at::kFloat, at::kCPU);
  model::initialize_random(*model, 1);
  return model;
}

double engine_us_per_step(int64_t sequences) {
  const SystemClock clock;
  std::vector<double> seconds;
  for (int run = 0; run < 5; ++run) {
    rollout::Engine engine(std::make_unique<NullRunner>(sequences), nullptr, {});
    for (int64_t i = 0; i < sequences; ++i) {
      rollout::Request request;
      request.id = static_cast<uint64_t>(i);
      request.prompt = {1};
      request.max_new_tokens = 1000;
      engine.add(request);
    }
    const TimePoint start = clock.now();
    while (engine.step()) {
    }
    seconds.push_back(seconds_between(start, clock.now()) /
                      static_cast<double>(engine.stats().steps));
  }
  std::nth_element(seconds.begin(), seconds.begin() + 2, seconds.end());
  return seconds[2] * 1e6;
}

void check(const model::Transformer& model, const std::vector<rollout::Request>& requests,
           const std::vector<rollout::Completion>& answers) {
  std::vector<std::vector<int32_t>> whole;
  for (const rollout::Completion& answer : answers) {
    whole.push_back(requests[answer.request_id].prompt);
    whole.back().insert(whole.back().end(), answer.tokens.begin(), answer.tokens.end());
  }
  const double tolerance = model.dtype() == at::kFloat ? 1e-5 : 0.1;
  const auto scores = rollout::score_tokens(model, whole);
  for (size_t i = 0; i < answers.size(); ++i) {
    const size_t prompt = whole[i].size() - answers[i].tokens.size();
    for (size_t t = 0; t < answers[i].tokens.size(); ++t) {
      const double difference = std::abs(scores[i][prompt + t] - answers[i].logprobs[t]);
      if (!(difference <= tolerance))
        throw Error("answer {} token {}: scoring differs by {}", i, t, difference);
    }
  }
  if (model.dtype() != at::kFloat) return;
  rollout::EngineOptions alone;
  alone.max_running = 1;
  rollout::Engine engine(model, nullptr, alone);
  const auto again = engine.run({requests.front()});
  for (size_t i = 0; i < again.size(); ++i) {
    bool same = again[i].tokens == answers[i].tokens;
    for (size_t t = 0; same && t < again[i].tokens.size(); ++t) {
      same = std::abs(again[i].logprobs[t] - answers[i].logprobs[t]) <= tolerance;
    }
    if (!same) throw Error("answer {} is another one when its sequence runs alone", i);
  }
}

void run(const Options& o) {
  tensor::set_threads(o.threads);
  const auto dtype = o.dtype == "fp32"   ? model::DtypeChoice::kFp32
                     : o.dtype == "bf16" ? model::DtypeChoice::kBf16
                                         : model::DtypeChoice::kAuto;
  const std::unique_ptr<model::Transformer> model =
      o.model.empty() ? random_model(dtype) : model::load_model(o.model, dtype, at::kCPU);
  std::vector<rollout::Request> requests;
  for (int64_t i = 0; i < o.prompts; ++i) {
    rollout::Request request;
    request.id = static_cast<uint64_t>(i);
    for (int64_t t = 0; t < o.prompt_tokens; ++t) {
      request.prompt.push_back(
          static_cast<int32_t>(mix_seed(static_cast<uint64_t>(i), static_cast<uint64_t>(t)) %
                               static_cast<uint64_t>(model->config().vocab)));
    }
    request.samples = o.group;
    request.sampling.seed = static_cast<uint64_t>(i);
    request.max_new_tokens = o.new_tokens;  // No end token: the work is the same in every run.
    requests.push_back(std::move(request));
  }
  rollout::EngineOptions options;
  options.max_running = o.max_running;
  rollout::Engine engine(*model, nullptr, options);
  check(*model, requests, engine.run(requests));

  const SystemClock clock;
  std::vector<double> seconds;
  const int64_t steps_before = engine.stats().steps;
  for (int64_t i = 0; i < o.runs; ++i) {
    const TimePoint start = clock.now();
    engine.run(requests);
    seconds.push_back(seconds_between(start, clock.now()));
  }
  std::sort(seconds.begin(), seconds.end());
  const double median = seconds[seconds.size() / 2];
  const auto tokens = static_cast<double>(o.prompts * o.group * o.new_tokens);
  const auto steps =
      static_cast<double>(engine.stats().steps - steps_before) / static_cast<double>(o.runs);
  nlohmann::ordered_json json;
  json["bench"] = "generate";
  json["family"] = model->config().family;
  json["parameters"] = model->parameter_count();
  json["dtype"] = model->dtype() == at::kFloat ? "fp32" : "bf16";
  json["threads"] = tensor::threads();
  json["prompts"] = o.prompts;
  json["prompt_tokens"] = o.prompt_tokens;
  json["group"] = o.group;
  json["new_tokens"] = o.new_tokens;
  json["max_running"] = o.max_running;
  json["steps"] = steps;
  json["seconds_median"] = median;
  json["seconds_min"] = seconds.front();
  json["seconds_max"] = seconds.back();
  json["tokens_per_second"] = tokens / median;
  json["ms_per_step"] = median / steps * 1e3;
  json["engine_us_per_step_of_64"] = engine_us_per_step(64);
  json["engine_us_per_step_of_256"] = engine_us_per_step(256);
  fmt::print("{}\n", json.dump(2));
}

}  // namespace
}  // namespace quadrille

int main(int argc, char** argv) {
  quadrille::Options options;
  CLI::App app{"Tokens a second of generation"};
  app.add_option("model", options.model,
                 "Hugging Face folder; none: a random model of a million parameters");
  app.add_option("--dtype", options.dtype)->check(CLI::IsMember({"auto", "fp32", "bf16"}));
  app.add_option("--prompts", options.prompts);
  app.add_option("--prompt-tokens", options.prompt_tokens);
  app.add_option("--group", options.group);
  app.add_option("--new-tokens", options.new_tokens);
  app.add_option("--max-running", options.max_running);
  app.add_option("--threads", options.threads);
  app.add_option("--runs", options.runs)->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  try {
    quadrille::run(options);
  } catch (const std::exception& error) {
    fmt::print(stderr, "bench_generate: {}\n", error.what());
    return 1;
  }
  return 0;
}
