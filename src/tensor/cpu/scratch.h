// Memory that a thread keeps for its next call. Grows only; 64-byte aligned.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

namespace quadrille::tensor::cpu {

class Scratch {
 public:
  // At least `floats` numbers, with whatever is in them. Ends the life of what was taken before.
  float* take(int64_t floats) {
    if (floats > size_) {
      size_ = (floats + floats / 2 + 63) / 16 * 16;
      memory_.reset(
          static_cast<float*>(std::aligned_alloc(64, static_cast<size_t>(size_) * sizeof(float))));
      if (!memory_) throw std::bad_alloc();
    }
    return memory_.get();
  }

 private:
  struct Free {
    void operator()(float* p) const { std::free(p); }
  };
  std::unique_ptr<float, Free> memory_;
  int64_t size_ = 0;
};

}  // namespace quadrille::tensor::cpu
