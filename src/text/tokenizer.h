// Text to token ids and back, from a Hugging Face tokenizer.json (byte-pair encoding).
//
// The promise: a file that loads gives exactly the ids and the text of the `tokenizers` library, on
// any input. Whatever of the format is not implemented to that standard is refused when the file is
// loaded, by name and place; nothing is ignored in silence except what encode() says it leaves out.
//
// A Tokenizer is immutable. Copies are cheap and share the tables; every const function may be
// called from any number of threads at once.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace quadrille::text {

struct TokenizerTables;
class DecodeStages;

class Tokenizer {
 public:
  // A folder that holds tokenizer.json, or such a file. Throws IoError when it cannot be read, and
  // FormatError naming the file and the JSON path when it is damaged or asks for an unsupported
  // part.
  static Tokenizer load(const std::filesystem::path& folder_or_file);
  // The same from the text of such a file; `origin` stands for the file's name in messages.
  static Tokenizer from_json(std::string_view json, const std::string& origin);

  // No special tokens are added: the file's post_processor, truncation and padding are left out.
  // Special and other added tokens written inside the text become their ids. Bytes that are not
  // UTF-8 are read as U+FFFD, one for each maximal damaged part (Python's errors="replace").
  std::vector<int32_t> encode(std::string_view text) const;

  // Valid UTF-8, always: bytes that make no character become U+FFFD. Ids without a token are left
  // out, as in the library; ask contains() first where that would hide a fault.
  std::string decode(std::span<const int32_t> ids, bool skip_special_tokens) const;

  // Largest id + 1, added tokens included. Ids may have gaps: see contains().
  int64_t vocabulary_size() const;
  bool contains(int32_t id) const;
  // True for added tokens that are marked special: what decode() can skip.
  bool is_special(int32_t id) const;
  std::optional<int32_t> token_to_id(std::string_view token) const;
  // The token as the file spells it (byte-level tokens in their printable alphabet: "Ġthe"). Throws
  // Error for an id without a token.
  std::string id_to_token(int32_t id) const;

 private:
  friend class StreamDecoder;
  explicit Tokenizer(std::shared_ptr<const TokenizerTables> tables);

  std::shared_ptr<const TokenizerTables> tables_;
};

// Decodes ids one at a time and never emits half a character. What all push() calls and finish()
// return, joined, equals decode() of all ids. One thread at a time.
class StreamDecoder {
 public:
  StreamDecoder(const Tokenizer& tokenizer, bool skip_special_tokens);
  ~StreamDecoder();
  StreamDecoder(StreamDecoder&&) noexcept;
  StreamDecoder& operator=(StreamDecoder&&) noexcept;

  // The text that has become certain with this id; empty while a character is incomplete.
  std::string push(int32_t id);
  // The rest: an incomplete character comes out as U+FFFD. Call it once, after the last push().
  std::string finish();

 private:
  std::shared_ptr<const TokenizerTables> tables_;
  std::unique_ptr<DecodeStages> stages_;
  bool skip_special_tokens_;
};

}  // namespace quadrille::text
