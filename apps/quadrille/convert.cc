// quadrille convert: models from one form into another.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>

#include "base/error.h"
#include "commands.h"
#include "loop/run_checkpoint.h"
#include "model/checkpoint_io.h"
#include "model/upcycle.h"

namespace quadrille::app {
namespace {

void refuse_existing(const std::string& folder) {
  if (std::filesystem::exists(folder) && !std::filesystem::is_empty(folder)) {
    throw ConfigError("{} is not empty: choose another --output", folder);
  }
}

at::ScalarType dtype_of(const std::string& name) {
  return name == "bf16" ? at::kBFloat16 : at::kFloat;
}

struct UpcycleCommand {
  std::string model, output, dtype = "fp32";
  model::UpcycleOptions options;
};

void run_upcycle(const UpcycleCommand& c) {
  refuse_existing(c.output);
  const auto dense = model::load_model(c.model, model::DtypeChoice::kFp32, at::kCPU);
  const auto moe = model::upcycle(*dense, c.options);
  model::save_model(*moe, c.output, {.dtype = dtype_of(c.dtype), .carry_from = c.model});
  fmt::print("{}", model::describe_model(c.output));
}

void add_upcycle(CLI::App& convert) {
  auto c = std::make_shared<UpcycleCommand>();
  CLI::App* command = convert.add_subcommand(
      "upcycle", "Make a dense model a Mixture of Experts that computes the same");
  command->add_option("--model", c->model, "Dense Hugging Face folder (llama or qwen3)")
      ->required();
  command->add_option("--output", c->output, "Folder for the MoE (mixtral or qwen3_moe)")
      ->required();
  command->add_option("--copies", c->options.copies, "Copies of each feed-forward layer")
      ->capture_default_str();
  command->add_option("--split", c->options.split, "Fine-grained experts per copy")
      ->capture_default_str();
  command
      ->add_option("--top-copies", c->options.top_copies,
                   "Copies a token goes to; top_k is this times --split")
      ->capture_default_str();
  command->add_option("--router-scale", c->options.router_scale, "Deviation of the new router")
      ->capture_default_str();
  command->add_option("--noise", c->options.noise, "Noise on experts, relative to their deviation")
      ->capture_default_str();
  command->add_option("--seed", c->options.seed, "Seed of router and noise")->capture_default_str();
  command->add_option("--dtype", c->dtype, "fp32 or bf16, as written")
      ->check(CLI::IsMember({"fp32", "bf16"}));
  command->footer(
      "Example:\n  quadrille convert upcycle --model models/SmolLM2-135M-Instruct --output "
      "models/moe --copies 4 --split 2");
  command->callback([c] { run_upcycle(*c); });
}

void add_checkpoint(CLI::App& convert) {
  struct Command {
    std::string checkpoint, output, dtype = "fp32";
  };
  auto c = std::make_shared<Command>();
  CLI::App* command =
      convert.add_subcommand("checkpoint", "Make a training checkpoint a Hugging Face folder");
  command->add_option("--checkpoint", c->checkpoint, "RUN_DIR/checkpoints/step-...")->required();
  command->add_option("--output", c->output, "Folder for the model")->required();
  command->add_option("--dtype", c->dtype, "fp32 or bf16, as written")
      ->check(CLI::IsMember({"fp32", "bf16"}));
  command->footer(
      "Example:\n  quadrille convert checkpoint --checkpoint runs/a/checkpoints/step-000050 "
      "--output models/a50");
  command->callback([c] {
    refuse_existing(c->output);
    loop::export_checkpoint(c->checkpoint, c->output, dtype_of(c->dtype));
    fmt::print("{}", model::describe_model(c->output));
  });
}

}  // namespace

void add_convert(CLI::App& app, int& exit_code) {
  (void)exit_code;
  CLI::App* convert = app.add_subcommand(
      "convert", "Convert models: dense to MoE, checkpoint to Hugging Face folder");
  convert->require_subcommand(1);
  add_upcycle(*convert);
  add_checkpoint(*convert);
}

}  // namespace quadrille::app
