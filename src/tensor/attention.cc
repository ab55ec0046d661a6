// Attention over packed sequences (training, differentiable) and over cached pages (generation).
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <vector>

#include "tensor/args.h"
#include "tensor/autograd.h"
#include "tensor/cpu/attention.h"
#include "tensor/ops.h"

namespace quadrille::tensor {
namespace {

static_assert(kPageTokens == cpu::kBlockKeys, "a page is a block of the attention kernel");

cpu::AttentionShape shape_of(int64_t heads, int64_t kv_heads, int64_t d, int64_t e,
                             const AttentionSpec& spec) {
  QD_CHECK(kv_heads > 0 && heads % kv_heads == 0, "{} heads on {} kv heads", heads, kv_heads);
  return {heads, kv_heads, d, e, static_cast<float>(spec.scale), spec.window};
}

cpu::AttentionShape shape_of(const KvCache& cache, int64_t heads, const AttentionSpec& spec) {
  return shape_of(heads, cache.shape.kv_heads, cache.shape.key_dim, cache.shape.value_dim, spec);
}

// fp32, contiguous, outside of the graph.
at::Tensor widened(const at::Tensor& x) {
  const at::NoGradGuard no_grad;
  return x.scalar_type() == at::kFloat ? cpu::plain(x) : cpu::plain(x).to(at::kFloat);
}

void check_cu(const int32_t* cu, int64_t sequences, int64_t tokens) {
  QD_CHECK(cu[0] == 0 && cu[sequences] == tokens,
           "sequence bounds run from {} to {}, tokens are {}", cu[0], cu[sequences], tokens);
  for (int64_t s = 0; s < sequences; ++s) {
    QD_CHECK(cu[s] <= cu[s + 1], "sequence {} has {} tokens", s, cu[s + 1] - cu[s]);
  }
}

}  // namespace

at::Tensor attention_packed(const at::Tensor& q_THd, const at::Tensor& k_TGd,
                            const at::Tensor& v_TGe, const at::Tensor& cu_seqlens_S1,
                            int64_t /*max_seqlen*/, const AttentionSpec& spec) {
  const int64_t tokens = q_THd.size(0);
  const cpu::AttentionShape shape =
      shape_of(q_THd.size(1), k_TGd.size(1), q_THd.size(2), v_TGe.size(2), spec);
  QD_CHECK(k_TGd.size(0) == tokens && v_TGe.size(0) == tokens && k_TGd.size(2) == shape.key_dim &&
               v_TGe.size(1) == shape.kv_heads,
           "q [{}, {}, {}], k [{}, {}, {}] and v [{}, {}, {}] do not fit", tokens, shape.heads,
           shape.key_dim, k_TGd.size(0), k_TGd.size(1), k_TGd.size(2), v_TGe.size(0), v_TGe.size(1),
           v_TGe.size(2));
  const int64_t sequences = cu_seqlens_S1.numel() - 1;
  check_cu(data<const int32_t>(cu_seqlens_S1), sequences, tokens);

  // The kernel is fp32; bf16 is widened before it and rounded once after it.
  const at::ScalarType dtype = q_THd.scalar_type();
  const bool node = wants_node({q_THd, k_TGd, v_TGe}, {});
  const at::Tensor q = widened(q_THd);
  const at::Tensor k = widened(k_TGd);
  const at::Tensor v = widened(v_TGe);
  at::Tensor out = cpu::empty({tokens, shape.heads, shape.value_dim}, q.scalar_type());
  const at::Tensor stats =
      node ? cpu::empty({tokens, shape.heads, 2}, q.scalar_type()) : at::Tensor();
  cpu::attention_packed_forward(shape, data<const float>(q), data<const float>(k),
                                data<const float>(v), data<const int32_t>(cu_seqlens_S1), sequences,
                                data<float>(out), data<float>(stats));
  at::Tensor result = dtype == at::kFloat ? out : out.to(dtype);
  if (node) {
    record("attention_packed", {q_THd, k_TGd, v_TGe}, {result},
           [q, k, v, out = out.detach(), stats, cu_seqlens_S1, sequences, shape,
            dtype](const auto& grads) {
             const at::Tensor dout = widened(grads[0]);
             at::Tensor dq = cpu::empty(q.sizes(), q.scalar_type());
             at::Tensor dk = cpu::empty(k.sizes(), k.scalar_type());
             at::Tensor dv = cpu::empty(v.sizes(), v.scalar_type());
             cpu::attention_packed_backward(shape, data<const float>(q), data<const float>(k),
                                            data<const float>(v), data<const float>(out),
                                            data<const float>(stats), data<const float>(dout),
                                            data<const int32_t>(cu_seqlens_S1), sequences,
                                            data<float>(dq), data<float>(dk), data<float>(dv));
             if (dtype == at::kFloat) return std::vector<at::Tensor>{dq, dk, dv};
             return std::vector<at::Tensor>{dq.to(dtype), dk.to(dtype), dv.to(dtype)};
           });
  }
  return result;
}

void kv_write(KvCache& cache, int64_t layer, const at::Tensor& k_TGd, const at::Tensor& v_TGe,
              const at::Tensor& slots_T) {
  const int64_t tokens = slots_T.numel();
  QD_CHECK(layer >= 0 && layer < cache.shape.layers, "layer {} of {}", layer, cache.shape.layers);
  QD_CHECK(k_TGd.numel() == tokens * cache.shape.kv_heads * cache.shape.key_dim &&
               v_TGe.numel() == tokens * cache.shape.kv_heads * cache.shape.value_dim,
           "k and v do not fit {} slots of the cache", tokens);
  const int64_t* slots = data<const int64_t>(slots_T);
  for (int64_t t = 0; t < tokens; ++t) {
    QD_CHECK(slots[t] >= 0 && slots[t] < cache.pages * kPageTokens,
             "slot {} of token {}; the cache has {} pages", slots[t], t, cache.pages);
  }
  const at::Tensor k = cpu::plain(k_TGd);
  const at::Tensor v = cpu::plain(v_TGe);
  by_dtype(cache.keys[layer].scalar_type(), [&](auto t) {
    using T = decltype(t);
    cpu::kv_write(shape_of(cache, cache.shape.kv_heads, {}), data<const T>(k), data<const T>(v),
                  slots, tokens, data<T>(cache.keys[layer]), data<T>(cache.values[layer]));
  });
}

at::Tensor attention_paged(const at::Tensor& q_THd, const KvCache& cache, int64_t layer,
                           const at::Tensor& cu_queries_S1, const at::Tensor& block_table_SP,
                           const at::Tensor& context_len_S, const AttentionSpec& spec) {
  const int64_t tokens = q_THd.size(0);
  const int64_t sequences = context_len_S.numel();
  const cpu::AttentionShape shape = shape_of(cache, q_THd.size(1), spec);
  QD_CHECK(layer >= 0 && layer < cache.shape.layers, "layer {} of {}", layer, cache.shape.layers);
  QD_CHECK(q_THd.size(2) == shape.key_dim, "queries have {} numbers, keys {}", q_THd.size(2),
           shape.key_dim);
  QD_CHECK(cu_queries_S1.numel() == sequences + 1 && block_table_SP.size(0) == sequences,
           "{} query bounds and {} block table rows for {} sequences", cu_queries_S1.numel(),
           block_table_SP.size(0), sequences);
  const int64_t width = block_table_SP.size(1);
  const int32_t* cu = data<const int32_t>(cu_queries_S1);
  const int32_t* table = data<const int32_t>(block_table_SP);
  const int32_t* context = data<const int32_t>(context_len_S);
  check_cu(cu, sequences, tokens);
  for (int64_t s = 0; s < sequences; ++s) {
    const int64_t queries = cu[s + 1] - cu[s];
    const int64_t blocks = (context[s] + kPageTokens - 1) / kPageTokens;
    QD_CHECK(context[s] >= queries && blocks <= width,
             "sequence {}: {} queries, context {}, block table of {}", s, queries, context[s],
             width);
    // Pages that slid out of every query's window may be gone.
    const int64_t seen =
        spec.window > 0 ? std::max<int64_t>(0, context[s] - queries + 1 - spec.window) : 0;
    for (int64_t b = seen / kPageTokens; b < blocks; ++b) {
      const int32_t page = table[s * width + b];
      QD_CHECK(page >= 0 && page < cache.pages, "sequence {} block {}: page {} of {}", s, b, page,
               cache.pages);
    }
  }
  const at::Tensor q = widened(q_THd);
  at::Tensor out = cpu::empty({tokens, shape.heads, shape.value_dim}, q.scalar_type());
  by_dtype(cache.keys[layer].scalar_type(), [&](auto t) {
    using T = decltype(t);
    cpu::attention_paged(shape, data<const float>(q), data<const T>(cache.keys[layer]),
                         data<const T>(cache.values[layer]), cu, table, width, context, sequences,
                         data<float>(out));
  });
  return q_THd.scalar_type() == at::kFloat ? out : out.to(q_THd.scalar_type());
}

}  // namespace quadrille::tensor
