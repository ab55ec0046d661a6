// Tokens a second of a forward and a backward pass, no optimizer step: the peer is
// bench/peers/hf_train.py.
//
//   bench_train MODEL_DIR [--batch 16] [--length 128] [--runs 5] [--threads 0] [--dtype fp32]
//
// Checked before it is timed: the gradient of the embedding agrees with a finite difference of the
// loss (fp32).
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/error.h"
#include "base/rng.h"
#include "model/checkpoint_io.h"
#include "model/transformer.h"
#include "tensor/ops.h"
#include "tensor/threads.h"

namespace {

using namespace quadrille;

struct Options {
  std::string model, dtype = "fp32";
  int64_t batch = 16, length = 128, runs = 5;
  int threads = 0;
};

struct Work {
  model::Batch batch;
  at::Tensor rows;
  at::Tensor targets;
};

Work make_work(const Options& options, int64_t vocab) {
  Rng rng(1);
  std::vector<std::vector<int32_t>> sequences(static_cast<size_t>(options.batch));
  for (auto& sequence : sequences) {
    for (int64_t t = 0; t < options.length; ++t) {
      sequence.push_back(static_cast<int32_t>(rng.below(static_cast<uint64_t>(vocab))));
    }
  }
  Work work{model::pack_sequences(sequences, at::kCPU), {}, {}};
  const at::Tensor grid =
      at::arange(options.batch * options.length, at::kLong).view({options.batch, options.length});
  work.rows = grid.narrow(1, 0, options.length - 1).reshape({-1});
  work.targets = work.batch.tokens_T.view({options.batch, options.length})
                     .narrow(1, 1, options.length - 1)
                     .reshape({-1});
  return work;
}

at::Tensor loss_of(const model::Transformer& model, const Work& work) {
  const at::Tensor hidden = model.forward(work.batch).index_select(0, work.rows);
  return -tensor::token_logprobs(hidden, model.head(), work.targets, 1.0, false).logprobs_N.mean();
}

// Moves one weight a little both ways.
double gradient_error(model::Transformer& model, const Work& work) {
  model.zero_gradients();
  loss_of(model, work).backward();
  tensor::Param& param = *model.parameters().back();
  const at::Tensor grad = param.grad.flatten();
  const int64_t at = grad.abs().argmax().item<int64_t>();
  const double expected = grad[at].item<double>();
  const at::NoGradGuard no_grad;
  double loss[2];
  const double step = 1e-2;
  for (int side = 0; side < 2; ++side) {
    param.value.flatten()[at].add_(side == 0 ? step : -step);
    param.changed();
    loss[side] = loss_of(model, work).item<double>();
    param.value.flatten()[at].add_(side == 0 ? -step : step);
    param.changed();
  }
  return std::abs((loss[0] - loss[1]) / (2 * step) - expected) / std::abs(expected);
}

void run(const Options& options) {
  tensor::set_threads(options.threads);
  const auto dtype =
      options.dtype == "bf16" ? model::DtypeChoice::kBf16 : model::DtypeChoice::kFp32;
  const auto model = model::load_model(options.model, dtype, at::kCPU);
  model->enable_gradients();
  const Work work = make_work(options, model->config().vocab);
  const double error = gradient_error(*model, work);
  if (options.dtype == "fp32" && !(error < 0.05))
    throw Error("gradient is {} off its finite difference", error);
  const SystemClock clock;
  std::vector<double> seconds;
  for (int64_t i = 0; i < options.runs + 1; ++i) {
    const TimePoint begin = clock.now();
    model->zero_gradients();
    loss_of(*model, work).backward();
    if (i > 0) seconds.push_back(seconds_between(begin, clock.now()));
  }
  std::sort(seconds.begin(), seconds.end());
  const double median = seconds[seconds.size() / 2];
  const auto tokens = static_cast<double>(options.batch * options.length);
  nlohmann::ordered_json out;
  out["bench"] = "train";
  out["dtype"] = options.dtype;
  out["threads"] = tensor::threads();
  out["batch"] = options.batch;
  out["length"] = options.length;
  out["gradient_error"] = error;
  out["seconds_median"] = median;
  out["seconds_min"] = seconds.front();
  out["seconds_max"] = seconds.back();
  out["tokens_per_s"] = tokens / median;
  // Six operations a weight and token, attention left out: what the arithmetic alone would need.
  out["gflops"] = 6 * static_cast<double>(model->active_parameter_count()) * tokens / median / 1e9;
  fmt::print("{}\n", out.dump());
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app{"Times a forward and a backward pass"};
  app.add_option("model", options.model, "Hugging Face folder")->required();
  app.add_option("--batch", options.batch);
  app.add_option("--length", options.length);
  app.add_option("--runs", options.runs);
  app.add_option("--threads", options.threads);
  app.add_option("--dtype", options.dtype)->check(CLI::IsMember({"fp32", "bf16"}));
  CLI11_PARSE(app, argc, argv);
  try {
    run(options);
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "bench_train: {}\n", error.what());
    return 1;
  }
}
