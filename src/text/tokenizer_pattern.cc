// A recursive-descent parser that writes as it reads. Captures become plain groups: nobody asks for
// them, and back-references are refused.
#include "text/tokenizer_pattern.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <set>
#include <vector>

#include "text/tokenizer_unicode.h"

namespace quadrille::text {
namespace {

constexpr int kMaxNesting = 32;

// Oniguruma's \w, member for member: Alphabetic, marks, decimal numbers, connectors, and six
// Latin-1 numbers.
constexpr const char* kWord =
    "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{B2}\\x{B3}\\x{B9}\\x{BC}-\\x{BE}"
    "\\x{24B6}-\\x{24E9}\\x{1F130}-\\x{1F149}\\x{1F150}-\\x{1F169}\\x{1F170}-\\x{1F189}";
constexpr const char* kHex = "0-9A-Fa-f";

const std::set<std::string, std::less<>>& categories() {
  static const auto* names = new std::set<std::string, std::less<>>{
      "L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M", "Mn", "Mc", "Me", "N",  "Nd", "Nl", "No", "P", "Pc",
      "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "S", "Sm", "Sc", "Sk", "So", "Z",  "Zs", "Zl", "Zp"};
  return *names;
}

// Scripts whose members are the same in both engines (tests/text/tokenizer_regex_test.cc).
const std::set<std::string, std::less<>>& scripts() {
  static const auto* names =
      new std::set<std::string, std::less<>>{"Han", "Hiragana", "Katakana", "Hangul", "Thai"};
  return *names;
}

std::string code(char32_t c) {
  return c < 0x80 && std::isalnum(static_cast<int>(c)) != 0
             ? std::string(1, static_cast<char>(c))
             : fmt::format("\\x{{{:X}}}", static_cast<uint32_t>(c));
}

// One piece of a class or an escape: a single character, or a set written for the inside of [ ].
struct Item {
  bool is_character = false;
  char32_t character = 0;
  std::string set;
};

class Translator {
 public:
  explicit Translator(std::string_view pattern) : in_(pattern) {}

  std::string translate() {
    alternatives(0);
    if (at_ < in_.size()) fail("\")\" without \"(\"");
    return std::move(out_);
  }

 private:
  template <class... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    throw PatternError(fmt::format("pattern at byte {}: {}", at_,
                                   fmt::format(format, std::forward<Args>(args)...)));
  }
  bool more() const { return at_ < in_.size(); }
  bool next_is(std::string_view text) const { return in_.substr(at_).starts_with(text); }
  bool skip(std::string_view text) {
    if (!next_is(text)) return false;
    at_ += text.size();
    return true;
  }
  char32_t take() {
    if (!more()) fail("ends too early");
    const CodePoint c = code_point_at(in_, at_);
    at_ += static_cast<size_t>(c.bytes);
    return c.value;
  }

  // Up to the closing parenthesis, which is left to the caller, or the end.
  void alternatives(int depth) {
    if (depth > kMaxNesting) fail("nested deeper than {} levels", kMaxNesting);
    const bool ignore_case = ignore_case_;
    int closing = 0;
    while (more() && !next_is(")")) {
      if (skip("|")) {
        out_ += '|';
        before_ = 0;
        continue;
      }
      if (skip("(?i)")) {
        // Ruby: the rest of this group, over every "|".
        out_ += "(?i:";
        ++closing;
        ignore_case_ = true;
        before_ = 0;
        continue;
      }
      const bool repeatable = atom(depth);
      quantifier(repeatable);
    }
    out_.append(static_cast<size_t>(closing), ')');
    ignore_case_ = ignore_case;
  }

  // Returns false for what a quantifier must not follow.
  bool atom(int depth) {
    if (skip("(?#")) {
      while (take() != ')') {
      }
      return false;
    }
    if (skip("(")) return group(depth);
    if (skip("[")) {
      before_ = 0;
      out_ += char_class(depth + 1);
      return true;
    }
    if (skip(".")) return emit("[^\\n]", true);
    if (skip("^")) return emit("(?m:^)", false);
    if (skip("$")) return emit("(?m:$)", false);
    if (skip("\\")) return escape();
    if (next_is("*") || next_is("+") || next_is("?"))
      fail("nothing to repeat before \"{}\"", in_[at_]);
    literal(take());
    return true;
  }

  bool emit(std::string_view text, bool repeatable) {
    out_ += text;
    before_ = 0;
    return repeatable;
  }

  // Oniguruma folds "ss" to U+00DF and the like, PCRE2 folds one character to one.
  void literal(char32_t c) {
    if (ignore_case_) {
      if (c >= 0x80) fail("a non-ASCII character under (?i) is not supported");
      const char pair[2] = {before_, static_cast<char>(std::tolower(static_cast<int>(c)))};
      for (const std::string_view folded : {"ss", "ff", "fi", "fl", "st"}) {
        if (std::string_view(pair, 2) == folded) fail("\"{}\" under (?i) is not supported", folded);
      }
      before_ = pair[1];
    }
    out_ += code(c);
  }

  bool group(int depth) {
    std::string_view open;
    for (const std::string_view kind :
         {"(?:", "(?=", "(?!", "(?>", "(?<=", "(?<!", "(?i:", "(?-i:"}) {
      if (!skip(kind.substr(1))) continue;
      open = kind;
      break;
    }
    if (open.empty() && next_is("?")) fail("group \"({}\" is not supported", in_.substr(at_, 3));
    const bool ignore_case = ignore_case_;
    if (open == "(?i:") ignore_case_ = true;
    if (open == "(?-i:") ignore_case_ = false;
    out_ += open.empty() ? "(?:" : open;
    before_ = 0;
    alternatives(depth + 1);
    if (!skip(")")) fail("\"(\" without \")\"");
    out_ += ')';
    before_ = 0;
    ignore_case_ = ignore_case;
    return open != "(?=" && open != "(?!" && open != "(?<=" && open != "(?<!";
  }

  bool escape() {
    if (skip("A")) return emit("\\A", false);
    if (skip("z")) return emit("\\z", false);
    if (skip("Z")) return emit("(?=\\n?\\z)", false);
    const bool boundary = skip("b");
    if (boundary || skip("B")) {
      const char* not_or_so[2] = {boundary ? "!" : "=", boundary ? "=" : "!"};
      return emit(fmt::format("(?:(?<=[{0}])(?{1}[{0}])|(?<![{0}])(?{2}[{0}]))", kWord,
                              not_or_so[0], not_or_so[1]),
                  false);
    }
    const Item item = escaped();
    if (item.is_character) {
      literal(item.character);
    } else {
      // PCRE2 matches a bare property faster than a class that holds it.
      const bool bare = item.set.starts_with('\\') && item.set != kWord;
      emit(bare ? item.set : "[" + item.set + "]", true);
    }
    return true;
  }

  // After a backslash, in a class or outside.
  Item escaped() {
    const char32_t c = take();
    switch (c) {
      case 's':
        return {false, 0, "\\s"};
      case 'S':
        return {false, 0, "\\S"};
      case 'd':
        return {false, 0, "\\p{Nd}"};
      case 'D':
        return {false, 0, "\\P{Nd}"};
      case 'w':
        return {false, 0, kWord};
      case 'h':
        return {false, 0, kHex};
      case 'p':
        return property(false);
      case 'P':
        return property(true);
      case 'n':
        return {true, '\n', {}};
      case 'r':
        return {true, '\r', {}};
      case 't':
        return {true, '\t', {}};
      case 'f':
        return {true, '\f', {}};
      case 'v':
        return {true, '\v', {}};
      case 'a':
        return {true, '\a', {}};
      case 'e':
        return {true, 0x1B, {}};
      case 'x':
        return skip("{") ? hex(1, 8, true) : hex(1, 2, false);
      case 'u':
        return hex(4, 4, false);
      default:
        break;
    }
    if (c < 0x80 && std::isalnum(static_cast<int>(c)) != 0)
      fail("\"\\{}\" is not supported", static_cast<char>(c));
    return {true, c, {}};
  }

  Item hex(int least, int most, bool braced) {
    char32_t value = 0;
    int digits = 0;
    while (digits < most && more() && std::isxdigit(static_cast<unsigned char>(in_[at_])) != 0) {
      const char digit = in_[at_++];
      value = value * 16 +
              static_cast<char32_t>(digit <= '9' ? digit - '0' : (digit | 0x20) - 'a' + 10);
      ++digits;
    }
    if (digits < least || (braced && !skip("}"))) fail("damaged hexadecimal escape");
    if (value > 0x10FFFF || (value >= 0xD800 && value <= 0xDFFF))
      fail("U+{:X} is no character", static_cast<uint32_t>(value));
    if (!braced && value >= 0x80 && most == 2)
      fail("\\x{:X} means a byte; write \\x{{{:X}}}", static_cast<uint32_t>(value),
           static_cast<uint32_t>(value));
    return {true, value, {}};
  }

  Item property(bool negated) {
    if (!skip("{")) fail("\\p needs a name in braces");
    if (skip("^")) negated = !negated;
    const size_t end = in_.find('}', at_);
    if (end == std::string_view::npos) fail("\\p without \"}}\"");
    const std::string name(in_.substr(at_, end - at_));
    at_ = end + 1;
    if (ignore_case_) fail("\\p{{{}}} under (?i) is not supported", name);
    const char* letter = negated ? "P" : "p";
    if (categories().contains(name)) return {false, 0, fmt::format("\\{}{{{}}}", letter, name)};
    // "sc:": since 10.40 a bare script name asks PCRE2 for script extensions.
    if (scripts().contains(name)) return {false, 0, fmt::format("\\{}{{sc:{}}}", letter, name)};
    fail("\\p{{{}}} is not supported", name);
  }

  // After "[". Returns an expression that matches one character.
  std::string char_class(int depth) {
    if (depth > kMaxNesting) fail("nested deeper than {} levels", kMaxNesting);
    const bool negated = skip("^");
    if (next_is("]")) fail("an empty class");
    std::string intersection;  // "(?=A)" for each operand but the last.
    while (true) {
      const std::string operand = class_union(depth);
      const bool another = skip("&&");
      if (!another && !skip("]")) fail("\"[\" without \"]\"");
      if (!another && intersection.empty()) return finish_class(operand, negated);
      if (another) {
        intersection += "(?=" + operand + ")";
        continue;
      }
      intersection += operand;
      return negated ? "(?:(?!" + intersection + ")(?s:.))" : "(?:" + intersection + ")";
    }
  }

  // "[...]" as it is the common case: put the ^ inside.
  static std::string finish_class(const std::string& operand, bool negated) {
    if (!negated) return operand;
    if (operand.starts_with("[") && !operand.starts_with("[^")) return "[^" + operand.substr(1);
    return "(?:(?!" + operand + ")(?s:.))";
  }

  // Members up to "&&" or "]": one class, or alternatives where classes nest.
  std::string class_union(int depth) {
    std::string set;
    std::vector<std::string> nested;
    while (!next_is("]") && !next_is("&&")) {
      if (next_is("[:")) fail("POSIX classes are not supported");
      if (skip("[")) {
        nested.push_back(char_class(depth + 1));
        continue;
      }
      add_member(set);
    }
    if (set.empty() && nested.empty()) fail("an empty class");
    if (!set.empty()) nested.insert(nested.begin(), "[" + set + "]");
    if (nested.size() == 1) return nested[0];
    return fmt::format("(?:{})", fmt::join(nested, "|"));
  }

  void add_member(std::string& set) {
    const Item first = class_item();
    if (!first.is_character) {
      // \W and \H as a member would need a set difference.
      set += first.set;
      return;
    }
    const bool range = next_is("-") && !next_is("-]") && !next_is("-[") && !next_is("-&&");
    if (!range) {
      set += code(first.character);
      return;
    }
    ++at_;
    const Item last = class_item();
    if (!last.is_character || last.character < first.character)
      fail("a range that does not go upwards");
    set += code(first.character) + "-" + code(last.character);
  }

  Item class_item() {
    Item item =
        skip("\\") ? (skip("b") ? Item{true, '\b', {}} : escaped()) : Item{true, take(), {}};
    if (ignore_case_ && item.is_character && item.character >= 0x80)
      fail("a non-ASCII character under (?i) is not supported");
    return item;
  }

  void quantifier(bool repeatable) {
    if (!more()) return;
    std::string text;
    if (next_is("*") || next_is("+") || next_is("?")) {
      text = in_[at_++];
      if (next_is("?") || next_is("+")) text += in_[at_++];
    } else if (next_is("{") && interval(text)) {
      if (next_is("?") || next_is("+") || next_is("{"))
        fail("\"{}\" after an interval is not supported", in_[at_]);
    } else {
      return;
    }
    if (!repeatable) fail("\"{}\" repeats nothing", text);
    if (next_is("*") || next_is("+") || next_is("?")) fail("stacked quantifiers are not supported");
    out_ += text;
    before_ = 0;
  }

  // {n}, {n,}, {n,m}, {,m}. Anything else in braces is literal text, which the next atom takes.
  bool interval(std::string& text) {
    const size_t end = in_.find('}', at_);
    if (end == std::string_view::npos) return false;
    const std::string_view inside = in_.substr(at_ + 1, end - at_ - 1);
    const size_t comma = inside.find(',');
    const std::string_view low = inside.substr(0, comma);
    const std::string_view high =
        comma == std::string_view::npos ? std::string_view() : inside.substr(comma + 1);
    const auto digits = [](std::string_view part) {
      return std::all_of(part.begin(), part.end(), [](char c) { return c >= '0' && c <= '9'; });
    };
    if (!digits(low) || !digits(high) || (low.empty() && high.empty())) return false;
    if (low.size() > 5 || high.size() > 5) fail("{{{}}} repeats too often", inside);
    at_ = end + 1;
    text = fmt::format("{{{}{}{}}}", low.empty() ? "0" : low,
                       comma == std::string_view::npos ? "" : ",", high);
    return true;
  }

  std::string_view in_;
  size_t at_ = 0;
  std::string out_;
  bool ignore_case_ = false;
  char before_ = 0;  // The literal just before, lower case, while under (?i).
};

}  // namespace

std::string to_pcre2(std::string_view ruby_pattern) {
  return Translator(ruby_pattern).translate();
}

}  // namespace quadrille::text
