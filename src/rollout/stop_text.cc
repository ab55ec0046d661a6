#include "rollout/stop_text.h"

#include <algorithm>

namespace quadrille::rollout {

StopText::StopText(const std::vector<std::string>* stops) : stops_(stops) {
  for (const std::string& stop : *stops_) longest_ = std::max(longest_, stop.size());
}

bool StopText::append(std::string_view piece) {
  if (stopped_) return true;
  // A stop string that ends in this piece begins at most longest - 1 bytes before it.
  const size_t begin = text_.size() + 1 > longest_ ? text_.size() + 1 - longest_ : 0;
  text_ += piece;
  if (longest_ == 0 || piece.empty()) return false;
  size_t first = std::string::npos;
  for (const std::string& stop : *stops_) first = std::min(first, text_.find(stop, begin));
  if (first == std::string::npos) return false;
  text_.resize(first);
  stopped_ = true;
  return true;
}

std::string_view StopText::take_settled() {
  const size_t end = settled();
  const std::string_view piece = std::string_view(text_).substr(taken_, end - taken_);
  taken_ = end;
  return piece;
}

size_t StopText::settled() const {
  if (stopped_ || ended_ || longest_ == 0) return text_.size();
  const size_t begin = text_.size() + 1 > longest_ ? text_.size() + 1 - longest_ : 0;
  for (size_t at = begin; at < text_.size(); ++at) {
    const std::string_view tail = std::string_view(text_).substr(at);
    for (const std::string& stop : *stops_) {
      if (std::string_view(stop).starts_with(tail)) return at;
    }
  }
  return text_.size();
}

}  // namespace quadrille::rollout
