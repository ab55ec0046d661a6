#define PCRE2_CODE_UNIT_WIDTH 8
#include "reward/verifiers.h"

#include <pcre2.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "base/error.h"

namespace quadrille::reward {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n\f\v";
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

// The row's answer as text: a string as it is, a number or another value as JSON writes it.
std::optional<std::string> answer_of(const RewardItem& item) {
  if (item.row == nullptr || !item.row->is_object()) return std::nullopt;
  const auto answer = item.row->find("answer");
  if (answer == item.row->end() || answer->is_null()) return std::nullopt;
  return answer->is_string() ? answer->get<std::string>() : answer->dump();
}

const char* kNoAnswer = "the row has no `answer`";

Verdict exact(const RewardItem& item) {
  const auto answer = answer_of(item);
  if (!answer) return {kNan, kNoAnswer};
  const std::string_view got = trimmed(item.completion);
  return {got == trimmed(*answer) ? 1.0F : 0.0F, "", std::string(got)};
}

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

// A number at text[at], moving `at` behind it. Digits may be grouped by commas in threes.
std::optional<double> parse_number(std::string_view text, size_t& at) {
  size_t i = at;
  std::string plain;
  if (i < text.size() && (text[i] == '-' || text[i] == '+')) {
    if (text[i] == '-') plain += '-';
    ++i;
  }
  const size_t digits = i;
  while (i < text.size() && is_digit(text[i])) plain += text[i++];
  const auto group = [&] {
    return i + 3 < text.size() && text[i] == ',' && is_digit(text[i + 1]) &&
           is_digit(text[i + 2]) && is_digit(text[i + 3]) &&
           (i + 4 >= text.size() || !is_digit(text[i + 4]));
  };
  if (i > digits && i - digits <= 3) {
    while (group()) {
      plain.append(text.substr(i + 1, 3));
      i += 4;
    }
  }
  const bool whole = i > digits;
  if (i + 1 < text.size() && text[i] == '.' && is_digit(text[i + 1])) {
    plain += '.';
    for (++i; i < text.size() && is_digit(text[i]); ++i) plain += text[i];
  } else if (!whole) {
    return std::nullopt;
  }
  size_t e = i;
  if (e < text.size() && (text[e] == 'e' || text[e] == 'E')) {
    std::string exponent = "e";
    ++e;
    if (e < text.size() && (text[e] == '-' || text[e] == '+')) exponent += text[e++];
    const size_t first = e;
    while (e < text.size() && is_digit(text[e])) exponent += text[e++];
    if (e > first) {
      plain += exponent;
      i = e;
    }
  }
  double value = 0;
  const auto read = std::from_chars(plain.data(), plain.data() + plain.size(), value);
  if (read.ec != std::errc()) return std::nullopt;
  at = i;
  return value;
}

// The last number of a text, "3/4" and "50%" read as what they mean.
std::optional<double> last_number(std::string_view text) {
  std::optional<double> last;
  for (size_t at = 0; at < text.size();) {
    const bool sign = text[at] == '-' || text[at] == '+';
    // "5-3" is five and three, not five and minus three.
    const bool glued =
        sign && at > 0 &&
        (is_digit(text[at - 1]) || std::isalpha(static_cast<unsigned char>(text[at - 1])));
    size_t end = at;
    std::optional<double> value;
    if (!glued) value = parse_number(text, end);
    if (!value) {
      ++at;
      continue;
    }
    if (end + 1 < text.size() && text[end] == '/' && is_digit(text[end + 1])) {
      size_t denominator_end = end + 1;
      const auto denominator = parse_number(text, denominator_end);
      if (denominator && *denominator != 0) {
        value = *value / *denominator;
        end = denominator_end;
      }
    }
    if (end < text.size() && text[end] == '%') {
      value = *value / 100;
      ++end;
    }
    last = value;
    at = end;
  }
  return last;
}

Verdict numeric(const RewardItem& item, double tolerance) {
  const auto answer = answer_of(item);
  if (!answer) return {kNan, kNoAnswer};
  const auto expected = last_number(*answer);
  if (!expected) return {kNan, fmt::format("the row's `answer` holds no number: {}", *answer)};
  const auto got = last_number(item.completion);
  if (!got) return {0.0F, "", ""};
  const bool right = std::abs(*got - *expected) <= tolerance * std::max(1.0, std::abs(*expected));
  return {right ? 1.0F : 0.0F, "", fmt::format("{}", *got)};
}

struct FreeCode {
  void operator()(pcre2_code* code) const noexcept { pcre2_code_free(code); }
};
struct FreeMatch {
  void operator()(pcre2_match_data* data) const noexcept { pcre2_match_data_free(data); }
};

class Pattern {
 public:
  Pattern(const std::string& pattern, bool whole) {
    int error = 0;
    PCRE2_SIZE offset = 0;
    code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                              PCRE2_UTF | PCRE2_UCP | PCRE2_MATCH_INVALID_UTF |
                                  (whole ? PCRE2_ANCHORED | PCRE2_ENDANCHORED : 0U),
                              &error, &offset, nullptr));
    if (!code_) {
      PCRE2_UCHAR text[128];
      pcre2_get_error_message(error, text, sizeof(text));
      throw ConfigError("reward.pattern `{}` does not compile at {}: {}", pattern, offset,
                        reinterpret_cast<const char*>(text));
    }
    uint32_t groups = 0;
    pcre2_pattern_info(code_.get(), PCRE2_INFO_CAPTURECOUNT, &groups);
    captures_ = groups > 0;
  }

  bool captures() const { return captures_; }

  // No match: nullopt. A match: the first group, or the whole of it. A pattern that backtracks
  // without end is cut off by PCRE2's match limit: `failed` is set.
  std::optional<std::string> find(const std::string& text, bool& failed) const {
    const std::unique_ptr<pcre2_match_data, FreeMatch> match(
        pcre2_match_data_create_from_pattern(code_.get(), nullptr));
    const int found = pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(text.data()),
                                  text.size(), 0, 0, match.get(), nullptr);
    failed = found < 0 && found != PCRE2_ERROR_NOMATCH;
    if (found < 0) return std::nullopt;
    const PCRE2_SIZE* edges = pcre2_get_ovector_pointer(match.get());
    const size_t group = captures_ ? 1 : 0;
    if (edges[2 * group] == PCRE2_UNSET) return std::string();
    return text.substr(edges[2 * group], edges[2 * group + 1] - edges[2 * group]);
  }

 private:
  std::unique_ptr<pcre2_code, FreeCode> code_;
  bool captures_ = false;
};

Verdict matches(const RewardItem& item, const Pattern& pattern, bool compare) {
  bool failed = false;
  const auto found = pattern.find(item.completion, failed);
  if (failed) return {kNan, "the pattern needs too many steps on this answer"};
  if (!compare) return {found ? 1.0F : 0.0F, ""};
  if (!found) return {0.0F, "", ""};
  const auto answer = answer_of(item);
  if (!answer) return {kNan, kNoAnswer};
  const std::string_view got = trimmed(*found);
  return {got == trimmed(*answer) ? 1.0F : 0.0F, "", std::string(got)};
}

}  // namespace

Verifier make_verifier(const RewardPart& part) {
  if (part.kind == "exact") return exact;
  if (part.kind == "numeric") {
    return
        [tolerance = part.tolerance](const RewardItem& item) { return numeric(item, tolerance); };
  }
  const bool whole = part.kind == "format";
  QD_CHECK(whole || part.kind == "regex", "kind {}", part.kind);
  if (part.pattern.empty())
    throw ConfigError("reward.kind = \"{}\" needs reward.pattern", part.kind);
  auto pattern = std::make_shared<const Pattern>(part.pattern, whole);
  return [pattern, whole](const RewardItem& item) {
    return matches(item, *pattern, !whole && pattern->captures());
  };
}

}  // namespace quadrille::reward
