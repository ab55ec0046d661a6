#include "text/tokenizer_splitter.h"

#include <algorithm>
#include <array>

#include "text/tokenizer_pattern.h"
#include "text/tokenizer_unicode.h"

namespace quadrille::text {
namespace {

constexpr size_t kMaxSteps = 64;  // apply() recurses over them.

// What ByteLevel splits by unless use_regex is off.
constexpr const char* kGpt2 =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
// The words of Whitespace, which Rust's regex finds: its \w has the joiners and lacks Oniguruma's
// six numbers.
constexpr const char* kRustWords = R"([\w\x{200C}\x{200D}&&[^\x{B2}\x{B3}\x{B9}\x{BC}-\x{BE}]]+)"
                                   R"(|[[^\w\s\x{200C}\x{200D}]\x{B2}\x{B3}\x{B9}\x{BC}-\x{BE}]+)";

SplitBehaviour behaviour_of(const JsonPlace& place) {
  const std::string name = place.string();
  if (name == "Isolated") return SplitBehaviour::kIsolated;
  if (name == "Removed") return SplitBehaviour::kRemoved;
  if (name == "MergedWithPrevious") return SplitBehaviour::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehaviour::kMergedWithNext;
  if (name == "Contiguous") return SplitBehaviour::kContiguous;
  place.fail("\"{}\" is no behaviour", name);
}

std::shared_ptr<const Regex> compile(const std::string& pattern, const JsonPlace& place) {
  try {
    return std::make_shared<Regex>(pattern);
  } catch (const PatternError& error) {
    place.fail("{}", error.what());
  }
}

// Turns the parts of a text, matches and what is between them, into pieces: emit(begin, end).
template <class Emit>
class Joiner {
 public:
  Joiner(SplitBehaviour behaviour, bool invert, Emit emit)
      : behaviour_(behaviour), invert_(invert), emit_(emit) {}

  void add(size_t begin, size_t end, bool is_match) {
    is_match ^= invert_;
    switch (behaviour_) {
      case SplitBehaviour::kIsolated:
        emit_(begin, end);
        return;
      case SplitBehaviour::kRemoved:
        if (!is_match) emit_(begin, end);
        return;
      case SplitBehaviour::kContiguous:
        // Runs of matches, and runs of the rest, stay together.
        join(begin, end, is_match == previous_, is_match);
        return;
      case SplitBehaviour::kMergedWithPrevious:
        join(begin, end, is_match && !previous_, is_match);
        return;
      case SplitBehaviour::kMergedWithNext:
        // A match waits for the next part; one that is followed by another match stands alone.
        join(begin, end, previous_ && !is_match, is_match);
        return;
    }
  }
  void flush() {
    if (pending_) emit_(piece_.begin, piece_.end);
    pending_ = false;
  }

 private:
  void join(size_t begin, size_t end, bool with_pending, bool is_match) {
    if (with_pending && pending_) {
      piece_.end = end;
    } else {
      flush();
      piece_ = {begin, end};
      pending_ = true;
    }
    previous_ = is_match;
  }

  SplitBehaviour behaviour_;
  bool invert_;
  Emit emit_;
  Range piece_;
  bool pending_ = false;
  bool previous_ = false;
};

// All places of a text in another, like RegexMatches.
struct LiteralMatches {
  std::string_view literal;
  std::string_view text;
  size_t at = 0;

  bool next(Range& match) {
    const size_t found = text.find(literal, at);
    if (found == std::string_view::npos) return false;
    at = found + literal.size();
    match = {found, at};
    return true;
  }
};

// All single characters of a class.
struct ClassMatches {
  bool (*matches)(char32_t);
  std::string_view text;
  size_t at = 0;

  bool next(Range& match) {
    while (at < text.size()) {
      const CodePoint c = code_point_at(text, at);
      match = {at, at + static_cast<size_t>(c.bytes)};
      at = match.end;
      if (matches(c.value)) return true;
    }
    return false;
  }
};

}  // namespace

Splitter::Splitter(const JsonPlace& place) {
  if (!place.is_null()) add(place, 0);
}

void Splitter::add(const JsonPlace& place, int depth) {
  if (depth > 8 || steps_.size() > kMaxSteps) place.fail("too many steps");
  const std::string type = place.type();
  if (type == "Sequence") {
    for (const JsonPlace& part : place.member("pretokenizers").elements()) add(part, depth + 1);
  } else if (type == "Split") {
    const PatternText pattern = read_pattern(place);
    const SplitBehaviour behaviour = behaviour_of(place.member("behavior"));
    const bool invert = place.member("invert").boolean();
    if (pattern.is_regex || pattern.text.empty()) {
      steps_.emplace_back(
          RegexSplit{compile(pattern.text, place.member("pattern")), behaviour, invert});
    } else {
      steps_.emplace_back(LiteralSplit{pattern.text, behaviour, invert});
    }
  } else if (type == "ByteLevel") {
    add_byte_level(place);
  } else if (type == "Metaspace") {
    add_metaspace(place);
  } else if (type == "Digits") {
    const bool each = place.member("individual_digits").boolean();
    steps_.emplace_back(
        ClassSplit{&is_number, each ? SplitBehaviour::kIsolated : SplitBehaviour::kContiguous});
  } else if (type == "WhitespaceSplit") {
    steps_.emplace_back(ClassSplit{&is_space, SplitBehaviour::kRemoved});
  } else if (type == "Whitespace") {
    steps_.emplace_back(RegexSplit{compile(kRustWords, place), SplitBehaviour::kRemoved, true});
  } else {
    place.fail(
        "the pre-tokenizer \"{}\" is not supported (Split, ByteLevel, Digits, Metaspace, "
        "Whitespace, "
        "WhitespaceSplit and Sequence are)",
        type);
  }
}

void Splitter::add_byte_level(const JsonPlace& place) {
  if (place.member("add_prefix_space").boolean()) steps_.emplace_back(SpaceBefore{});
  if (place.boolean_or("use_regex", true)) {
    steps_.emplace_back(RegexSplit{compile(kGpt2, place), SplitBehaviour::kIsolated, false});
  }
  steps_.emplace_back(ByteAlphabet{});
}

void Splitter::add_metaspace(const JsonPlace& place) {
  const std::string mark = place.character("replacement");
  const std::string scheme = place.string_or("prepend_scheme", "always");
  // A field of older files, which the library reads only to compare.
  if (!place.boolean_or("add_prefix_space", true) && scheme != "never") {
    place.fail("add_prefix_space is false and prepend_scheme is \"{}\"", scheme);
  }
  // "first" asks where a piece stood in the input, which is certain only before anything has been
  // cut.
  if (scheme == "first" && !steps_.empty())
    place.fail("prepend_scheme \"first\" is supported in the first step only");
  using Prepend = MetaspaceMark::Prepend;
  if (scheme != "always" && scheme != "first" && scheme != "never")
    place.fail("\"{}\" is no prepend_scheme", scheme);
  steps_.emplace_back(MetaspaceMark{mark, scheme == "always"  ? Prepend::kAlways
                                          : scheme == "first" ? Prepend::kFirst
                                                              : Prepend::kNever});
  if (place.boolean_or("split", true))
    steps_.emplace_back(LiteralSplit{mark, SplitBehaviour::kMergedWithNext, false});
}

bool Splitter::asks_for_start() const {
  return std::any_of(steps_.begin(), steps_.end(), [](const Step& step) {
    const auto* metaspace = std::get_if<MetaspaceMark>(&step);
    return metaspace != nullptr && metaspace->prepend == MetaspaceMark::Prepend::kFirst;
  });
}

bool Splitter::leave_bytes() {
  const auto spelt = std::count_if(steps_.begin(), steps_.end(), [](const Step& step) {
    return std::holds_alternative<ByteAlphabet>(step);
  });
  if (spelt != 1 || !std::holds_alternative<ByteAlphabet>(steps_.back())) return false;
  steps_.pop_back();
  return true;
}

// A piece on its way through the steps.
struct Splitter::Piece {
  std::string_view text;
  std::string_view subject;  // The same with stand-ins: what PCRE2 gets.
  bool at_start;
};
struct Splitter::Run {
  RegexScratch& scratch;
  const Emit& emit;
};

void Splitter::split(std::string_view text, bool at_start, RegexScratch& scratch,
                     const Emit& emit) const {
  std::string stand_ins;
  if (!text.empty())
    apply(0, {text, with_stand_ins(text, stand_ins) ? stand_ins : text, at_start}, {scratch, emit});
}

// Depth first: a piece goes through all steps before the next one is cut, so that memory does not
// grow with the text.
void Splitter::apply(size_t index, const Piece& piece, const Run& run) const {
  if (index == steps_.size()) return run.emit(piece.text);
  const Step& step = steps_[index];
  if (const auto* by_regex = std::get_if<RegexSplit>(&step)) {
    RegexMatches matches(*by_regex->regex, piece.subject, run.scratch);
    return cut(index, piece, run, by_regex->behaviour, by_regex->invert, matches);
  }
  if (const auto* by_literal = std::get_if<LiteralSplit>(&step)) {
    return cut(index, piece, run, by_literal->behaviour, by_literal->invert,
               LiteralMatches{by_literal->text, piece.text});
  }
  if (const auto* by_class = std::get_if<ClassSplit>(&step)) {
    return cut(index, piece, run, by_class->behaviour, false,
               ClassMatches{by_class->matches, piece.text});
  }
  std::string text;
  if (const auto* metaspace = std::get_if<MetaspaceMark>(&step)) {
    const bool wanted = metaspace->prepend == MetaspaceMark::Prepend::kAlways ||
                        (metaspace->prepend == MetaspaceMark::Prepend::kFirst && piece.at_start);
    if (wanted && !piece.text.starts_with(' ') && !piece.text.starts_with(metaspace->mark))
      text = metaspace->mark;
    for (const char byte : piece.text) byte == ' ' ? text += metaspace->mark : text += byte;
  } else if (std::holds_alternative<SpaceBefore>(step)) {
    if (piece.text.starts_with(' ')) return apply(index + 1, piece, run);
    text.assign(1, ' ').append(piece.text);
  } else {
    for (const char byte : piece.text) text += byte_letter(static_cast<unsigned char>(byte));
  }
  std::string stand_ins;
  apply(index + 1, {text, with_stand_ins(text, stand_ins) ? stand_ins : text, piece.at_start}, run);
}

template <class Matches>
void Splitter::cut(size_t index, const Piece& piece, const Run& run, SplitBehaviour behaviour,
                   bool invert, Matches matches) const {
  Joiner joiner(behaviour, invert, [&](size_t begin, size_t end) {
    if (begin == end) return;
    apply(index + 1,
          {piece.text.substr(begin, end - begin), piece.subject.substr(begin, end - begin),
           piece.at_start && begin == 0},
          run);
  });
  size_t done = 0;
  Range match;
  while (matches.next(match)) {
    if (match.begin != done) joiner.add(done, match.begin, false);
    joiner.add(match.begin, match.end, true);
    done = match.end;
  }
  if (done != piece.text.size()) joiner.add(done, piece.text.size(), false);
  joiner.flush();
}

const std::string& byte_letter(unsigned char byte) {
  static const auto* letters = [] {
    auto* made = new std::array<std::string, 256>;
    char32_t spare = 0x100;  // Bytes that print badly are numbered from here, in order.
    for (unsigned b = 0; b < 256; ++b) {
      const bool printable = (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
      append_utf8((*made)[b], printable ? b : spare++);
    }
    return made;
  }();
  return (*letters)[byte];
}

int letter_byte(char32_t c) {
  static const auto* bytes = [] {
    auto* made = new std::array<int, 0x144>;
    made->fill(-1);
    for (int b = 0; b < 256; ++b)
      (*made)[code_point_at(byte_letter(static_cast<unsigned char>(b)), 0).value] = b;
    return made;
  }();
  return c < bytes->size() ? (*bytes)[c] : -1;
}

bool append_letter_bytes(std::string_view token, std::string& bytes) {
  const size_t before = bytes.size();
  for (size_t at = 0; at < token.size();) {
    const CodePoint c = code_point_at(token, at);
    const int byte = letter_byte(c.value);
    if (byte < 0) {
      bytes.resize(before);
      return false;
    }
    bytes += static_cast<char>(byte);
    at += static_cast<size_t>(c.bytes);
  }
  return true;
}

}  // namespace quadrille::text
