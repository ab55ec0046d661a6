// quadrille inspect: what a folder is, and whether it is whole.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
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
    std::string path;
  };
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand(
      "inspect", "Say what a model or checkpoint folder is; fails if it is damaged");
  auto* model = command->add_option("--model", options->model, "Hugging Face folder");
  auto* checkpoint =
      command->add_option("--checkpoint", options->checkpoint, "RUN_DIR/checkpoints/step-...");
  model->excludes(checkpoint);
  command->add_option("path", options->path, "A folder of either kind")
      ->excludes(model)
      ->excludes(checkpoint);
  command->footer("Example:\n  quadrille inspect runs/a/model");
  command->callback([options] {
    if (!options->path.empty()) {
      // Whatever has a config.json is a model: a checkpoint keeps its own a folder deeper.
      const std::filesystem::path folder = options->path;
      const bool is_model = std::filesystem::exists(folder / "config.json");
      if (!is_model && std::filesystem::is_directory(folder) &&
          !std::filesystem::exists(folder / "manifest.json") &&
          checkpoint::list_steps(folder).empty()) {
        throw FormatError(
            "{}: neither a model (no config.json) nor a checkpoint (no manifest.json, "
            "no step-NNNNNN)",
            options->path);
      }
      (is_model ? options->model : options->checkpoint) = options->path;
    }
    if (options->model.empty() == options->checkpoint.empty()) {
      throw UsageError("inspect needs a folder: PATH, --model DIR or --checkpoint DIR");
    }
    fmt::print("{}", options->model.empty() ? checkpoint::describe_checkpoint(options->checkpoint)
                                            : model::describe_model(options->model));
  });
}

}  // namespace quadrille::app
