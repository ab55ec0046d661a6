#include "tensor/cpu/packed.h"

#include <cstdlib>
#include <mutex>
#include <new>

#include "base/error.h"
#include "tensor/cpu/tensors.h"

namespace quadrille::tensor::cpu {

void PackedWeight::Free::operator()(float* p) const {
  std::free(p);
}

PackedWeight::PackedWeight(const Param& param, int64_t n, Type compute, int threads)
    : n_(n), compute_(compute) {
  const int64_t k = param.value.size(-1);
  const int64_t count = k == 0 || n == 0 ? 0 : param.value.numel() / (n * k);
  QD_CHECK(param.value.is_contiguous() && count * n * k == param.value.numel(),
           "weight {} does not split into matrices of {} rows", param.name, n);
  stride_ = (packed_size(k, n, compute) + 15) / 16 * 16;
  const auto bytes = static_cast<size_t>(stride_ * count) * sizeof(float);
  data_.reset(static_cast<float*>(std::aligned_alloc(64, bytes == 0 ? 64 : bytes)));
  if (data_ == nullptr) throw std::bad_alloc();

  // Stretches of a few panels of one matrix each.
  constexpr int64_t kStretch = 8 * kPanel;
  const int64_t stretches = (n + kStretch - 1) / kStretch;
  const Type type = type_of(param.value);
  const auto* values = static_cast<const char*>(param.value.const_data_ptr());
  const int64_t size = param.value.element_size();
  const Phase phase{
      count * stretches, [&](int64_t item) {
        const int64_t row = item % stretches * kStretch;
        Gemm part;
        part.k = k;
        part.n = n - row < kStretch ? n - row : kStretch;
        part.compute = compute;
        part.b = values + (item / stretches * n + row) * k * size;
        part.b_type = type;
        part.b_row = 1;
        part.b_col = k;
        pack_b(part, data_.get() + item / stretches * stride_ + packed_size(k, row, compute));
      }};
  run_phases(std::span(&phase, 1), threads_for(16.0 * static_cast<double>(n * k * count), threads));
}

std::shared_ptr<const PackedWeight> packed(Param& param, int64_t n, Type compute, int threads) {
  static std::mutex mutex;  // One for all: it is held for long only when weights have changed.
  const std::lock_guard lock(mutex);
  auto kept = std::static_pointer_cast<PackedWeight>(param.packed);
  if (kept == nullptr || param.packed_version != param.version || !kept->fits(n, compute)) {
    param.packed.reset();  // Before the new one is made: never two copies.
    kept = std::make_shared<PackedWeight>(param, n, compute, threads);
    param.packed = kept;
    param.packed_version = param.version;
  }
  return kept;
}

}  // namespace quadrille::tensor::cpu
