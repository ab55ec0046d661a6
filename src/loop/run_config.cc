#include "loop/run_config.h"

#include <fmt/format.h>

#include <map>
#include <sstream>

#include "base/error.h"
#include "base/file.h"
#include "tensor/threads.h"

namespace quadrille::loop {
namespace {

void bind_run(RunSettings& c, ConfigBinder& b) {
  b.section("run", "Where, how long, and from which seed.");
  b.field("dir", c.dir, "Folder of the run; it must be empty or missing unless --resume is given.");
  b.field("seed", c.seed,
          "Everything random is derived from it: the same seed gives the same run.");
  b.field("steps", c.steps, "Optimizer steps in all; raise it and --resume to go on.");
  b.field("device", c.device, "Where the model lives; auto takes the best there is.",
          {"auto", "cpu"});
  b.field("threads", c.threads, "Threads of the kernels; 0: all cores this process may use.");
}

void bind_data(DataConfig& c, ConfigBinder& b) {
  b.section("data", "What is trained on.");
  b.field("train", c.train,
          "JSONL file. For RL rows of {\"prompt\" or \"messages\", \"answer\"?, ...}, all fields "
          "handed to the reward; "
          "for SFT {\"prompt\", \"completion\"} or \"messages\".");
  b.field("shuffle", c.shuffle,
          "A fresh order each epoch, a function of the seed; false: the file's order.");
  b.field("max_prompt_tokens", c.max_prompt_tokens,
          "A longer prompt is an error that names its line; 0: only the model's own limit counts.");
}

void bind_eval(EvalConfig& c, ConfigBinder& b) {
  b.section("eval", "Held-out rows, answered and scored while training goes on.");
  b.field("data", c.data, "JSONL file like data.train; empty: no evaluation.");
  b.field("every", c.every,
          "Steps between two evaluations; one comes before the first step, one after the last.");
  b.field("samples", c.samples,
          "Answers per row; accuracy is their mean. Above 1 eval/pass_at_n, best_of_n and "
          "majority_at_n are reported too.");
  b.field("temperature", c.temperature, "0: the most likely token each time.");
  b.field("max_rows", c.max_rows, "Only the first rows of the file; 0: all.");
}

void bind_observe(ObserveConfig& c, ConfigBinder& b) {
  b.section("observe", "What is written down beside metrics.jsonl.");
  b.field("tensorboard", c.tensorboard, "Also write TensorBoard event files.");
  b.field("samples_per_step", c.samples_per_step, "Answers a step that go to samples.jsonl.");
}

}  // namespace

ConfigBinder bind(RunConfig& config) {
  ConfigBinder b;
  bind_run(config.run, b);
  b.section("model", "The policy: a Hugging Face folder, or random weights of a given shape.");
  model::bind(config.model, b);
  bind_data(config.data, b);
  bind_eval(config.eval, b);
  b.section("rollout", "How answers are generated.");
  rollout::bind(config.rollout, b);
  b.section("reward", "How answers are judged.");
  reward::bind(config.reward, b);
  b.section("algorithm", "What is optimised.");
  learn::bind(config.algorithm, b);
  b.section("optimizer", "AdamW and its schedule.");
  learn::bind(config.optimizer, b);
  b.section("checkpoint", "What --resume continues from.");
  checkpoint::bind(config.checkpoint, b);
  bind_observe(config.observe, b);
  return b;
}

RunConfig read_run_config(const std::filesystem::path& file, const std::vector<std::string>& sets) {
  RunConfig config;
  ConfigBinder binder = bind(config);
  binder.read_file(file);
  for (const std::string& assignment : sets) binder.set(assignment);
  config.reward.parts = reward::read_parts(quadrille::read_file(file), file.string());
  learn::apply_preset(config.algorithm, binder, config.rollout.max_new_tokens);
  config.validate();
  return config;
}

std::string to_toml(RunConfig& config) {
  return bind(config).to_toml() + reward::parts_to_toml(config.reward);
}

std::vector<std::string> config_changes(const std::string& before, const std::string& now) {
  const auto values = [](const std::string& toml) {
    std::vector<std::pair<std::string, std::string>> out;
    std::istringstream lines(toml);
    std::string section;
    int tables = 0;  // Tables of an array have one name: their number tells them apart.
    for (std::string line; std::getline(lines, line);) {
      const size_t equals = line.find(" = ");
      if (line.starts_with("[[")) {
        section = fmt::format("{}[{}]", line.substr(2, line.find(']') - 2), tables++);
      } else if (line.starts_with('[')) {
        section = line.substr(1, line.find(']') - 1);
      } else if (equals != std::string::npos) {
        out.emplace_back(section + "." + line.substr(0, equals), line.substr(equals + 3));
      }
    }
    return out;
  };
  const auto old_values = values(before);
  const std::map<std::string, std::string> old_by_key(old_values.begin(), old_values.end());
  std::vector<std::string> changes;
  for (const auto& [key, value] : values(now)) {
    const auto found = old_by_key.find(key);
    if (found != old_by_key.end() && found->second != value) {
      changes.push_back(fmt::format("{}: {} -> {}", key, found->second, value));
    }
  }
  return changes;
}

void RunConfig::validate() const {
  const auto at_least = [](const char* key, int64_t value, int64_t least) {
    if (value < least) throw ConfigError("{} = {}: must be at least {}", key, value, least);
  };
  at_least("run.steps", run.steps, 1);
  at_least("run.seed", run.seed, 0);
  at_least("run.threads", run.threads, 0);
  if (run.threads > tensor::kMaxThreads) {
    throw ConfigError("run.threads = {}: {} are the most", run.threads, tensor::kMaxThreads);
  }
  at_least("eval.every", eval.every, 1);
  at_least("eval.samples", eval.samples, 1);
  at_least("eval.max_rows", eval.max_rows, 0);
  at_least("data.max_prompt_tokens", data.max_prompt_tokens, 0);
  if (eval.temperature < 0)
    throw ConfigError("eval.temperature = {}: must be at least 0", eval.temperature);
  at_least("observe.samples_per_step", observe.samples_per_step, 0);
  if (run.dir.empty()) throw ConfigError("run.dir is empty: name the folder of the run");
  if (data.train.empty()) throw ConfigError("data.train is empty: name the JSONL file to train on");
  if (eval.samples > 1 && eval.temperature == 0) {
    throw ConfigError(
        "eval.samples = {} with eval.temperature = 0 would give the same answer {} times",
        eval.samples, eval.samples);
  }
  checkpoint.validate();
  algorithm.validate();
  optimizer.validate();
  rollout.validate();
}

}  // namespace quadrille::loop
