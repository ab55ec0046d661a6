// Paged KV cache of all layers, the memory that generation lives in.
//
// A page holds kPageTokens consecutive positions of one sequence, for all kv heads of one layer.
// Sequences name their pages in a block table, so memory is handed out page by page and a prompt's
// pages are shared by the samples of its group. The layout inside a page belongs to the backend
// (tensor/cpu/attention.h): nobody else indexes into it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace quadrille::tensor {

inline constexpr int64_t kPageTokens = 16;

struct KvShape {
  int64_t layers = 0;
  int64_t kv_heads = 0;
  int64_t key_dim = 0;    // Per head.
  int64_t value_dim = 0;  // Per head; differs from key_dim for multi-head latent attention.
};

struct KvCache {
  KvShape shape;
  int64_t pages = 0;
  std::vector<at::Tensor>
      keys;  // One per layer: [pages, kv_heads, page], key_dim * kPageTokens numbers a page.
  std::vector<at::Tensor> values;  // One per layer, likewise with value_dim.
};

// Bytes of one page over all layers.
int64_t kv_page_bytes(const KvShape& shape, at::ScalarType dtype);
KvCache make_kv_cache(const KvShape& shape, int64_t pages, at::ScalarType dtype, at::Device device);
// Copies whole pages inside the cache, all layers: pages to[i] = pages from[i] (int64 [N] on the
// device).
void copy_pages(KvCache& cache, const at::Tensor& from_N, const at::Tensor& to_N);

}  // namespace quadrille::tensor
