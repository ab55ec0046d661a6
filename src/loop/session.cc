#include "loop/session.h"

#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "model/checkpoint_io.h"
#include "model/layout.h"
#include "observe/progress.h"
#include "rollout/memory.h"
#include "tensor/threads.h"

namespace quadrille::loop {
namespace {

model::DtypeChoice dtype_choice(const std::string& name) {
  if (name == "fp32") return model::DtypeChoice::kFp32;
  return name == "bf16" ? model::DtypeChoice::kBf16 : model::DtypeChoice::kAuto;
}

std::filesystem::path choose_text_folder(const model::ModelSettings& settings) {
  if (!settings.tokenizer.empty()) return settings.tokenizer;
  if (!settings.path.empty()) return settings.path;
  throw ConfigError(
      "model.tokenizer is empty: a model with init = \"random\" needs a folder with "
      "tokenizer.json");
}

// Bytes that training takes for each parameter: its gradient, two moments, and a master where the
// weights themselves are not fp32.
double state_bytes(bool fp32) {
  return 4 + 8 + (fp32 ? 0 : 4);
}

// Weights, and what training adds, must fit before they are allocated: to be killed for memory
// names nothing.
void check_memory(const model::ModelConfig& shape, bool fp32, const RunConfig& config,
                  Purpose purpose) {
  double parameters = 0;
  for (const model::ParameterPlan& plan : model::plan_parameters(shape)) {
    double size = 1;
    for (const int64_t dimension : plan.shape) size *= static_cast<double>(dimension);
    parameters += size;
  }
  const double weight_bytes = fp32 ? 4 : 2;
  double bytes = weight_bytes;
  if (purpose == Purpose::kTrain) {
    bytes += state_bytes(fp32) + (config.algorithm.needs_reference() ? weight_bytes : 0);
  }
  const auto free = static_cast<double>(rollout::free_memory_bytes(at::kCPU));
  if (parameters * bytes <= free) return;
  constexpr double kGib = 1024.0 * 1024.0 * 1024.0;
  throw ConfigError("a model of {} parameters takes {:.1f} GiB of memory{}, {:.1f} GiB are free",
                    observe::format_count(parameters), parameters * bytes / kGib,
                    purpose == Purpose::kTrain ? " to train" : "", free / kGib);
}

std::unique_ptr<model::Transformer> make_model(const RunConfig& run, int64_t vocab,
                                               Purpose purpose) {
  const model::ModelSettings& settings = run.model;
  const bool fp32 = settings.dtype != "bf16";
  if (settings.init.empty()) {
    if (settings.path.empty()) {
      throw ConfigError(
          "[model] names no model: set path = \"FOLDER\", or init = \"random\" with family and "
          "sizes");
    }
    check_memory(model::read_model_config(settings.path), fp32, run, purpose);
    return model::load_model(settings.path, dtype_choice(settings.dtype), at::kCPU,
                             settings.router_dtype == "fp32");
  }
  if (!settings.path.empty()) {
    throw ConfigError("model.path = {} and model.init = \"random\" contradict each other: keep one",
                      settings.path);
  }
  model::InitConfig shape = settings.shape;
  if (shape.vocab == 0) shape.vocab = vocab;
  if (shape.vocab < vocab) {
    throw ConfigError("model.vocab = {} is smaller than the tokenizer's {} tokens", shape.vocab,
                      vocab);
  }
  model::ModelConfig config = model::make_model_config(shape);
  if (settings.router_dtype == "fp32") config.router_fp32 = true;
  config.validate();
  check_memory(config, fp32, run, purpose);
  auto made =
      std::make_unique<model::Transformer>(config, fp32 ? at::kFloat : at::kBFloat16, at::kCPU);
  model::initialize_random(*made, static_cast<uint64_t>(run.run.seed), shape.init_scale);
  return made;
}

}  // namespace

Session::Session(RunConfig run_config, const Clock& run_clock, Purpose purpose)
    : config(std::move(run_config)), clock(run_clock), date(local_time(run_clock.wall_seconds())) {
  tensor::set_threads(static_cast<int>(config.run.threads));
  text_folder = choose_text_folder(config.model);
  tokenizer = std::make_unique<text::Tokenizer>(text::Tokenizer::load(text_folder));
  chat_template = text::ChatTemplate::load(text_folder);
  end_tokens = model::read_end_tokens(text_folder);
  const text::ChatTemplate* templates = chat_template ? &*chat_template : nullptr;
  const bool sft = config.algorithm.is_sft();
  const bool training = purpose == Purpose::kTrain;
  if (training && !sft && config.rollout.temperature == 0) {
    throw ConfigError(
        "rollout.temperature = 0: greedy answers have no log-probability to train on; set it above "
        "0 (eval.temperature is a key of its own)");
  }
  if (training) {
    train_task = std::make_unique<Task>(
        config.data.train, sft ? text::DatasetKind::kSupervised : text::DatasetKind::kReinforcement,
        *tokenizer, templates, date, config.data.max_prompt_tokens);
  }
  if (!config.eval.data.empty()) {
    eval_task = std::make_unique<Task>(config.eval.data, text::DatasetKind::kReinforcement,
                                       *tokenizer, templates, date, config.data.max_prompt_tokens);
  }
  if (!sft || !training || eval_task) reward = reward::make_reward(config.reward);

  model = make_model(config, tokenizer->vocabulary_size(), purpose);
  if (model->config().vocab < tokenizer->vocabulary_size()) {
    throw ConfigError(
        "the model has {} tokens, the tokenizer in {} has {}: they do not belong together",
        model->config().vocab, text_folder.string(), tokenizer->vocabulary_size());
  }
  if (end_tokens.empty() && config.rollout.stop.empty()) {
    log_warn(
        "{} names no end token (generation_config.json or config.json): every answer runs to "
        "max_new_tokens = {}",
        text_folder.string(), config.rollout.max_new_tokens);
  }
  const int64_t positions = model->config().max_positions;
  if (train_task) train_task->check(0, positions);
  if (eval_task) eval_task->check(config.eval.max_rows, positions);
  if (training) prepare_training();
  engine = std::make_unique<rollout::Engine>(*model, tokenizer.get(), config.rollout.engine());
}

void Session::set_date(const std::tm& began) {
  date = began;
  if (train_task) train_task->set_date(began);
  if (eval_task) eval_task->set_date(began);
}

void Session::prepare_training() {
  if (config.algorithm.needs_reference()) {
    reference =
        std::make_unique<model::Transformer>(model->config(), model->dtype(), model->device());
    model::copy_parameters(*model, *reference);
  }
  model->enable_gradients();
  model->set_recompute(config.algorithm.recompute);
  learn::TrainerOptions options;
  options.algorithm = config.algorithm;
  options.optimizer = config.optimizer;
  options.total_steps = config.run.steps * config.algorithm.steps_per_batch();
  options.max_response_tokens = config.rollout.max_new_tokens;
  trainer = std::make_unique<learn::Trainer>(*model, reference.get(), options, clock);
}

std::string Session::summary() const {
  const double parameters = static_cast<double>(model->parameter_count());
  const double active = static_cast<double>(model->active_parameter_count());
  const double weight_bytes = model->dtype() == at::kFloat ? 4 : 2;
  const double reference_bytes = reference ? weight_bytes : 0;
  const double gib = parameters *
                     (weight_bytes + state_bytes(model->dtype() == at::kFloat) + reference_bytes) /
                     (1024.0 * 1024.0 * 1024.0);
  const auto& c = model->config();
  std::string out =
      fmt::format("model: {}, {} parameters ({} active a token), {} layers, hidden {}, {}\n",
                  c.family, observe::format_count(parameters), observe::format_count(active),
                  c.layers.size(), c.hidden, model->dtype() == at::kFloat ? "fp32" : "bf16");
  if (c.experts > 0)
    out += fmt::format("experts: {} of width {}, top-{}\n", c.experts, c.expert_width, c.top_k);
  out += fmt::format("memory: about {:.2f} GiB for weights, gradients and optimizer{}\n", gib,
                     reference ? " and the frozen reference" : "");
  out += fmt::format("data: {} rows in {}", train_task->rows(), config.data.train);
  if (eval_task)
    out += fmt::format("; {} held-out rows in {}", eval_task->rows(), config.eval.data);
  return out + "\n";
}

}  // namespace quadrille::loop
