// --model, --dtype and --threads, for the subcommands that run a model.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "model/transformer.h"

namespace CLI {
class App;
}

namespace quadrille::app {

struct ModelOptions {
  std::string folder;
  std::string dtype = "auto";
  int threads = 0;
};

void add_model_options(CLI::App& command, ModelOptions& options);
void apply_threads(const ModelOptions& options);
std::unique_ptr<model::Transformer> load(const ModelOptions& options);

}  // namespace quadrille::app
