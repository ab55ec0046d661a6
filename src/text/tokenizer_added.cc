#include "text/tokenizer_added.h"

#include <algorithm>
#include <cstring>

#include "text/tokenizer_unicode.h"

namespace quadrille::text {
namespace {

auto child_of(auto& children, unsigned char byte) {
  return std::lower_bound(
      children.begin(), children.end(), byte,
      [](const auto& child, unsigned char wanted) { return child.first < wanted; });
}

bool stands_alone(std::string_view text, size_t begin, size_t end) {
  return (begin == 0 || !is_word(code_point_before(text, begin).value)) &&
         (end == text.size() || !is_word(code_point_at(text, end).value));
}

}  // namespace

bool AddedTokenMatcher::add(const std::string& written, const AddedToken& token) {
  size_t node = 0;
  for (const char c : written) {
    const auto byte = static_cast<unsigned char>(c);
    auto& children = nodes_[node].children;
    const auto at = child_of(children, byte);
    if (at != children.end() && at->first == byte) {
      node = static_cast<size_t>(at->second);
      continue;
    }
    const size_t made = nodes_.size();
    children.insert(at, {byte, static_cast<int32_t>(made)});
    nodes_.emplace_back();
    node = made;
  }
  if (nodes_[node].token >= 0 || node == 0) return false;
  nodes_[node].token = static_cast<int32_t>(tokens_.size());
  tokens_.push_back(token);
  bool& first = first_byte_[static_cast<unsigned char>(written[0])];
  first_bytes_ += first ? 0 : 1;
  first = true;
  return true;
}

std::pair<int32_t, size_t> AddedTokenMatcher::longest_at(std::string_view text, size_t at) const {
  std::pair<int32_t, size_t> best{-1, 0};
  size_t node = 0;
  for (size_t i = at; i < text.size(); ++i) {
    const auto& children = nodes_[node].children;
    const auto child = child_of(children, static_cast<unsigned char>(text[i]));
    if (child == children.end() || child->first != static_cast<unsigned char>(text[i])) break;
    node = static_cast<size_t>(child->second);
    if (nodes_[node].token >= 0) best = {nodes_[node].token, i + 1 - at};
  }
  return best;
}

size_t AddedTokenMatcher::next_first_byte(std::string_view text, size_t at) const {
  if (first_bytes_ == 1) {
    const void* found =
        std::memchr(text.data() + at, nodes_[0].children[0].first, text.size() - at);
    return found == nullptr ? text.size()
                            : static_cast<size_t>(static_cast<const char*>(found) - text.data());
  }
  while (at < text.size() && !first_byte_[static_cast<unsigned char>(text[at])]) ++at;
  return at;
}

void AddedTokenMatcher::find(std::string_view text, std::vector<Part>& parts) const {
  // The order of these steps is the library's, odd corners included: a token that is refused as not
  // a single word still uses up its text.
  size_t done = 0;
  for (size_t at = tokens_.empty() ? text.size() : 0; at < text.size();) {
    at = next_first_byte(text, at);
    if (at == text.size()) break;
    const auto [index, size] = longest_at(text, at);
    if (index < 0) {
      ++at;
      continue;
    }
    const AddedToken& token = tokens_[static_cast<size_t>(index)];
    size_t begin = at;
    size_t end = at + size;
    at = end;
    if (token.single_word && !stands_alone(text, begin, end)) continue;
    if (token.lstrip) {
      size_t spaces = begin;
      while (spaces > done) {
        const CodePoint before = code_point_before(text, spaces);
        if (!is_space(before.value)) break;
        spaces -= static_cast<size_t>(before.bytes);
      }
      begin = std::max(spaces, done);
    }
    while (token.rstrip && end < text.size() && is_space(code_point_at(text, end).value)) {
      end += static_cast<size_t>(code_point_at(text, end).bytes);
    }
    if (done < begin) parts.push_back({text.substr(done, begin - done), -1});
    // White space that the token before took along is gone, even where it is this token.
    if (begin < end) parts.push_back({text.substr(begin, end - begin), token.id});
    done = end;
  }
  if (done != text.size()) parts.push_back({text.substr(done), -1});
}

}  // namespace quadrille::text
