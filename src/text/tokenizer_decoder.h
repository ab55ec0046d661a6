// The "decoder" of tokenizer.json, as a line of stages that tokens are pushed through one at a
// time. Decoding a whole sequence and streaming are the same code, so they cannot differ.
// Supported: ByteLevel, Metaspace, Replace, ByteFallback, Fuse, Strip, Sequence; none (spaces
// between tokens).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "text/tokenizer_file.h"
#include "text/tokenizer_normalizer.h"
#include "text/tokenizer_regex.h"

namespace quadrille::text {

class Decoder {
 public:
  // Throws FormatError.
  explicit Decoder(const JsonPlace& place);

 private:
  friend class DecodeStages;
  struct ByteLevel {};     // Letters of the byte alphabet -> bytes -> one text.
  struct ByteFallback {};  // Runs of "<0x61>" -> text.
  struct Fuse {};          // All tokens -> one text.
  struct JoinBySpaces {};  // The same with spaces between.
  struct Metaspace {
    char32_t mark;
    bool drops_first;  // Marks in the first token vanish, all others become spaces.
  };
  struct Strip {
    std::string content;  // One character.
    int64_t start;        // At most so many are taken off at the start of a token,
    int64_t stop;         // and at its end.
  };
  using Step =
      std::variant<ByteLevel, ByteFallback, Fuse, JoinBySpaces, Metaspace, Strip, Replacement>;
  void add(const JsonPlace& place, int depth);

  std::vector<Step> steps_;
};

class DecodeStages {
 public:
  // `decoder` must outlive this.
  explicit DecodeStages(const Decoder& decoder);

  // Append what has become certain to `out`: whole characters only.
  void push(std::string_view token, std::string& out);
  void finish(std::string& out);

 private:
  // What a stage remembers. After a stage that makes one text of all tokens, the next ones get
  // their single token in parts.
  struct State {
    std::string parts;  // Of the token under way, for stages that need it whole.
    std::string bytes;  // ByteLevel: an unfinished character. ByteFallback: the run of byte tokens.
    int64_t stripped = 0;   // Strip: characters taken off this token so far.
    bool stripping = true;  // Strip: nothing else has come yet in this token.
    bool first = true;      // Metaspace, JoinBySpaces: this is the first token.
  };
  // Gives stage `index` a part of a token, the last one if `ends`.
  void give(size_t index, std::string_view part, bool ends, std::string& out);
  void give_whole(size_t index, std::string_view token, std::string& out);
  void add_bytes(size_t index, std::string_view token, std::string& out);
  void flush_fallback(size_t index, std::string& out);

  const Decoder& decoder_;
  std::vector<State> states_;
  RegexScratch regex_;
};

}  // namespace quadrille::text
