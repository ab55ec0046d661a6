#include "text/tokenizer_normalizer.h"

#include <algorithm>

#include "text/tokenizer_pattern.h"
#include "text/tokenizer_unicode.h"

namespace quadrille::text {

Replacement::Replacement(const JsonPlace& component)
    : content_(component.member("content").string()) {
  PatternText pattern = read_pattern(component);
  if (!pattern.is_regex && !pattern.text.empty()) {
    literal_ = std::move(pattern.text);
    return;
  }
  try {
    regex_ = std::make_shared<Regex>(pattern.text);
  } catch (const PatternError& error) {
    component.fail("{}", error.what());
  }
}

bool Replacement::apply(std::string_view text, RegexScratch& scratch, std::string& out) const {
  size_t done = 0;
  if (!regex_) {
    size_t found = text.find(literal_);
    if (found == std::string_view::npos) return false;
    out.clear();
    out.reserve(text.size() + text.size() / 2);
    while (found != std::string_view::npos) {
      out.append(text, done, found - done).append(content_);
      done = found + literal_.size();
      found = text.find(literal_, done);
    }
    out.append(text.substr(done));
    return true;
  }
  if (text.empty()) return false;
  bool any = false;
  std::string stand_ins;
  RegexMatches matches(*regex_, with_stand_ins(text, stand_ins) ? stand_ins : text, scratch);
  Range match;
  while (matches.next(match)) {
    if (!any) out.clear();
    out.append(text, done, match.begin - done).append(content_);
    done = match.end;
    any = true;
  }
  if (any) out.append(text.substr(done));
  return any;
}

bool Replacement::matches_nothing() const {
  if (!regex_) return false;
  RegexScratch scratch;
  Range match;
  for (const std::string_view probe : {"", "a B\n1,"}) {
    RegexMatches matches(*regex_, probe, scratch);
    while (matches.next(match)) {
      if (match.begin == match.end) return true;
    }
  }
  return false;
}

bool Replacement::keeps_places() const {
  return !regex_ && !content_.empty() &&
         static_cast<size_t>(code_point_at(literal_, 0).bytes) == literal_.size();
}

Normalizer::Normalizer(const JsonPlace& place) {
  if (!place.is_null()) add(place, 0);
}

bool Normalizer::keeps_start() const {
  return std::none_of(steps_.begin(), steps_.end(), [](const auto& step) {
    const auto* replacement = std::get_if<Replacement>(&step);
    return replacement != nullptr && !replacement->keeps_places();
  });
}

void Normalizer::add(const JsonPlace& place, int depth) {
  if (depth > 8) place.fail("sequences are nested too deep");
  const std::string type = place.type();
  if (type == "Sequence") {
    for (const JsonPlace& part : place.member("normalizers").elements()) add(part, depth + 1);
  } else if (type == "NFC") {
    steps_.emplace_back(Nfc{});
  } else if (type == "Prepend") {
    Prepend prepend{place.member("prepend").string()};
    if (prepend.text.empty())
      place.fail("an empty \"prepend\" is not supported: the library doubles the first character");
    steps_.emplace_back(std::move(prepend));
  } else if (type == "Replace") {
    Replacement replacement(place);
    if (replacement.matches_nothing())
      place.fail("a pattern that matches the empty text is not supported");
    steps_.emplace_back(std::move(replacement));
  } else {
    place.fail("the normalizer \"{}\" is not supported (NFC, Prepend, Replace and Sequence are)",
               type);
  }
}

std::string_view Normalizer::apply(std::string_view text, RegexScratch& scratch,
                                   std::string (&buffers)[2]) const {
  int next = 0;  // The buffer that `text` does not point into.
  for (const auto& step : steps_) {
    std::string& out = buffers[next];
    bool changed = false;
    if (std::holds_alternative<Nfc>(step)) {
      changed = to_nfc(text, out);
    } else if (const auto* prepend = std::get_if<Prepend>(&step)) {
      changed = !text.empty();
      if (changed) out.assign(prepend->text).append(text);
    } else {
      changed = std::get<Replacement>(step).apply(text, scratch, out);
    }
    if (!changed) continue;
    text = out;
    next = 1 - next;
  }
  return text;
}

}  // namespace quadrille::text
