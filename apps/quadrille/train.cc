// quadrille train: one run from its configuration.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "base/clock.h"
#include "base/error.h"
#include "commands.h"
#include "loop/train.h"

namespace quadrille::app {
namespace {

struct Options {
  std::string config;
  std::vector<std::string> sets;
  bool resume = false;
  bool dry_run = false;
  std::string help_config;
};

constexpr const char* kMarkdownTitle =
    "# Configuration\n\nOne TOML file a run. Any key can be changed on the command line: `--set "
    "section.key=value`. An unknown "
    "key is an error that names the nearest known one. The resolved configuration is saved as "
    "`RUN_DIR/config.toml`.\n\n"
    "This page is made from the program by `make docs`.\n";

void run(const Options& options, int& exit_code) {
  if (!options.help_config.empty()) {
    loop::RunConfig defaults;
    const ConfigBinder binder = loop::bind(defaults);
    const bool markdown = options.help_config == "markdown";
    fmt::print("{}{}", markdown ? kMarkdownTitle : "",
               markdown ? binder.markdown() : binder.help());
    return;
  }
  if (options.config.empty())
    throw UsageError("train needs --config FILE (quadrille train --help shows an example)");
  const SystemClock clock;
  const loop::StopFlag stop;
  loop::RunConfig config = loop::read_run_config(options.config, options.sets);
  const loop::Outcome outcome = loop::train(
      std::move(config), {.resume = options.resume, .dry_run = options.dry_run}, clock, stop);
  exit_code = outcome == loop::Outcome::kInterrupted ? 130 : 0;
}

}  // namespace

void add_train(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<Options>();
  CLI::App* command =
      app.add_subcommand("train", "Train a model: SFT or GRPO, by the configuration's [algorithm]");
  command->add_option("--config", options->config, "TOML file of the run");
  command
      ->add_option("--set", options->sets,
                   "section.key=value, over what the file says; may be repeated")
      ->take_all()
      ->allow_extra_args(false);
  command->add_flag("--resume", options->resume,
                    "Continue from the newest good checkpoint in run.dir");
  command->add_flag("--dry-run", options->dry_run,
                    "Check everything, print configuration and memory, write nothing");
  command
      ->add_option("--help-config", options->help_config,
                   "Print every configuration key with its default (=markdown: as a page)")
      ->expected(0, 1)
      ->default_str("text")
      ->check(CLI::IsMember({"text", "markdown"}));
  command->footer(
      "Example:\n  quadrille train --config run.toml --set run.dir=runs/a --set optimizer.lr=2e-5\n"
      "Ctrl-C saves and exits with 130; the same command with --resume goes on.");
  command->callback([options, &exit_code] { run(*options, exit_code); });
}

}  // namespace quadrille::app
