// Reads tokenizer.json: the vocabulary and the merges, which are nearly all of its bytes, straight
// into tables, and the rest as JSON with getters that name the file and the place when something is
// wrong.
#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"

namespace quadrille::text {

struct TokenizerFile {
  std::string origin;   // File name for messages.
  nlohmann::json rest;  // An object: all but model.vocab and model.merges.
  std::vector<std::pair<std::string, int64_t>> vocabulary;  // model.vocab in file order.
  std::vector<std::pair<std::string, std::string>>
      merges;  // model.merges: the earlier, the stronger.
  bool has_vocabulary = false;
  bool has_merges = false;
};

// Throws FormatError naming `origin`.
TokenizerFile read_tokenizer_file(std::string_view json, const std::string& origin);

// A JSON value and where it stands, so that an error can say both.
class JsonPlace {
 public:
  JsonPlace(const TokenizerFile& file, const nlohmann::json& value, std::string path)
      : file_(&file), value_(&value), path_(std::move(path)) {}

  template <class... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    throw FormatError("{}: {}: {}", file_->origin, path_,
                      fmt::format(format, std::forward<Args>(args)...));
  }

  const nlohmann::json& value() const { return *value_; }
  const std::string& path() const { return path_; }
  bool is_null() const { return value_->is_null(); }
  // A member, or a null where it is absent. Fails unless this is an object.
  JsonPlace member(const std::string& key) const;
  // The elements of an array.
  std::vector<JsonPlace> elements() const;

  std::string string() const;
  bool boolean() const;
  // The same with the value an absent or null member stands for.
  std::string string_or(const std::string& key, const std::string& absent) const;
  bool boolean_or(const std::string& key, bool absent) const;
  int64_t integer_or(const std::string& key, int64_t absent) const;
  // One character, as UTF-8.
  std::string character(const std::string& key) const;
  // The "type" of a component.
  std::string type() const;

 private:
  const TokenizerFile* file_;
  const nlohmann::json* value_;
  std::string path_;
};

// {"String": s} or {"Regex": s}.
struct PatternText {
  bool is_regex = false;
  std::string text;
};
PatternText read_pattern(const JsonPlace& component);

}  // namespace quadrille::text
