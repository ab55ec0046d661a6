// A checkpoint and the outside: what it needs to stand alone, what people are told of it, and the
// Hugging Face folder made of it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "model/checkpoint_io.h"
#include "model/config.h"

namespace quadrille::checkpoint {

// What goes into a checkpoint's model/: a config.json that gives back exactly `config`, and the
// tokenizer, template and generation files of `carry_from` (empty: a model without them). The
// config.json there is kept as it is where it says the same.
std::vector<StoredText> model_files(const model::ModelConfig& config,
                                    const std::filesystem::path& carry_from);

// Writes the checkpoint's weights as a model folder. `options.carry_from` is set to the
// checkpoint's own files.
void export_model(const Checkpoint& checkpoint, const std::filesystem::path& folder,
                  model::SaveOptions options);

// For `quadrille inspect --checkpoint`: a step's folder, or a run's folder of them (the newest is
// described and all are listed). Checks everything; throws FormatError or IoError if the one
// described is damaged.
std::string describe_checkpoint(const std::filesystem::path& folder);

}  // namespace quadrille::checkpoint
