// See the header. The NFC quick check and the stand-in check both start from two-level bitmaps,
// since they look at every character of every text.
#include "text/tokenizer_unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <bitset>
#include <cstring>
#include <memory>
#include <vector>

#include "base/error.h"

namespace quadrille::text {
namespace {

struct StandIn {
  char32_t first;
  char32_t last;
  char32_t stand_in;
};
struct CodeRange {
  char32_t first;
  char32_t last;
};
#include "text/tokenizer_unicode_tables.inc"

constexpr char32_t kCodePoints = 0x110000;

template <class Table>
const auto* find_range(const Table& table, char32_t c) {
  const auto* at = std::partition_point(std::begin(table), std::end(table),
                                        [c](const auto& range) { return range.last < c; });
  return at != std::end(table) && at->first <= c ? at : nullptr;
}

// Blocks of 64 code points that hold at least one character with a stand-in.
const std::bitset<kCodePoints / 64>& stand_in_blocks() {
  static const auto* blocks = [] {
    auto* made = new std::bitset<kCodePoints / 64>;
    for (const StandIn& row : kStandIns) {
      for (char32_t block = row.first / 64; block <= row.last / 64; ++block) made->set(block);
    }
    return made;
  }();
  return *blocks;
}

char32_t stand_in_of(char32_t c) {
  if (!stand_in_blocks()[c / 64]) return c;
  const StandIn* row = find_range(kStandIns, c);
  return row != nullptr ? row->stand_in : c;
}

bool is_continuation(char byte) {
  return (static_cast<unsigned char>(byte) & 0xC0) == 0x80;
}

// Bytes of the valid character at `bytes[0]`, or 0. `seen` gets the length of the longest prefix of
// it that could begin a character: the "maximal subpart" that one U+FFFD stands for.
int character_bytes(std::string_view bytes, int& seen) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(bytes[i]); };
  const unsigned char lead = byte(0);
  seen = 1;
  if (lead < 0x80) return 1;
  if (lead < 0xC2 || lead > 0xF4) return 0;
  const int wanted = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  // The second byte's range excludes overlong forms, surrogates and values beyond U+10FFFF.
  const unsigned char low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const unsigned char high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  while (seen < wanted && static_cast<size_t>(seen) < bytes.size()) {
    const unsigned char next = byte(static_cast<size_t>(seen));
    if (seen == 1 ? next < low || next > high : (next & 0xC0) != 0x80) return 0;
    ++seen;
  }
  return seen == wanted ? wanted : 0;
}

void append_nfc(std::string_view text, std::string& out) {
  if (text.empty()) return;
  utf8proc_uint8_t* made = nullptr;
  const auto size =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                   static_cast<utf8proc_ssize_t>(text.size()), &made,
                   static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owned(made, &std::free);
  if (size < 0) throw Error("utf8proc_map: {} ({} bytes)", utf8proc_errmsg(size), text.size());
  out.append(reinterpret_cast<const char*>(made), static_cast<size_t>(size));
}

// Characters that NFC may change, reorder or join with what stands before them; all others pass
// unseen.
const std::vector<bool>& nfc_suspects() {
  static const auto* suspects = [] {
    auto* made = new std::vector<bool>(kCodePoints);
    std::string before;
    std::string after;
    for (char32_t c = 0; c < kCodePoints; ++c) {
      if (c >= 0xD800 && c <= 0xDFFF) continue;
      const auto code = static_cast<utf8proc_int32_t>(c);
      const utf8proc_property_t* property = utf8proc_get_property(code);
      if (property->combining_class != 0) (*made)[c] = true;
      utf8proc_int32_t parts[32];
      int boundary = 0;
      const auto count = utf8proc_decompose_char(code, parts, 32, UTF8PROC_DECOMPOSE, &boundary);
      for (utf8proc_ssize_t i = 1; i < count; ++i) (*made)[static_cast<size_t>(parts[i])] = true;
      if (count == 1 && parts[0] == code) continue;
      // Some composites never come back: singletons and exclusions.
      before.clear();
      after.clear();
      append_utf8(before, c);
      append_nfc(before, after);
      if (after != before) (*made)[c] = true;
    }
    for (const CodeRange& range : kUnknownToNormalizer) {
      for (char32_t c = range.first; c <= range.last; ++c) (*made)[c] = true;
    }
    return made;
  }();
  return *suspects;
}

}  // namespace

CodePoint code_point_at(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) {
    return static_cast<char32_t>(static_cast<unsigned char>(text[at + i]));
  };
  const char32_t lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  if (lead < 0xE0) return {(lead & 0x1F) << 6 | (byte(1) & 0x3F), 2};
  if (lead < 0xF0) return {(lead & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F), 3};
  return {(lead & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F),
          4};
}

CodePoint code_point_before(std::string_view text, size_t at) {
  do --at;
  while (is_continuation(text[at]));
  return code_point_at(text, at);
}

void append_utf8(std::string& out, char32_t c) {
  const auto put = [&](char32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xC0 | c >> 6), put(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    put(0xE0 | c >> 12), put(0x80 | (c >> 6 & 0x3F)), put(0x80 | (c & 0x3F));
  } else {
    put(0xF0 | c >> 18), put(0x80 | (c >> 12 & 0x3F)), put(0x80 | (c >> 6 & 0x3F)),
        put(0x80 | (c & 0x3F));
  }
}

size_t valid_utf8_prefix(std::string_view bytes) {
  size_t at = 0;
  while (at < bytes.size()) {
    uint64_t eight = 0;
    while (at + 8 <= bytes.size()) {
      std::memcpy(&eight, bytes.data() + at, 8);
      if ((eight & 0x8080808080808080U) != 0) break;
      at += 8;
    }
    if (at == bytes.size()) break;
    int seen = 0;
    const int size = character_bytes(bytes.substr(at), seen);
    if (size == 0) return at;
    at += static_cast<size_t>(size);
  }
  return at;
}

size_t damaged_utf8_prefix(std::string_view bytes) {
  int seen = 0;
  character_bytes(bytes, seen);
  return static_cast<size_t>(seen);
}

bool is_unfinished_utf8(std::string_view bytes) {
  const auto lead = static_cast<unsigned char>(bytes[0]);
  return damaged_utf8_prefix(bytes) == bytes.size() && lead >= 0xC2 && lead <= 0xF4;
}

std::optional<std::string> repaired_utf8(std::string_view bytes) {
  size_t valid = valid_utf8_prefix(bytes);
  if (valid == bytes.size()) return std::nullopt;
  std::string out;
  out.reserve(bytes.size() + 16);
  while (true) {
    out.append(bytes.substr(0, valid));
    bytes.remove_prefix(valid);
    if (bytes.empty()) return out;
    out += "\uFFFD";
    bytes.remove_prefix(damaged_utf8_prefix(bytes));
    valid = valid_utf8_prefix(bytes);
  }
}

bool is_space(char32_t c) {
  if (c < 0x80) return c == ' ' || (c >= 9 && c <= 13);
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
         c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool is_word(char32_t c) {
  if (c == 0x200C || c == 0x200D || (c >= 0x24B6 && c <= 0x24E9) ||
      (c >= 0x1F130 && c <= 0x1F149) || (c >= 0x1F150 && c <= 0x1F169) ||
      (c >= 0x1F170 && c <= 0x1F189)) {
    return true;  // Join_Control and the circled and squared letters, which are symbols yet
                  // alphabetic.
  }
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(stand_in_of(c)))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      return false;
  }
}

bool is_number(char32_t c) {
  if (c < 0x80) return c >= '0' && c <= '9';
  if (find_range(kNumbersBeyondPatterns, c) != nullptr) return true;
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(stand_in_of(c)));
  return category == UTF8PROC_CATEGORY_ND || category == UTF8PROC_CATEGORY_NL ||
         category == UTF8PROC_CATEGORY_NO;
}

bool with_stand_ins(std::string_view text, std::string& out) {
  const auto& blocks = stand_in_blocks();
  bool copied = false;
  for (size_t at = 0; at < text.size();) {
    if (static_cast<unsigned char>(text[at]) < 0xC0) {
      ++at;
      continue;
    }
    const CodePoint c = code_point_at(text, at);
    if (blocks[c.value / 64]) {
      const char32_t stand_in = stand_in_of(c.value);
      if (stand_in != c.value) {
        if (!copied) out.assign(text);
        copied = true;
        std::string bytes;
        append_utf8(bytes, stand_in);
        out.replace(at, static_cast<size_t>(c.bytes), bytes);
      }
    }
    at += static_cast<size_t>(c.bytes);
  }
  return copied;
}

bool to_nfc(std::string_view text, std::string& out) {
  const std::vector<bool>& suspects = nfc_suspects();
  size_t copied = 0;  // What of the text is in `out`.
  size_t before = 0;  // The last character that is no suspect: the next one may join it.
  for (size_t at = 0; at < text.size();) {
    if (static_cast<unsigned char>(text[at]) < 0x80) {
      before = at++;
      continue;
    }
    const CodePoint c = code_point_at(text, at);
    if (!suspects[c.value]) {
      before = at;
      at += static_cast<size_t>(c.bytes);
      continue;
    }
    // Normalize from there to the next character that is no suspect. Neither end joins with what is
    // outside.
    if (copied == 0) out.clear();
    out.append(text, copied, before - copied);
    copied = before;
    while (at < text.size()) {
      const CodePoint next = code_point_at(text, at);
      if (!suspects[next.value]) break;
      if (find_range(kUnknownToNormalizer, next.value) != nullptr) {
        // A character the reference normalizer has never heard of is to it a letter like any other:
        // it joins with nothing and nothing moves past it.
        append_nfc(text.substr(copied, at - copied), out);
        copied = at;
        out.append(text, at, static_cast<size_t>(next.bytes));
        copied += static_cast<size_t>(next.bytes);
      }
      at += static_cast<size_t>(next.bytes);
    }
    append_nfc(text.substr(copied, at - copied), out);
    copied = at;
    before = at;
  }
  if (copied == 0) return false;
  out.append(text.substr(copied));
  return true;
}

}  // namespace quadrille::text
