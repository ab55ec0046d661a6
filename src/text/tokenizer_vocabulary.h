// Tokens by id and ids by token: two flat tables over one block of text.
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace quadrille::text {

// For tables in memory only: differs between machines.
inline uint64_t hash_bytes(std::string_view bytes) {
  constexpr uint64_t kFirst = 0x9E3779B97F4A7C15U;
  constexpr uint64_t kSecond = 0xD6E8FEB86659FD93U;
  uint64_t hash = bytes.size() * kFirst;
  const char* at = bytes.data();
  size_t left = bytes.size();
  for (; left >= 8; left -= 8, at += 8) {
    uint64_t eight = 0;
    std::memcpy(&eight, at, 8);
    hash = (hash ^ eight) * kSecond;
    hash ^= hash >> 32;
  }
  uint64_t tail = 0;
  if (left > 0) std::memcpy(&tail, at, left);
  hash = (hash ^ tail) * kFirst;
  hash ^= hash >> 29;
  hash *= kSecond;
  return hash ^ hash >> 32;
}

class Vocabulary {
 public:
  // Room for ids below `ids` and `tokens` tokens in all.
  Vocabulary(int64_t ids, size_t tokens);

  // Returns false when the token or the id is taken. id is in [0, ids).
  bool add(std::string_view token, int32_t id);
  std::optional<int32_t> find(std::string_view token) const;
  bool contains(int64_t id) const {
    return id >= 0 && id < ids() && spans_[static_cast<size_t>(id)].present;
  }
  // `id` must be contained.
  std::string_view token(int64_t id) const {
    const Span& span = spans_[static_cast<size_t>(id)];
    return std::string_view(text_).substr(span.begin, span.size);
  }
  int64_t ids() const { return static_cast<int64_t>(spans_.size()); }
  size_t tokens() const { return tokens_; }

 private:
  struct Span {
    uint64_t begin = 0;
    uint32_t size = 0;
    bool present = false;
  };
  size_t slot_of(std::string_view token) const;

  std::string text_;
  std::vector<Span> spans_;
  std::vector<int32_t> slots_;  // Open addressing; -1: empty. At most half full.
  size_t tokens_ = 0;
};

}  // namespace quadrille::text
