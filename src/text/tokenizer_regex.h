// A compiled pattern of tokenizer.json, and all of its matches in a text. PCRE2 with its
// just-in-time compiler.
#pragma once

#include <memory>
#include <string_view>

namespace quadrille::text {

// Bytes [begin, end) of a text.
struct Range {
  size_t begin = 0;
  size_t end = 0;
};

// What a thread needs to match: one at a time may use it.
class RegexScratch {
 public:
  RegexScratch();
  ~RegexScratch();
  RegexScratch(RegexScratch&&) noexcept;

 private:
  friend class RegexMatches;
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

class Regex {
 public:
  // Throws PatternError (tokenizer_pattern.h). `pattern` follows Oniguruma's Ruby syntax.
  explicit Regex(std::string_view pattern);
  ~Regex();
  Regex(Regex&&) noexcept;

 private:
  friend class RegexMatches;
  struct Code;
  std::unique_ptr<Code> code_;
};

// The matches in a text, from left to right. They do not overlap, and an empty match next to the
// end of the one before is passed over. Several may be under way with one scratch.
class RegexMatches {
 public:
  // `text` is valid UTF-8 that went through with_stand_ins(). All three must outlive this.
  RegexMatches(const Regex& regex, std::string_view text, RegexScratch& scratch)
      : regex_(regex), text_(text), scratch_(scratch) {}

  // Returns false when there are no more. Throws Error when PCRE2 gives up (it would need more
  // memory than it may have): a text is never split by half.
  bool next(Range& match);

 private:
  const Regex& regex_;
  std::string_view text_;
  RegexScratch& scratch_;
  size_t at_ = 0;
  size_t last_end_ = std::string_view::npos;
};

}  // namespace quadrille::text
