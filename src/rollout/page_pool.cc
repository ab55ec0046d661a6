#include "rollout/page_pool.h"

#include "base/error.h"

namespace quadrille::rollout {

PagePool::PagePool(int64_t pages) : holders_(static_cast<size_t>(pages), 0) {
  free_.reserve(holders_.size());
  for (int64_t page = pages - 1; page >= 0; --page) free_.push_back(static_cast<int32_t>(page));
}

bool PagePool::allocate(int64_t count, std::vector<int32_t>& table) {
  if (count > available()) return false;
  for (int64_t i = 0; i < count; ++i) {
    const int32_t page = free_.back();
    free_.pop_back();
    holders_[static_cast<size_t>(page)] = 1;
    table.push_back(page);
  }
  return true;
}

void PagePool::share(const std::vector<int32_t>& from, int64_t count, std::vector<int32_t>& table) {
  for (int64_t i = 0; i < count; ++i) {
    const int32_t page = from[static_cast<size_t>(i)];
    int32_t& holders = holders_[static_cast<size_t>(page)];
    QD_CHECK(holders > 0, "page {} is shared but free", page);
    ++holders;
    table.push_back(page);
  }
}

void PagePool::release(std::vector<int32_t>& table) {
  for (const int32_t page : table) {
    int32_t& holders = holders_[static_cast<size_t>(page)];
    QD_CHECK(holders > 0, "page {} is released but free", page);
    if (--holders == 0) free_.push_back(page);
  }
  table.clear();
}

}  // namespace quadrille::rollout
