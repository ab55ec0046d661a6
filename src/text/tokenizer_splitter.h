// The "pre_tokenizer" of tokenizer.json: cuts a text into the pieces that are merged each on its
// own. Supported: Split, ByteLevel, Digits, Metaspace, Whitespace, WhitespaceSplit, Sequence.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "text/tokenizer_file.h"
#include "text/tokenizer_regex.h"

namespace quadrille::text {

// Which side a separator goes to; the library's names.
enum class SplitBehaviour {
  kIsolated,
  kRemoved,
  kMergedWithPrevious,
  kMergedWithNext,
  kContiguous
};

class Splitter {
 public:
  // `place` may be null: each text is one piece. Throws FormatError.
  explicit Splitter(const JsonPlace& place);

  // ByteLevel spells bytes in the printable alphabet of GPT-2. Where that is the last step it is
  // left out from now on, the pieces are the bytes themselves, and this returns true.
  bool leave_bytes();

  // True if pieces depend on `at_start`.
  bool asks_for_start() const;

  using Emit = std::function<void(std::string_view piece)>;
  // Calls emit() with each piece in order; none is empty, none outlives its call. `text` is valid
  // UTF-8. `at_start`: it begins where the whole input begins (Metaspace's "first").
  void split(std::string_view text, bool at_start, RegexScratch& scratch, const Emit& emit) const;

 private:
  struct RegexSplit {
    std::shared_ptr<const Regex> regex;
    SplitBehaviour behaviour;
    bool invert;
  };
  struct LiteralSplit {
    std::string text;
    SplitBehaviour behaviour;
    bool invert;
  };
  struct ClassSplit {
    bool (*matches)(char32_t);
    SplitBehaviour behaviour;
  };
  struct SpaceBefore {};  // Puts a space before each piece that has none.
  struct MetaspaceMark {
    std::string mark;  // Replaces each space, and comes before pieces by `prepend`.
    enum class Prepend { kAlways, kFirst, kNever } prepend;
  };
  struct ByteAlphabet {};
  using Step =
      std::variant<RegexSplit, LiteralSplit, ClassSplit, SpaceBefore, MetaspaceMark, ByteAlphabet>;

  struct Piece;
  struct Run;

  void add(const JsonPlace& place, int depth);
  void add_byte_level(const JsonPlace& place);
  void add_metaspace(const JsonPlace& place);

  void apply(size_t step, const Piece& piece, const Run& run) const;
  template <class Matches>
  void cut(size_t step, const Piece& piece, const Run& run, SplitBehaviour behaviour, bool invert,
           Matches matches) const;

  std::vector<Step> steps_;
};

// GPT-2's printable alphabet: the character that stands for a byte, as UTF-8, and back.
const std::string& byte_letter(unsigned char byte);
// -1 for a character that stands for no byte.
int letter_byte(char32_t c);
// Appends the bytes that `token` spells. Returns false, `bytes` untouched, if it has a character of
// no byte.
bool append_letter_bytes(std::string_view token, std::string& bytes);

}  // namespace quadrille::text
