// The "normalizer" of tokenizer.json: rewrites the text between added tokens before it is split.
// Supported: NFC, Prepend, Replace, Sequence.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "text/tokenizer_file.h"
#include "text/tokenizer_regex.h"

namespace quadrille::text {

// Replaces every match of a pattern: a normalizer and a decoder of the format.
class Replacement {
 public:
  explicit Replacement(const JsonPlace& component);
  // True if it would also insert its content where there is nothing to replace (as far as a probe
  // can tell).
  bool matches_nothing() const;
  // True if it only ever puts something in the place of one character.
  bool keeps_places() const;
  // Returns false, `out` untouched, when nothing in valid UTF-8 `text` matches.
  bool apply(std::string_view text, RegexScratch& scratch, std::string& out) const;

 private:
  std::string literal_;  // Used where regex_ is null. Never empty.
  std::shared_ptr<const Regex> regex_;
  std::string content_;
};

class Normalizer {
 public:
  // `place` may be null: nothing to do. Throws FormatError.
  explicit Normalizer(const JsonPlace& place);

  // True if the text that comes out begins with what the text that went in began with.
  bool keeps_start() const;
  // `text` is valid UTF-8. Returns it, or a view of one of the two buffers.
  std::string_view apply(std::string_view text, RegexScratch& scratch,
                         std::string (&buffers)[2]) const;

 private:
  struct Nfc {};
  struct Prepend {
    std::string text;
  };
  void add(const JsonPlace& place, int depth);

  std::vector<std::variant<Nfc, Prepend, Replacement>> steps_;
};

}  // namespace quadrille::text
