// Data sets: JSONL, one object a line, checked in whole when opened, so that a run cannot stop at
// row 90,000.
//
//   reinforcement learning   {"prompt": "..."} or {"messages": [...]}; "answer" and any other field
//   go to the reward supervised               {"prompt": "...", "completion": "..."} or
//   {"messages": [...]} with assistant turns
//
// Every complaint names file, line and what to write instead.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace quadrille::text {

enum class DatasetKind { kReinforcement, kSupervised };

struct DatasetRow {
  int64_t line = 0;        // In the file, from 1.
  std::string prompt;      // Empty where the row has messages.
  std::string completion;  // Supervised rows with a prompt.
  // The whole object: what a reward is given. Shared, since a group's samples all point to it.
  std::shared_ptr<const nlohmann::ordered_json> fields;

  // nullptr where the row has a prompt.
  const nlohmann::ordered_json* messages() const;
  // What was asked, for rewards and logs: the prompt, or the text of the last message that is the
  // user's.
  std::string question() const;
};

class Dataset {
 public:
  // Throws IoError or FormatError.
  Dataset(const std::filesystem::path& path, DatasetKind kind);

  int64_t size() const { return static_cast<int64_t>(lines_.size()); }
  // Parsed anew on each call: a data set costs the memory of its file and no more.
  DatasetRow row(int64_t index) const;
  // "train.jsonl:17", for errors found later.
  std::string where(int64_t index) const;
  // Of the file's bytes: a run that is resumed can tell that its data changed.
  uint64_t fingerprint() const { return fingerprint_; }

 private:
  struct Line {
    size_t begin = 0;
    size_t size = 0;
    int64_t number = 0;
  };

  std::filesystem::path path_;
  DatasetKind kind_;
  std::string text_;
  std::vector<Line> lines_;
  uint64_t fingerprint_ = 0;
};

struct SamplerState {
  int64_t epoch = 0;
  int64_t position = 0;  // Rows of this epoch already dealt.
  bool operator==(const SamplerState&) const = default;
};

// Deals row numbers, each once an epoch. Epoch e is a pure function of (seed, e), so the state is
// two numbers.
class Sampler {
 public:
  using State = SamplerState;

  // Throws ConfigError if there are no rows or the state lies beyond them.
  Sampler(int64_t rows, uint64_t seed, bool shuffle, State state = {});

  // Exactly `count` rows; crosses into the next epochs where this one ends.
  std::vector<int64_t> next(int64_t count);
  // Never stands at the end of an epoch: that is the beginning of the next.
  const State& state() const { return state_; }

 private:
  void deal();

  int64_t rows_;
  uint64_t seed_;
  bool shuffle_;
  State state_;
  std::vector<int64_t> order_;
};

}  // namespace quadrille::text
