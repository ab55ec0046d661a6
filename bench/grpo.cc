// One GRPO iteration of a tiny Qwen3-MoE: generate, score, update. Checks first: what generation
// recorded must be what the trainer computes; then times whole iterations and prints one JSON
// object.
//
//   bench_grpo [--prompts 8] [--group 8] [--length 64] [--iterations 7] [--dtype fp32|bf16]
//   [--threads 0]
//
// The model is that of bench/peers/trl_grpo.py: 1.0 M parameters, 4 layers, hidden 128, 8 experts
// top-2 of width 64.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/error.h"
#include "base/rng.h"
#include "learn/trainer.h"
#include "model/settings.h"
#include "model/transformer.h"
#include "rollout/engine.h"
#include "rollout/score.h"
#include "tensor/threads.h"

namespace {

using namespace quadrille;

struct Options {
  int64_t prompts = 8, group = 8, length = 64, iterations = 7;
  std::string dtype = "fp32";
  int threads = 0;
};

// Same characters as the peer: <pad> <eos> <bos>, then digits first.
constexpr int64_t kVocab = 50;
constexpr int32_t kFirstDigit = 3, kPlus = 13, kEquals = 16;

model::ModelConfig bench_model() {
  model::InitConfig init;
  init.family = "qwen3_moe";
  init.vocab = kVocab;
  init.layers = 4;
  init.hidden = 128;
  init.heads = 4;
  init.kv_heads = 2;
  init.head_dim = 32;
  init.experts = 8;
  init.top_k = 2;
  init.expert_width = 64;
  return model::make_model_config(init);
}

std::vector<rollout::Request> make_requests(const Options& options, uint64_t step) {
  std::vector<rollout::Request> requests;
  Rng rng(mix_seed(1, step));
  for (int64_t p = 0; p < options.prompts; ++p) {
    rollout::Request request;
    request.id = step * 1000 + static_cast<uint64_t>(p);
    for (int number = 0; number < 2; ++number) {
      const auto value = static_cast<int32_t>(rng.below(100));
      if (value >= 10) request.prompt.push_back(kFirstDigit + value / 10);
      request.prompt.push_back(kFirstDigit + value % 10);
      request.prompt.push_back(number == 0 ? kPlus : kEquals);
    }
    request.samples = options.group;
    request.sampling.seed = mix_seed(step, static_cast<uint64_t>(p));
    request.max_new_tokens =
        options.length;  // No end token: every answer has this length, as in the peer.
    requests.push_back(std::move(request));
  }
  return requests;
}

std::vector<Sample> generate(rollout::Engine& engine,
                             const std::vector<rollout::Request>& requests) {
  std::vector<Sample> samples;
  size_t at = 0;
  for (const rollout::Completion& completion : engine.run(requests)) {
    while (requests[at].id != completion.request_id) ++at;
    Sample sample = rollout::to_sample(requests[at], completion);
    const auto digits =
        std::count_if(completion.tokens.begin(), completion.tokens.end(),
                      [](int32_t t) { return t >= kFirstDigit && t < kFirstDigit + 10; });
    sample.reward = static_cast<float>(digits) / static_cast<float>(completion.tokens.size());
    samples.push_back(std::move(sample));
  }
  return samples;
}

double check(const model::Transformer& model, const std::vector<Sample>& samples) {
  std::vector<std::vector<int32_t>> sequences;
  for (const Sample& sample : samples) sequences.push_back(sample.tokens);
  const auto scores = rollout::score_tokens(model, sequences);
  double worst = 0;
  for (size_t i = 0; i < samples.size(); ++i) {
    for (size_t t = static_cast<size_t>(samples[i].prompt_tokens); t < samples[i].tokens.size();
         ++t) {
      worst = std::max(worst, std::abs(static_cast<double>(samples[i].logprobs[t]) -
                                       static_cast<double>(scores[i][t])));
    }
  }
  return worst;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void run(const Options& options) {
  tensor::set_threads(options.threads);
  const bool bf16 = options.dtype == "bf16";
  model::Transformer model(bench_model(), bf16 ? at::kBFloat16 : at::kFloat, at::kCPU);
  model::initialize_random(model, 0);
  model.enable_gradients();
  const SystemClock clock;
  learn::TrainerOptions trainer_options;
  trainer_options.algorithm.group_size = options.group;
  trainer_options.algorithm.prompts_per_step = options.prompts;
  trainer_options.optimizer.lr = 1e-4;
  trainer_options.total_steps = options.iterations + 2;
  trainer_options.max_response_tokens = options.length;
  learn::Trainer trainer(model, nullptr, trainer_options, clock);
  rollout::Engine engine(model, nullptr, {});

  const double tolerance = bf16 ? 0.05 : 1e-5;
  const double difference = check(model, generate(engine, make_requests(options, 0)));
  if (!(difference <= tolerance)) {
    throw Error("generation and training differ by {} in log-probability (allowed: {})", difference,
                tolerance);
  }
  std::vector<double> seconds, rollout_seconds, update_seconds;
  Metrics metrics;
  for (int64_t i = 0; i < options.iterations + 1; ++i) {
    const TimePoint begin = clock.now();
    const std::vector<Sample> samples =
        generate(engine, make_requests(options, static_cast<uint64_t>(i + 1)));
    const TimePoint generated = clock.now();
    metrics = trainer.grpo_step(samples, i);
    engine.weights_changed(i + 1);
    const TimePoint end = clock.now();
    if (i == 0) continue;  // Warm-up.
    seconds.push_back(seconds_between(begin, end));
    rollout_seconds.push_back(seconds_between(begin, generated));
    update_seconds.push_back(seconds_between(generated, end));
  }
  if (!std::isfinite(metrics.at("optim/grad_norm")) || metrics.at("optim/grad_norm") <= 0) {
    throw Error("gradient norm {}", metrics.at("optim/grad_norm"));
  }
  const double tokens = static_cast<double>(options.prompts * options.group * options.length);
  nlohmann::ordered_json out;
  out["bench"] = "grpo";
  out["dtype"] = options.dtype;
  out["threads"] = tensor::threads();
  out["prompts"] = options.prompts;
  out["group"] = options.group;
  out["length"] = options.length;
  out["iterations"] = options.iterations;
  out["logprob_difference"] = difference;
  out["seconds_median"] = median(seconds);
  out["seconds_min"] = *std::min_element(seconds.begin(), seconds.end());
  out["seconds_max"] = *std::max_element(seconds.begin(), seconds.end());
  out["rollout_seconds_median"] = median(rollout_seconds);
  out["update_seconds_median"] = median(update_seconds);
  out["completion_tokens_per_second"] = tokens / median(seconds);
  fmt::print("{}\n", out.dump());
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app{"Times a GRPO iteration of a 1 M-parameter MoE"};
  app.add_option("--prompts", options.prompts);
  app.add_option("--group", options.group);
  app.add_option("--length", options.length);
  app.add_option("--iterations", options.iterations);
  app.add_option("--dtype", options.dtype)->check(CLI::IsMember({"fp32", "bf16"}));
  app.add_option("--threads", options.threads);
  CLI11_PARSE(app, argc, argv);
  try {
    run(options);
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "bench_grpo: {}\n", error.what());
    return 1;
  }
}
