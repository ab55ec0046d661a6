// quadrille inspect: what a folder is, and whether it is whole.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "base/error.h"
#include "checkpoint/export.h"
#include "commands.h"
#include "model/checkpoint_io.h"

namespace quadrille::app {

void add_inspect(CLI::App& app, int& exit_code) {
  (void)exit_code;
  struct Options {
    std::string model;
    std::string checkpoint;
  };
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand(
      "inspect", "Say what a model or checkpoint folder is; fails if it is damaged");
  auto* model = command->add_option("--model", options->model, "Hugging Face folder");
  auto* checkpoint =
      command->add_option("--checkpoint", options->checkpoint, "RUN_DIR/checkpoints/step-...");
  model->excludes(checkpoint);
  command->footer("Example:\n  quadrille inspect --model runs/a/model");
  command->callback([options] {
    if (options->model.empty() == options->checkpoint.empty()) {
      throw UsageError("inspect needs one of --model DIR and --checkpoint DIR");
    }
    fmt::print("{}", options->model.empty() ? checkpoint::describe_checkpoint(options->checkpoint)
                                            : model::describe_model(options->model));
  });
}

}  // namespace quadrille::app
