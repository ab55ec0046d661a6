// What a row of a data set becomes before the model sees it: token ids, and the text a verifier is
// shown.
#pragma once

#include <cstdint>
#include <ctime>
#include <filesystem>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "learn/trainer.h"
#include "text/chat_template.h"
#include "text/dataset.h"
#include "text/tokenizer.h"

namespace quadrille::loop {

struct Prompt {
  int64_t row = 0;
  std::string text;             // The prompt, or the last user message: what a verifier is shown.
  std::vector<int32_t> tokens;  // Of all that stands before the answer, chat template included.
  std::shared_ptr<const nlohmann::ordered_json> fields;  // The row.
};

// Rows of one file with the tokenizer and template that turn them into tokens. Both outlive it;
// `date` is what a template may put in a prompt: one for the whole run.
class Task {
 public:
  Task(const std::filesystem::path& file, text::DatasetKind kind, const text::Tokenizer& tokenizer,
       const text::ChatTemplate* chat_template, std::tm date, int64_t max_prompt_tokens);

  int64_t rows() const { return data_.size(); }
  void set_date(const std::tm& date) { date_ = date; }
  // Turns the first `rows` rows (0: all) into tokens once, so that one which cannot be, or which is
  // longer than the model's `positions`, is an error before the work starts and not after a day of
  // it. Encoding is quick: tens of megabytes a second.
  void check(int64_t rows, int64_t positions) const;
  // RL rows. Errors name the file's line.
  Prompt prompt(int64_t row) const;
  // SFT rows: prompt + completion + end token, the completion trained; or the template's assistant
  // turns.
  learn::SftExample example(int64_t row, std::optional<int32_t> end_token) const;

 private:
  const text::ChatTemplate& chat(int64_t row) const;

  text::Dataset data_;
  text::DatasetKind kind_;
  const text::Tokenizer& tokenizer_;
  const text::ChatTemplate* template_;
  std::tm date_;
  int64_t max_prompt_tokens_;
};

}  // namespace quadrille::loop
