// Everything one run holds, built from its configuration in an order in which each mistake is found
// before the expensive part starts: configuration, data, tokenizer, model, reward.
#pragma once

#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "learn/trainer.h"
#include "loop/run_config.h"
#include "loop/task.h"
#include "model/transformer.h"
#include "reward/reward.h"
#include "rollout/engine.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace quadrille::loop {

enum class Purpose {
  kTrain,
  kEvaluate
};  // To evaluate takes no training data, gradients or optimizer.

struct Session {
  // Throws ConfigError, FormatError or IoError; nothing was written yet.
  Session(RunConfig config, const Clock& clock, Purpose purpose = Purpose::kTrain);

  RunConfig config;
  const Clock& clock;
  std::tm date;  // When the run began: what its chat templates tell as the date.
  std::filesystem::path
      text_folder;  // Where tokenizer and template come from; carried into exports.
  std::unique_ptr<text::Tokenizer> tokenizer;
  std::optional<text::ChatTemplate> chat_template;
  std::vector<int32_t> end_tokens;
  std::unique_ptr<Task> train_task;  // Null when evaluating.
  std::unique_ptr<Task> eval_task;   // Null: no evaluation.
  std::unique_ptr<model::Transformer> model;
  std::unique_ptr<model::Transformer> reference;  // Null unless a KL term asks for it.
  std::unique_ptr<reward::Reward> reward;         // Null for SFT without evaluation.
  std::unique_ptr<rollout::Engine> engine;
  std::unique_ptr<learn::Trainer> trainer;  // Null when evaluating.

  // A run that is taken up again keeps the date it began with.
  void set_date(const std::tm& began);

  // What the run will need and has, in lines: for --dry-run and the start of a run.
  std::string summary() const;

 private:
  void prepare_training();
};

}  // namespace quadrille::loop
