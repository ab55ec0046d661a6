#include "text/tokenizer_vocabulary.h"

#include <bit>

#include "base/error.h"

namespace quadrille::text {

Vocabulary::Vocabulary(int64_t ids, size_t tokens)
    : spans_(static_cast<size_t>(ids)), slots_(std::bit_ceil(2 * tokens + 2), -1) {}

size_t Vocabulary::slot_of(std::string_view token) const {
  const size_t mask = slots_.size() - 1;
  size_t slot = hash_bytes(token) & mask;
  while (slots_[slot] >= 0 && this->token(slots_[slot]) != token) slot = (slot + 1) & mask;
  return slot;
}

bool Vocabulary::add(std::string_view token, int32_t id) {
  QD_CHECK(id >= 0 && id < ids() && 2 * (tokens_ + 1) < slots_.size() + 1, "id {} of {}, token {}",
           id, ids(), tokens_);
  const size_t slot = slot_of(token);
  Span& span = spans_[static_cast<size_t>(id)];
  if (slots_[slot] >= 0 || span.present) return false;
  span = {text_.size(), static_cast<uint32_t>(token.size()), true};
  text_ += token;
  slots_[slot] = id;
  ++tokens_;
  return true;
}

std::optional<int32_t> Vocabulary::find(std::string_view token) const {
  const int32_t id = slots_[slot_of(token)];
  return id >= 0 ? std::optional<int32_t>(id) : std::nullopt;
}

}  // namespace quadrille::text
