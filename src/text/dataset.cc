#include "text/dataset.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/error.h"
#include "base/file.h"
#include "base/json_text.h"
#include "base/rng.h"

namespace quadrille::text {
namespace {

using Json = nlohmann::ordered_json;

// The checks of one row. `fail` prefixes file and line.
class RowCheck {
 public:
  RowCheck(std::string where, DatasetKind kind) : where_(std::move(where)), kind_(kind) {}

  Json parse(std::string_view line) const {
    Json row;
    if (const auto danger = json_text_danger(line))
      fail(fmt::format("not valid JSON: {}", *danger));
    try {
      row = Json::parse(line);
    } catch (const Json::exception& error) {
      fail(fmt::format("not valid JSON: {}", json_reason(error.what())));
    }
    if (!row.is_object())
      fail(fmt::format("a row must be one JSON object on one line, found {}", article(row)));
    return row;
  }

  void check(const Json& row) const {
    const bool prompt = present(row, "prompt");
    const bool messages = present(row, "messages");
    if (prompt && messages) fail("has both \"prompt\" and \"messages\"; keep one of them");
    if (!prompt && !messages) {
      fail(
          kind_ == DatasetKind::kSupervised
              ? "has neither \"messages\" nor \"prompt\" with \"completion\"; one of them is needed"
              : "has neither \"prompt\" nor \"messages\"; one of them is needed");
    }
    if (messages) {
      check_messages(row["messages"]);
      return;
    }
    if (row["prompt"].is_array())
      fail("\"prompt\" must be a string; a list of messages goes into \"messages\"");
    check_text(row, "prompt");
    if (kind_ != DatasetKind::kSupervised) return;
    if (!present(row, "completion")) fail("has \"prompt\" but no \"completion\" to train on");
    check_text(row, "completion");
  }

 private:
  [[noreturn]] void fail(const std::string& message) const {
    throw FormatError("{}: {}", where_, message);
  }

  static std::string article(const Json& value) {
    const std::string name = value.type_name();
    return (name == "array" || name == "object" ? "an " : "a ") + name;
  }
  static bool present(const Json& row, const char* key) {
    return row.contains(key) && !row[key].is_null();
  }

  void check_text(const Json& row, const char* key) const {
    if (!row[key].is_string())
      fail(fmt::format("\"{}\" must be a string, found {}", key, article(row[key])));
    if (row[key].get_ref<const std::string&>().empty()) fail(fmt::format("\"{}\" is empty", key));
  }

  void check_messages(const Json& messages) const {
    if (!messages.is_array())
      fail(fmt::format("\"messages\" must be a list, found {}", article(messages)));
    if (messages.empty()) fail("\"messages\" is empty");
    bool has_answer = false;
    for (size_t i = 0; i < messages.size(); ++i) {
      const Json& message = messages[i];
      if (!message.is_object())
        fail(fmt::format("messages[{}] must be an object, found {}", i, article(message)));
      if (!message.contains("role") || !message["role"].is_string()) {
        fail(fmt::format("messages[{}] needs a \"role\" that is a string", i));
      }
      if (message.contains("content")) {
        const Json& content = message["content"];
        if (!content.is_string() && !content.is_null() && !content.is_array()) {
          fail(fmt::format("messages[{}]: \"content\" must be a string, found {}", i,
                           article(content)));
        }
      }
      has_answer = has_answer || message["role"] == "assistant";
    }
    if (kind_ == DatasetKind::kSupervised && !has_answer) {
      fail("\"messages\" has no message of the role \"assistant\" to train on");
    }
    if (kind_ == DatasetKind::kReinforcement && messages.back()["role"] == "assistant") {
      fail(
          "\"messages\" ends with the assistant's answer; the policy writes that, so end with the "
          "question and put the "
          "expected answer into \"answer\"");
    }
  }

  std::string where_;
  DatasetKind kind_;
};

}  // namespace

const Json* DatasetRow::messages() const {
  const auto at = fields->find("messages");
  return at == fields->end() || at->is_null() ? nullptr : &*at;
}

std::string DatasetRow::question() const {
  const Json* all = messages();
  if (all == nullptr) return prompt;
  for (auto message = all->rbegin(); message != all->rend(); ++message) {
    if ((*message)["role"] != "user" || !message->contains("content")) continue;
    const Json& content = (*message)["content"];
    if (content.is_string()) return content.get<std::string>();
    std::string text;
    for (const Json& part : content) {
      if (part.is_object() && part.contains("text") && part["text"].is_string())
        text += part["text"];
    }
    return text;
  }
  return {};
}

Dataset::Dataset(const std::filesystem::path& path, DatasetKind kind)
    : path_(path),
      kind_(kind),
      text_(read_file(path)),
      fingerprint_(XXH3_64bits(text_.data(), text_.size())) {
  size_t begin = 0;
  for (int64_t number = 1; begin < text_.size(); ++number) {
    const size_t newline = std::min(text_.find('\n', begin), text_.size());
    const std::string_view line(text_.data() + begin, newline - begin);
    if (line.find_first_not_of(" \t\r") != std::string_view::npos) {
      lines_.push_back({begin, line.size(), number});
      const RowCheck check(where(size() - 1), kind);
      check.check(check.parse(line));
    }
    begin = newline + 1;
  }
  if (lines_.empty())
    throw FormatError("{}: has no rows; a data set is one JSON object a line", path_.string());
}

DatasetRow Dataset::row(int64_t index) const {
  QD_CHECK(index >= 0 && index < size(), "row {} of {}", index, size());
  const Line& line = lines_[static_cast<size_t>(index)];
  const RowCheck check(where(index), kind_);
  auto fields = std::make_shared<const Json>(
      check.parse(std::string_view(text_).substr(line.begin, line.size)));
  DatasetRow row;
  row.line = line.number;
  if (fields->contains("prompt") && (*fields)["prompt"].is_string())
    row.prompt = (*fields)["prompt"];
  if (kind_ == DatasetKind::kSupervised && !row.prompt.empty())
    row.completion = (*fields)["completion"];
  row.fields = std::move(fields);
  return row;
}

std::string Dataset::where(int64_t index) const {
  return fmt::format("{}:{}", path_.string(), lines_[static_cast<size_t>(index)].number);
}

Sampler::Sampler(int64_t rows, uint64_t seed, bool shuffle, State state)
    : rows_(rows), seed_(seed), shuffle_(shuffle), state_(state) {
  if (rows < 1) throw ConfigError("the data set has no rows");
  if (state.epoch < 0 || state.position < 0 || state.position > rows) {
    throw ConfigError(
        "the run stopped at epoch {}, row {} of its data set, which has only {} rows now: the data "
        "changed. "
        "Resume with the data it was started with, or start a new run",
        state.epoch, state.position, rows);
  }
  if (state_.position == rows_) state_ = {state_.epoch + 1, 0};
  deal();
}

void Sampler::deal() {
  order_.resize(static_cast<size_t>(rows_));
  std::iota(order_.begin(), order_.end(), int64_t{0});
  if (!shuffle_) return;
  Rng rng(mix_seed(seed_, static_cast<uint64_t>(state_.epoch)));
  for (size_t i = order_.size(); i > 1; --i) std::swap(order_[i - 1], order_[rng.below(i)]);
}

std::vector<int64_t> Sampler::next(int64_t count) {
  QD_CHECK(count >= 0, "asked for {} rows", count);
  std::vector<int64_t> out;
  out.reserve(static_cast<size_t>(count));
  while (static_cast<int64_t>(out.size()) < count) {
    out.push_back(order_[static_cast<size_t>(state_.position)]);
    if (++state_.position < rows_) continue;
    state_ = {state_.epoch + 1, 0};
    deal();
  }
  return out;
}

}  // namespace quadrille::text
