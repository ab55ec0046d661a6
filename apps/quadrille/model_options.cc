#include "model_options.h"

#include <CLI/CLI.hpp>

#include "model/checkpoint_io.h"
#include "tensor/threads.h"

namespace quadrille::app {

void add_model_options(CLI::App& command, ModelOptions& options) {
  command.add_option("--model", options.folder, "Hugging Face folder")->required();
  command
      .add_option("--dtype", options.dtype,
                  "auto: fp32 on CPU whatever the file holds, the file's on a GPU")
      ->check(CLI::IsMember({"auto", "fp32", "bf16"}))
      ->capture_default_str();
  command
      .add_option("--threads", options.threads, "CPU threads; 0: all cores this process may use")
      ->check(CLI::Range(0, tensor::kMaxThreads))
      ->capture_default_str();
}

void apply_threads(const ModelOptions& options) {
  tensor::set_threads(options.threads);
}

std::unique_ptr<model::Transformer> load(const ModelOptions& options) {
  const model::DtypeChoice dtype = options.dtype == "fp32"   ? model::DtypeChoice::kFp32
                                   : options.dtype == "bf16" ? model::DtypeChoice::kBf16
                                                             : model::DtypeChoice::kAuto;
  return model::load_model(options.folder, dtype, at::kCPU);
}

}  // namespace quadrille::app
