#include "text/jinja_text.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/error.h"

namespace quadrille::text::jinja {
namespace {

size_t sequence_length(char first) {
  const auto byte = static_cast<unsigned char>(first);
  if (byte < 0x80) return 1;
  if (byte < 0xE0) return 2;
  return byte < 0xF0 ? 3 : 4;
}

// Byte offset of code point `index`.
size_t offset_of(std::string_view s, int64_t index) {
  size_t at = 0;
  for (; index > 0 && at < s.size(); --index) at += sequence_length(s[at]);
  return at;
}

std::vector<std::string> split_space(std::string_view s, int64_t max_splits, bool from_right) {
  const std::u32string all = to_code_points(s);
  std::vector<std::string> parts;
  // What remains after the last split keeps the white space at its far side.
  std::u32string_view rest = strip_space(all, !from_right, from_right);
  while (!rest.empty()) {
    if (max_splits >= 0 && static_cast<int64_t>(parts.size()) == max_splits) {
      parts.push_back(to_utf8(rest));
      break;
    }
    if (from_right) {
      size_t begin = rest.size();
      while (begin > 0 && !is_space(rest[begin - 1])) --begin;
      parts.push_back(to_utf8(rest.substr(begin)));
      rest = strip_space(rest.substr(0, begin), false, true);
    } else {
      size_t end = 0;
      while (end < rest.size() && !is_space(rest[end])) ++end;
      parts.push_back(to_utf8(rest.substr(0, end)));
      rest = strip_space(rest.substr(end), true, false);
    }
  }
  if (from_right) std::reverse(parts.begin(), parts.end());
  return parts;
}

}  // namespace

bool is_utf8(std::string_view s) {
  for (size_t at = 0; at < s.size();) {
    const auto first = static_cast<unsigned char>(s[at]);
    const size_t length = sequence_length(s[at]);
    if (length == 1) {
      ++at;
      continue;
    }
    if (first < 0xC2 || first > 0xF4 || at + length > s.size()) return false;
    for (size_t i = 1; i < length; ++i) {
      if ((static_cast<unsigned char>(s[at + i]) & 0xC0) != 0x80) return false;
    }
    const auto second = static_cast<unsigned char>(s[at + 1]);
    if ((first == 0xE0 && second < 0xA0) || (first == 0xED && second > 0x9F) ||
        (first == 0xF0 && second < 0x90) || (first == 0xF4 && second > 0x8F)) {
      return false;
    }
    at += length;
  }
  return true;
}

bool is_ascii(std::string_view s) {
  return std::all_of(s.begin(), s.end(),
                     [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

int64_t count_code_points(std::string_view s) {
  return std::count_if(s.begin(), s.end(),
                       [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

std::u32string to_code_points(std::string_view s) {
  std::u32string out;
  out.reserve(s.size());
  for (size_t at = 0; at < s.size();) {
    const size_t length = sequence_length(s[at]);
    QD_CHECK(at + length <= s.size(), "text that is not UTF-8");
    const auto byte = [&](size_t i) {
      return static_cast<char32_t>(static_cast<unsigned char>(s[at + i]));
    };
    char32_t c = byte(0);
    if (length == 2) c = (c & 0x1F) << 6 | (byte(1) & 0x3F);
    if (length == 3) c = (c & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F);
    if (length == 4) {
      c = (c & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F);
    }
    out.push_back(c);
    at += length;
  }
  return out;
}

void append_utf8(std::string& out, char32_t c) {
  const auto put = [&](char32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xC0 | c >> 6);
    put(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    put(0xE0 | c >> 12);
    put(0x80 | (c >> 6 & 0x3F));
    put(0x80 | (c & 0x3F));
  } else {
    put(0xF0 | c >> 18);
    put(0x80 | (c >> 12 & 0x3F));
    put(0x80 | (c >> 6 & 0x3F));
    put(0x80 | (c & 0x3F));
  }
}

std::string to_utf8(std::u32string_view s) {
  std::string out;
  out.reserve(s.size());
  for (const char32_t c : s) append_utf8(out, c);
  return out;
}

bool is_space(char32_t c) {
  if (c < 0x80) return c == ' ' || (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x1F);
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
         c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

std::u32string_view strip_space(std::u32string_view s, bool left, bool right) {
  while (left && !s.empty() && is_space(s.front())) s.remove_prefix(1);
  while (right && !s.empty() && is_space(s.back())) s.remove_suffix(1);
  return s;
}

SliceRange slice_range(int64_t length, std::optional<int64_t> start, std::optional<int64_t> stop,
                       int64_t step) {
  QD_CHECK(step != 0, "slice step is zero");
  const int64_t lowest = step > 0 ? 0 : -1;
  const int64_t highest = step > 0 ? length : length - 1;
  const auto clamp = [&](int64_t index) {
    if (index < 0) index += length;
    return std::clamp(index, lowest, highest);
  };
  const int64_t first = start ? clamp(*start) : (step > 0 ? 0 : length - 1);
  const int64_t last = stop ? clamp(*stop) : (step > 0 ? length : -1);
  const int64_t distance = step > 0 ? last - first : first - last;
  if (distance <= 0) return {first, step, 0};
  // Without overflow for a step of any size.
  const uint64_t stride =
      step > 0 ? static_cast<uint64_t>(step) : uint64_t{0} - static_cast<uint64_t>(step);
  return {first, step, static_cast<int64_t>(static_cast<uint64_t>(distance - 1) / stride) + 1};
}

std::string slice(std::string_view s, const SliceRange& range) {
  if (range.count == 0) return {};
  if (range.step == 1) {
    const size_t begin = offset_of(s, range.start);
    return std::string(s.substr(begin, offset_of(s.substr(begin), range.count)));
  }
  const std::u32string all = to_code_points(s);
  std::string out;
  int64_t at = range.start;
  for (int64_t i = 0; i < range.count; ++i) {
    append_utf8(out, all[static_cast<size_t>(at)]);
    if (i + 1 < range.count) at += range.step;
  }
  return out;
}

std::string character_at(std::string_view s, int64_t i) {
  const size_t at = offset_of(s, i);
  return std::string(s.substr(at, sequence_length(s[at])));
}

std::string strip(std::string_view s, std::optional<std::string_view> chars, bool left,
                  bool right) {
  const std::u32string all = to_code_points(s);
  std::u32string_view rest = all;
  if (!chars) return to_utf8(strip_space(rest, left, right));
  const std::u32string unwanted = to_code_points(*chars);
  const auto drop = [&](char32_t c) { return unwanted.find(c) != std::u32string::npos; };
  while (left && !rest.empty() && drop(rest.front())) rest.remove_prefix(1);
  while (right && !rest.empty() && drop(rest.back())) rest.remove_suffix(1);
  return to_utf8(rest);
}

std::vector<std::string> split(std::string_view s, std::optional<std::string_view> separator,
                               int64_t max_splits, bool from_right) {
  if (!separator) return split_space(s, max_splits, from_right);
  std::vector<std::string> parts;
  while (max_splits < 0 || static_cast<int64_t>(parts.size()) < max_splits) {
    const size_t at = from_right ? s.rfind(*separator) : s.find(*separator);
    if (at == std::string_view::npos) break;
    if (from_right) {
      parts.emplace_back(s.substr(at + separator->size()));
      s = s.substr(0, at);
    } else {
      parts.emplace_back(s.substr(0, at));
      s = s.substr(at + separator->size());
    }
  }
  parts.emplace_back(s);
  if (from_right) std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<std::string> split_lines(std::string_view s, bool keep_ends) {
  const std::u32string all = to_code_points(s);
  std::vector<std::string> lines;
  size_t begin = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    const char32_t c = all[i];
    const bool ends = (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 ||
                      c == 0x2028 || c == 0x2029;
    if (!ends) continue;
    const size_t line_end = i;
    if (c == '\r' && i + 1 < all.size() && all[i + 1] == '\n') ++i;
    const size_t end = keep_ends ? i + 1 : line_end;
    lines.push_back(to_utf8(std::u32string_view(all).substr(begin, end - begin)));
    begin = i + 1;
  }
  if (begin < all.size()) lines.push_back(to_utf8(std::u32string_view(all).substr(begin)));
  return lines;
}

int64_t count(std::string_view s, std::string_view what) {
  if (what.empty()) return count_code_points(s) + 1;
  int64_t found = 0;
  for (size_t at = s.find(what); at != std::string_view::npos; at = s.find(what, at + what.size()))
    ++found;
  return found;
}

std::string replace(std::string_view s, std::string_view from, std::string_view to, int64_t limit) {
  std::string out;
  if (from.empty()) {
    // Before each character and at the end.
    size_t at = 0;
    while (limit != 0 && at < s.size()) {
      const size_t length = sequence_length(s[at]);
      out.append(to).append(s.substr(at, length));
      at += length;
      if (limit > 0) --limit;
    }
    out.append(s.substr(at));
    if (limit != 0) out.append(to);
    return out;
  }
  size_t begin = 0;
  while (limit != 0) {
    const size_t at = s.find(from, begin);
    if (at == std::string_view::npos) break;
    out.append(s.substr(begin, at - begin)).append(to);
    begin = at + from.size();
    if (limit > 0) --limit;
  }
  return out.append(s.substr(begin));
}

std::string escape_html(const std::string& s) {
  std::string out;
  for (const char c : s) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&#34;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out.push_back(c);
    }
  }
  return out;
}

std::string repr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[64];
  const auto end =
      std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific).ptr;
  const std::string_view shown(buffer, static_cast<size_t>(end - buffer));
  const size_t e = shown.find('e');
  std::string digits;
  for (const char c : shown.substr(0, e)) {
    if (c >= '0' && c <= '9') digits.push_back(c);
  }
  const std::string sign = shown.front() == '-' ? "-" : "";
  const int exponent = std::stoi(std::string(shown.substr(e + 1)));
  if (exponent < -4 || exponent >= 16) {
    std::string out = sign + digits.substr(0, 1);
    if (digits.size() > 1) out += "." + digits.substr(1);
    const int magnitude = std::abs(exponent);
    return out + (exponent < 0 ? "e-" : "e+") + (magnitude < 10 ? "0" : "") +
           std::to_string(magnitude);
  }
  if (exponent < 0)
    return sign + "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  const auto whole = static_cast<size_t>(exponent) + 1;
  if (digits.size() <= whole) return sign + digits + std::string(whole - digits.size(), '0') + ".0";
  return sign + digits.substr(0, whole) + "." + digits.substr(whole);
}

}  // namespace quadrille::text::jinja
