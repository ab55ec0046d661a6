#include "text/tokenizer_decoder.h"

#include "text/tokenizer_splitter.h"
#include "text/tokenizer_unicode.h"

namespace quadrille::text {
namespace {

constexpr const char* kReplacementCharacter = "\uFFFD";
constexpr size_t kMaxSteps = 64;  // give() recurses over them.

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if ((c | 0x20) >= 'a' && (c | 0x20) <= 'f') return (c | 0x20) - 'a' + 10;
  return -1;
}

// The byte of "<0x61>", or -1. "+5" is a number, too: the library reads it with Rust's
// from_str_radix.
int fallback_byte(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || !token.ends_with('>')) return -1;
  const int high = token[3] == '+' ? 0 : hex_digit(token[3]);
  const int low = hex_digit(token[4]);
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

std::string without_marks(std::string_view part, char32_t mark, const char* instead) {
  std::string text;
  for (size_t at = 0; at < part.size();) {
    const CodePoint c = code_point_at(part, at);
    if (c.value == mark) {
      text += instead;
    } else {
      text += part.substr(at, static_cast<size_t>(c.bytes));
    }
    at += static_cast<size_t>(c.bytes);
  }
  return text;
}

}  // namespace

Decoder::Decoder(const JsonPlace& place) {
  if (place.is_null()) {
    steps_.emplace_back(JoinBySpaces{});
  } else {
    add(place, 0);
  }
}

void Decoder::add(const JsonPlace& place, int depth) {
  if (depth > 8 || steps_.size() > kMaxSteps) place.fail("too many steps");
  const std::string type = place.type();
  if (type == "Sequence") {
    for (const JsonPlace& part : place.member("decoders").elements()) add(part, depth + 1);
  } else if (type == "ByteLevel") {
    steps_.emplace_back(ByteLevel{});
  } else if (type == "ByteFallback") {
    steps_.emplace_back(ByteFallback{});
  } else if (type == "Fuse") {
    steps_.emplace_back(Fuse{});
  } else if (type == "Replace") {
    steps_.emplace_back(Replacement(place));
  } else if (type == "Metaspace") {
    const std::string mark = place.character("replacement");
    steps_.emplace_back(Metaspace{code_point_at(mark, 0).value,
                                  place.string_or("prepend_scheme", "always") != "never"});
  } else if (type == "Strip") {
    const Strip strip{place.character("content"), place.integer_or("start", -1),
                      place.integer_or("stop", -1)};
    if (strip.start < 0 || strip.stop < 0)
      place.fail("start and stop must be whole numbers from 0");
    steps_.emplace_back(strip);
  } else {
    place.fail(
        "the decoder \"{}\" is not supported (ByteLevel, Metaspace, Replace, ByteFallback, Fuse, "
        "Strip and "
        "Sequence are)",
        type);
  }
}

DecodeStages::DecodeStages(const Decoder& decoder)
    : decoder_(decoder), states_(decoder.steps_.size()) {}

void DecodeStages::push(std::string_view token, std::string& out) {
  give(0, token, true, out);
}

void DecodeStages::give(size_t index, std::string_view part, bool ends, std::string& out) {
  if (index == states_.size()) {
    out += part;
    return;
  }
  const Decoder::Step& step = decoder_.steps_[index];
  State& state = states_[index];
  if (std::holds_alternative<Decoder::Fuse>(step)) {
    give(index + 1, part, false, out);
  } else if (std::holds_alternative<Decoder::JoinBySpaces>(step)) {
    if (!state.first) give(index + 1, " ", false, out);
    state.first = false;
    give(index + 1, part, false, out);
  } else if (const auto* metaspace = std::get_if<Decoder::Metaspace>(&step)) {
    const char* instead = state.first && metaspace->drops_first ? "" : " ";
    give(index + 1, without_marks(part, metaspace->mark, instead), ends, out);
    if (ends) state.first = false;
  } else if (const auto* strip = std::get_if<Decoder::Strip>(&step);
             strip != nullptr && strip->stop == 0) {
    while (state.stripping && state.stripped < strip->start && part.starts_with(strip->content)) {
      part.remove_prefix(strip->content.size());
      ++state.stripped;
    }
    if (!part.empty()) state.stripping = false;
    give(index + 1, part, ends, out);
    if (ends) state.stripped = 0, state.stripping = true;
  } else if (!ends) {
    state.parts += part;
  } else if (state.parts.empty()) {
    give_whole(index, part, out);
  } else {
    std::string whole;
    whole.swap(state.parts);
    give_whole(index, whole.append(part), out);
  }
}

void DecodeStages::give_whole(size_t index, std::string_view token, std::string& out) {
  const Decoder::Step& step = decoder_.steps_[index];
  State& state = states_[index];
  if (std::holds_alternative<Decoder::ByteLevel>(step)) {
    add_bytes(index, token, out);
  } else if (std::holds_alternative<Decoder::ByteFallback>(step)) {
    if (const int byte = fallback_byte(token); byte >= 0) {
      // Whether the run is text is known at its end only: one bad byte makes all of it U+FFFD.
      state.bytes += static_cast<char>(byte);
    } else {
      flush_fallback(index, out);
      give(index + 1, token, true, out);
    }
  } else if (const auto* replacement = std::get_if<Replacement>(&step)) {
    std::string text;
    give(index + 1, replacement->apply(token, regex_, text) ? text : token, true, out);
  } else if (const auto* strip = std::get_if<Decoder::Strip>(&step)) {
    for (int64_t i = 0; i < strip->start && token.starts_with(strip->content); ++i)
      token.remove_prefix(strip->content.size());
    for (int64_t i = 0; i < strip->stop && token.ends_with(strip->content); ++i)
      token.remove_suffix(strip->content.size());
    give(index + 1, token, true, out);
  }
}

void DecodeStages::add_bytes(size_t index, std::string_view token, std::string& out) {
  std::string& bytes = states_[index].bytes;
  // A token with a character outside of the alphabet, such as an added one, stands for itself.
  if (!append_letter_bytes(token, bytes)) bytes += token;
  std::string text;
  size_t done = 0;
  while (done < bytes.size()) {
    const std::string_view rest = std::string_view(bytes).substr(done);
    const size_t valid = valid_utf8_prefix(rest);
    text += rest.substr(0, valid);
    done += valid;
    if (valid == rest.size() || is_unfinished_utf8(rest.substr(valid))) break;
    text += kReplacementCharacter;
    done += damaged_utf8_prefix(rest.substr(valid));
  }
  bytes.erase(0, done);
  if (!text.empty()) give(index + 1, text, false, out);
}

void DecodeStages::flush_fallback(size_t index, std::string& out) {
  std::string run;
  run.swap(states_[index].bytes);
  if (run.empty()) return;
  if (valid_utf8_prefix(run) == run.size()) return give(index + 1, run, true, out);
  for (size_t i = 0; i < run.size(); ++i) give(index + 1, kReplacementCharacter, true, out);
}

void DecodeStages::finish(std::string& out) {
  for (size_t index = 0; index < states_.size(); ++index) {
    const Decoder::Step& step = decoder_.steps_[index];
    if (std::holds_alternative<Decoder::ByteLevel>(step)) {
      // Less than one character is left, and none of its bytes can stand alone.
      give(index + 1, states_[index].bytes.empty() ? "" : kReplacementCharacter, true, out);
      states_[index].bytes.clear();
    } else if (std::holds_alternative<Decoder::ByteFallback>(step)) {
      flush_fallback(index, out);
    } else if (std::holds_alternative<Decoder::Fuse>(step) ||
               std::holds_alternative<Decoder::JoinBySpaces>(step)) {
      give(index + 1, "", true, out);
    }
  }
}

}  // namespace quadrille::text
