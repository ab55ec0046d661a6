#include "loop/task.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace quadrille::loop {

Task::Task(const std::filesystem::path& file, text::DatasetKind kind,
           const text::Tokenizer& tokenizer, const text::ChatTemplate* chat_template, std::tm date,
           int64_t max_prompt_tokens)
    : data_(file, kind),
      kind_(kind),
      tokenizer_(tokenizer),
      template_(chat_template),
      date_(date),
      max_prompt_tokens_(max_prompt_tokens) {}

void Task::check(int64_t rows, int64_t positions) const {
  const bool supervised = kind_ == text::DatasetKind::kSupervised;
  const int64_t end = rows > 0 ? std::min(rows, data_.size()) : data_.size();
  for (int64_t row = 0; row < end; ++row) {
    const size_t tokens =
        supervised ? example(row, std::nullopt).tokens.size() : prompt(row).tokens.size();
    if (static_cast<int64_t>(tokens) <= positions) continue;
    throw ConfigError("{}: the {} has {} tokens, the model takes {} positions", data_.where(row),
                      supervised ? "row" : "prompt", tokens, positions);
  }
}

Prompt Task::prompt(int64_t row) const {
  const text::DatasetRow data = data_.row(row);
  Prompt prompt{row, data.question(), {}, data.fields};
  prompt.tokens = tokenizer_.encode(
      data.messages() == nullptr
          ? data.prompt
          : chat(row).render(*data.messages(), {.add_generation_prompt = true, .now = date_}));
  if (prompt.tokens.empty()) throw FormatError("{}: the prompt has no tokens", data_.where(row));
  if (max_prompt_tokens_ > 0 && static_cast<int64_t>(prompt.tokens.size()) > max_prompt_tokens_) {
    throw ConfigError("{}: the prompt has {} tokens, data.max_prompt_tokens is {}",
                      data_.where(row), prompt.tokens.size(), max_prompt_tokens_);
  }
  return prompt;
}

learn::SftExample Task::example(int64_t row, std::optional<int32_t> end_token) const {
  const text::DatasetRow data = data_.row(row);
  learn::SftExample example;
  const auto add = [&](const std::vector<int32_t>& tokens, bool trained) {
    example.tokens.insert(example.tokens.end(), tokens.begin(), tokens.end());
    example.weights.resize(example.tokens.size(), trained ? 1.0F : 0.0F);
  };
  // Tokenised apart, as generation will see it: what stands before an answer alone, then the
  // answer.
  if (data.messages() != nullptr) {
    const text::TurnText turns = chat(row).render_turns(*data.messages(), {.now = date_},
                                                        text::TrainedTurns::kAll, data_.where(row));
    for (const text::TurnText::Piece& piece : turns.pieces())
      add(tokenizer_.encode(piece.text), piece.trained);
  } else {
    add(tokenizer_.encode(data.prompt), false);
    add(tokenizer_.encode(data.completion), true);
    if (end_token) add({*end_token}, true);
  }
  if (!example.weights.empty())
    example.weights[0] = 0;  // Nothing stands before the first token to predict it.
  if (std::find(example.weights.begin(), example.weights.end(), 1.0F) == example.weights.end()) {
    throw FormatError("{}: holds no token to train on", data_.where(row));
  }
  return example;
}

const text::ChatTemplate& Task::chat(int64_t row) const {
  if (template_ == nullptr) {
    throw ConfigError(
        "{}: a row with messages needs a chat template, and the model's folder has none",
        data_.where(row));
  }
  return *template_;
}

}  // namespace quadrille::loop
