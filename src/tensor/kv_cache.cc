#include "tensor/kv_cache.h"

#include <ATen/ops/zeros.h>

#include <cstring>

#include "base/error.h"
#include "tensor/args.h"

namespace quadrille::tensor {

int64_t kv_page_bytes(const KvShape& shape, at::ScalarType dtype) {
  return shape.layers * shape.kv_heads * (shape.key_dim + shape.value_dim) * kPageTokens *
         static_cast<int64_t>(c10::elementSize(dtype));
}

KvCache make_kv_cache(const KvShape& shape, int64_t pages, at::ScalarType dtype,
                      at::Device device) {
  QD_CHECK(dtype == at::kFloat || dtype == at::kBFloat16, "a KV cache is fp32 or bf16, not {}",
           c10::toString(dtype));
  KvCache cache{shape, pages, {}, {}};
  const auto options = at::TensorOptions().dtype(dtype).device(device);
  for (int64_t layer = 0; layer < shape.layers; ++layer) {
    cache.keys.push_back(at::zeros({pages, shape.kv_heads, shape.key_dim * kPageTokens}, options));
    cache.values.push_back(
        at::zeros({pages, shape.kv_heads, shape.value_dim * kPageTokens}, options));
  }
  return cache;
}

void copy_pages(KvCache& cache, const at::Tensor& from_N, const at::Tensor& to_N) {
  QD_CHECK(from_N.numel() == to_N.numel(), "{} pages from, {} to", from_N.numel(), to_N.numel());
  const int64_t* from = data<const int64_t>(from_N);
  const int64_t* to = data<const int64_t>(to_N);
  for (int64_t i = 0; i < from_N.numel(); ++i) {
    QD_CHECK(from[i] >= 0 && from[i] < cache.pages && to[i] >= 0 && to[i] < cache.pages,
             "page {} to {}; the cache has {}", from[i], to[i], cache.pages);
  }
  for (auto* tensors : {&cache.keys, &cache.values}) {
    for (at::Tensor& tensor : *tensors) {
      char* base = static_cast<char*>(tensor.data_ptr());
      const int64_t bytes = tensor.stride(0) * static_cast<int64_t>(tensor.element_size());
      for (int64_t i = 0; i < from_N.numel(); ++i) {
        if (from[i] != to[i]) std::memcpy(base + to[i] * bytes, base + from[i] * bytes, bytes);
      }
    }
  }
}

}  // namespace quadrille::tensor
