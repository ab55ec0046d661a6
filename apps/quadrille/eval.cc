// quadrille eval: held-out rows of a run's configuration, answered by a given model.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/error.h"
#include "commands.h"
#include "loop/evaluate.h"
#include "loop/run_checkpoint.h"
#include "loop/stop_flag.h"
#include "observe/progress.h"
#include "rows.h"

namespace quadrille::app {
namespace {

struct Options {
  std::string config, model, checkpoint, output;
  std::vector<std::string> sets;
};

void run(const Options& options, int& exit_code) {
  if (!options.output.empty()) check_writable(options.output);
  loop::RunConfig config = loop::read_run_config(options.config, options.sets);
  if (config.eval.data.empty())
    throw ConfigError("{}: eval.data is empty: nothing to evaluate on", options.config);
  if (!options.model.empty()) {
    config.model.path = options.model;
    config.model.init.clear();
    config.model.tokenizer.clear();
  }
  const SystemClock clock;
  const loop::StopFlag stop;
  loop::Session session(std::move(config), clock, loop::Purpose::kEvaluate);
  if (!options.checkpoint.empty()) loop::load_for_evaluation(options.checkpoint, session);
  observe::Progress progress(clock);
  const loop::Evaluation evaluation = loop::evaluate(
      session, [&] { return stop.requested(); },
      [&](int64_t done, int64_t all) {
        if (progress.live()) progress.show(fmt::format("answers {}/{}", done, all));
      });
  progress.finish();
  if (evaluation.rollouts.interrupted) {
    exit_code = 130;
    return;
  }
  if (!options.output.empty()) {
    std::ofstream out(options.output);
    for (const loop::Scored& answer : evaluation.rollouts.answers)
      out << sample_line(answer, 0, "eval") << '\n';
    if (!out.flush()) throw IoError("{}: cannot be written", options.output);
  }
  nlohmann::ordered_json json;
  for (const auto& [name, value] : evaluation.metrics) json[name] = value;
  fmt::print("{}\n", json.dump());
}

}  // namespace

void add_eval(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<Options>();
  CLI::App* command =
      app.add_subcommand("eval", "Answer and score the held-out rows of a configuration");
  command
      ->add_option("--config", options->config,
                   "TOML file of a run; its [eval], [rollout], [reward] are used")
      ->required();
  command
      ->add_option("--set", options->sets,
                   "section.key=value, over what the file says; may be repeated")
      ->take_all()
      ->allow_extra_args(false);
  auto* model = command->add_option("--model", options->model,
                                    "Hugging Face folder in place of the configuration's model");
  command
      ->add_option("--checkpoint", options->checkpoint,
                   "RUN_DIR/checkpoints/step-...: its weights in the configuration's model")
      ->excludes(model);
  command->add_option("--output", options->output, "Write every answer as JSONL");
  command->footer(
      "Example:\n  quadrille eval --config run.toml --model runs/a/model --set eval.samples=4 "
      "--set eval.temperature=1");
  command->callback([options, &exit_code] { run(*options, exit_code); });
}

}  // namespace quadrille::app
