// Finds stop strings in text that arrives piece by piece, across the borders of pieces.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace quadrille::rollout {

class StopText {
 public:
  StopText() = default;
  explicit StopText(const std::vector<std::string>* stops);  // Outlives this object.

  // Appends a piece; true from the moment a stop string is complete. The text then ends before the
  // one that begins first, and later pieces are ignored.
  bool append(std::string_view piece);

  const std::string& text() const { return text_; }
  bool stopped() const { return stopped_; }
  // No piece follows: what was held back as the possible beginning of a stop string is text after
  // all.
  void settle() { ended_ = true; }
  // What no later piece can take back and has not been taken yet: for showing text while it
  // arrives. Valid until the next append.
  std::string_view take_settled();

 private:
  size_t settled() const;

  const std::vector<std::string>* stops_ = nullptr;
  size_t longest_ = 0;
  std::string text_;
  bool stopped_ = false;
  bool ended_ = false;
  size_t taken_ = 0;
};

}  // namespace quadrille::rollout
