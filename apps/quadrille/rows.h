// JSONL rows in and out, and the text side of a model folder, for the subcommands that read rows.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace quadrille::app {

struct Row {
  nlohmann::ordered_json json;
  nlohmann::ordered_json id;  // As given, of any type; the row's number from 0 where there is none.
  std::string place;          // "file:line".

  bool has(const char* key) const { return json.contains(key); }
  // The field as a string or as token ids; throws FormatError naming the place.
  const std::string& text(const char* key) const;
  std::vector<int32_t> token_ids(const char* key) const;
  [[noreturn]] void fail(const std::string& what) const;
};

// Every non-empty line must be a JSON object; errors name file and line.
std::vector<Row> read_rows(const std::filesystem::path& path);
// One object a line, to `out`. Damaged UTF-8 is replaced, a missing number is null.
void append_line(std::string& out, const nlohmann::ordered_json& json);

// Throws IoError now if the file could not be written later, after hours of work.
void check_writable(const std::filesystem::path& path);

// Tokenizer and chat template of a model folder, each only if its file is there.
class FolderText {
 public:
  explicit FolderText(const std::filesystem::path& folder);

  const text::Tokenizer* tokenizer() const { return tokenizer_ ? &*tokenizer_ : nullptr; }
  // Throw FormatError naming the row if what they need is missing.
  std::vector<int32_t> encode(const Row& row, const std::string& text) const;
  std::vector<int32_t> render(const Row& row) const;  // "messages", with a generation prompt.

 private:
  std::filesystem::path folder_;
  std::optional<text::Tokenizer> tokenizer_;
  std::optional<text::ChatTemplate> template_;
};

}  // namespace quadrille::app
