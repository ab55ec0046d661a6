// Attention of a layer: grouped-query, and DeepSeek's multi-head latent attention.
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>

#include "base/error.h"
#include "model/blocks.h"

namespace quadrille::model {
namespace {

using tensor::ParamPtr;

// Among the batch's own sequences, or against the pages of the cache: chosen here, once, for every
// kind.
at::Tensor attend(const at::Tensor& q_THd, const at::Tensor& k_TGd, const at::Tensor& v_TGe,
                  int64_t layer, const Batch& batch, const tensor::AttentionSpec& spec) {
  if (batch.paged == nullptr) {
    return tensor::attention_packed(q_THd, k_TGd, v_TGe, batch.cu_seqlens_S1, batch.max_seqlen,
                                    spec);
  }
  const PagedContext& paged = *batch.paged;
  tensor::kv_write(*paged.cache, layer, k_TGd, v_TGe, paged.slots_T);
  return tensor::attention_paged(q_THd, *paged.cache, layer, batch.cu_seqlens_S1,
                                 paged.block_table_SP, paged.context_len_S, spec);
}

class GroupedAttention final : public Attention {
 public:
  GroupedAttention(const ModelConfig& config, int64_t layer, const LayerParams& params)
      : layer_(layer),
        width_(config.heads * config.head_dim),
        qkv_(params("attention.qkv")),
        qkv_bias_(params("attention.qkv_bias")),
        o_(params("attention.o")),
        o_bias_(params("attention.o_bias")) {
    split_.heads = config.heads;
    split_.kv_heads = config.kv_heads;
    split_.head_dim = config.head_dim;
    split_.norm = config.qk_norm == QkNormKind::kPerHead ? tensor::QkNorm::kPerHead
                  : config.qk_norm == QkNormKind::kWhole ? tensor::QkNorm::kWhole
                                                         : tensor::QkNorm::kNone;
    split_.q_norm = params("attention.q_norm");
    split_.k_norm = params("attention.k_norm");
    split_.norm_eps = config.norm_eps;
    split_.clip = config.clip_qkv;
    spec_ = {config.attention_scale(), config.layers[static_cast<size_t>(layer)].window};
  }

  at::Tensor forward(const at::Tensor& h_TD, const BlockContext& context) const override {
    const at::Tensor qkv_TC = tensor::linear(h_TD, qkv_, qkv_bias_);
    const auto [q, k, v] =
        tensor::prepare_qkv(qkv_TC, split_, context.rope, context.batch.positions_T);
    const at::Tensor mixed = attend(q, k, v, layer_, context.batch, spec_);
    return tensor::linear(mixed.view({h_TD.size(0), width_}), o_, o_bias_);
  }

 private:
  int64_t layer_;
  int64_t width_;
  ParamPtr qkv_, qkv_bias_, o_, o_bias_;
  tensor::QkvSpec split_;
  tensor::AttentionSpec spec_;
};

// Keys and values come from one narrow latent a token. They are decompressed to full heads here and
// go through the same attention and cache as everything else. Caching the latent instead (r_kv + dr
// numbers a token, a fiftieth) needs an attention over latents with kv_b folded into q and o, which
// rounds differently: generation and training would have to take that form together, or their
// log-probabilities drift apart. That is a later step.
class LatentAttention final : public Attention {
 public:
  LatentAttention(const ModelConfig& config, int64_t layer, const LayerParams& params)
      : c_(config),
        layer_(layer),
        q_a_(params("attention.q_a")),
        q_a_bias_(params("attention.q_a_bias")),
        q_a_norm_(params("attention.q_a_norm")),
        q_(params(config.q_lora_rank > 0 ? "attention.q_b" : "attention.q")),
        kv_a_(params("attention.kv_a")),
        kv_a_bias_(params("attention.kv_a_bias")),
        kv_a_norm_(params("attention.kv_a_norm")),
        kv_b_(params("attention.kv_b")),
        o_(params("attention.o")),
        o_bias_(params("attention.o_bias")),
        spec_{config.attention_scale(), config.layers[static_cast<size_t>(layer)].window} {}

  at::Tensor forward(const at::Tensor& h_TD, const BlockContext& context) const override {
    // The inner norms of this family have an epsilon of their own, whatever rms_norm_eps says.
    constexpr double kInnerEps = 1e-6;
    const int64_t dn = c_.qk_nope_dim;
    const int64_t dr = c_.qk_rope_dim;
    const int64_t dv = c_.v_head_dim;
    const int64_t tokens = h_TD.size(0);
    const at::Tensor& positions_T = context.batch.positions_T;

    at::Tensor q_source = h_TD;
    if (q_a_)
      q_source = tensor::rms_norm(tensor::linear(h_TD, q_a_, q_a_bias_), q_a_norm_, kInnerEps);
    const at::Tensor q_THd = tensor::linear(q_source, q_).view({tokens, c_.heads, dn + dr});
    const at::Tensor q_rope_THr =
        tensor::apply_rope(q_THd.narrow(2, dn, dr), context.rope, positions_T);

    const at::Tensor kv_a = tensor::linear(h_TD, kv_a_, kv_a_bias_);
    const at::Tensor latent =
        tensor::rms_norm(kv_a.narrow(1, 0, c_.kv_lora_rank), kv_a_norm_, kInnerEps);
    const at::Tensor k_rope_T1r = tensor::apply_rope(
        kv_a.narrow(1, c_.kv_lora_rank, dr).unsqueeze(1), context.rope, positions_T);
    const at::Tensor kv_THc = tensor::linear(latent, kv_b_).view({tokens, c_.heads, dn + dv});

    const at::Tensor q = at::cat({q_THd.narrow(2, 0, dn), q_rope_THr}, 2);
    // One rotated key part serves all heads.
    const at::Tensor k =
        at::cat({kv_THc.narrow(2, 0, dn), k_rope_T1r.expand({-1, c_.heads, dr})}, 2);
    const at::Tensor mixed = attend(q, k, kv_THc.narrow(2, dn, dv), layer_, context.batch, spec_);
    return tensor::linear(mixed.view({tokens, c_.heads * dv}), o_, o_bias_);
  }

 private:
  const ModelConfig& c_;
  int64_t layer_;
  ParamPtr q_a_, q_a_bias_, q_a_norm_, q_, kv_a_, kv_a_bias_, kv_a_norm_, kv_b_, o_, o_bias_;
  tensor::AttentionSpec spec_;
};

}  // namespace

std::unique_ptr<Attention> make_attention(const ModelConfig& config, int64_t layer,
                                          const LayerParams& params) {
  if (config.attention == AttentionKind::kLatent)
    return std::make_unique<LatentAttention>(config, layer, params);
  return std::make_unique<GroupedAttention>(config, layer, params);
}

}  // namespace quadrille::model
