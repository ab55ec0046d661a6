// Who holds which page of the KV cache. Pages are counted by reference, since the samples of a
// group share the full pages of their prompt; a page with one holder is written by it, a shared
// page never is.
#pragma once

#include <cstdint>
#include <vector>

namespace quadrille::rollout {

class PagePool {
 public:
  explicit PagePool(int64_t pages);

  int64_t pages() const { return static_cast<int64_t>(holders_.size()); }
  int64_t available() const { return static_cast<int64_t>(free_.size()); }
  int64_t used() const { return pages() - available(); }

  // Appends `count` fresh pages to `table`; false, and nothing changed, if there are not enough.
  bool allocate(int64_t count, std::vector<int32_t>& table);
  // Appends the first `count` pages of `from` to `table`, held once more.
  void share(const std::vector<int32_t>& from, int64_t count, std::vector<int32_t>& table);
  // Lets go of every page in `table` and empties it.
  void release(std::vector<int32_t>& table);

 private:
  std::vector<int32_t> holders_;
  std::vector<int32_t> free_;  // Used from the back: the page freed last is the warmest in a cache.
};

}  // namespace quadrille::rollout
