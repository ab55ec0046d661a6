// The functions a transformer is made of, for generation and training alike. Each looks at the
// device of its first tensor and runs tensor/cpu (tensor/cuda later); each differentiable one
// builds an autograd node only when gradients are enabled and an input asks for them, so that
// generation pays nothing for training.
//
// Two promises beyond the formulas:
//   rows are independent: a row's bits do not depend on how many other rows the call has. This is
//   what makes
//     generation (a few rows a step, paged) and training (packed) agree bit for bit in fp32;
//   results are deterministic from run to run at a given number of threads.
//
// Shape letters: T tokens (packed, no padding), S sequences, D hidden, H query heads, G kv heads, d
// head dim, e value head dim, E experts, K experts a token, R = T*K rows, F expert width, V
// vocabulary, N chosen rows, B sequences in a decode step, P pages a sequence, O/I output/input
// features. Compute dtype ("cd") is fp32 or bf16. Index tensors are int64 unless a comment says
// int32. Formulas and dtypes at each step: docs/models.md.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <utility>

#include "tensor/kv_cache.h"
#include "tensor/param.h"

namespace quadrille::tensor {

// ---- linear.cc
// ---------------------------------------------------------------------------------------

// Rows of the table, [T, D]. tokens_T int64.
at::Tensor embedding(const at::Tensor& tokens_T, const ParamPtr& table_VD);
// x · Wᵀ + b. x is [..., I] in cd; result in cd. bias may be null.
at::Tensor linear(const at::Tensor& x_TI, const ParamPtr& weight_OI,
                  const ParamPtr& bias_O = nullptr);
// x · Wᵀ in fp32 whatever cd is: x and W are taken to fp32 first. For router logits.
at::Tensor linear_fp32(const at::Tensor& x_TI, const ParamPtr& weight_OI);
// silu(gate) * up, where gate_up is [T, 2F] with the gate columns first.
at::Tensor silu_mul(const at::Tensor& gate_up_T2F);

// ---- norm_rope.cc
// ------------------------------------------------------------------------------------

// weight * cast(x * rsqrt(mean(x²) + eps)), statistics in fp32. Normalises the last dimension.
at::Tensor rms_norm(const at::Tensor& x_TD, const ParamPtr& weight_D, double eps);
// (x + residual, rms_norm(x + residual)): the two at every block's seam in one pass.
std::pair<at::Tensor, at::Tensor> add_rms_norm(const at::Tensor& x_TD,
                                               const at::Tensor& residual_TD,
                                               const ParamPtr& weight_D, double eps);

// cos and sin of every position, fp32 [max_position, rope_dim / 2], scaled by the attention factor.
struct RopeTable {
  at::Tensor cos;
  at::Tensor sin;
  bool interleaved = false;  // DeepSeek-V3: even/odd pairs in, first/second half out.
};
enum class QkNorm { kNone, kPerHead, kWhole };
struct QkvSpec {
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  QkNorm norm = QkNorm::kNone;
  ParamPtr q_norm;  // [d] per head, or [H*d] whole; null for kNone.
  ParamPtr k_norm;
  double norm_eps = 1e-6;
  double clip = 0;  // OLMoE's clip_qkv; 0: off.
};
struct Qkv {
  at::Tensor q_THd;
  at::Tensor k_TGd;
  at::Tensor v_TGd;
};
// From the fused projection [T, (H+2G)d] to rotated heads: split, norm (q, k), clamp (q, k, v),
// RoPE (q, k).
Qkv prepare_qkv(const at::Tensor& qkv_TC, const QkvSpec& spec, const RopeTable& rope,
                const at::Tensor& positions_T);
// RoPE alone, over the whole last dimension of x [T, heads, rope_dim].
at::Tensor apply_rope(const at::Tensor& x_THr, const RopeTable& rope,
                      const at::Tensor& positions_T);

// ---- attention.cc
// ------------------------------------------------------------------------------------

struct AttentionSpec {
  double scale = 1.0;
  int64_t window = 0;  // Query i sees key j if 0 <= i - j < window; 0: all.
};
// Causal attention over packed sequences: sequence s is rows cu_seqlens[s] .. cu_seqlens[s+1]
// (int32 [S+1]). q [T,H,d], k [T,G,d], v [T,G,e] -> [T,H,e]. Head h uses kv head h / (H/G).
// Differentiable.
at::Tensor attention_packed(const at::Tensor& q_THd, const at::Tensor& k_TGd,
                            const at::Tensor& v_TGe, const at::Tensor& cu_seqlens_S1,
                            int64_t max_seqlen, const AttentionSpec& spec);
// Writes k and v of T tokens into layer `layer` at slots (page * kPageTokens + offset), int64 [T].
void kv_write(KvCache& cache, int64_t layer, const at::Tensor& k_TGd, const at::Tensor& v_TGe,
              const at::Tensor& slots_T);
// The same attention against cached pages (the new tokens are already written). Sequence s has
// queries cu_queries[s] .. cu_queries[s+1] (int32 [S+1]), which are the last ones of its
// context_len[s] (int32 [S]) positions; block_table int32 [S, P]. Same bits as attention_packed in
// fp32. Not differentiable.
at::Tensor attention_paged(const at::Tensor& q_THd, const KvCache& cache, int64_t layer,
                           const at::Tensor& cu_queries_S1, const at::Tensor& block_table_SP,
                           const at::Tensor& context_len_S, const AttentionSpec& spec);

// ---- moe.cc
// ------------------------------------------------------------------------------------------

enum class RouterScore { kSoftmax, kSigmoid };
struct RouterSpec {
  RouterScore score = RouterScore::kSoftmax;
  int64_t top_k = 1;
  bool normalize = false;    // Divide by the sum of the chosen weights.
  double normalize_eps = 0;  // Added to that sum: 1e-20 for DeepSeek-V3.
  double scaling = 1.0;      // Multiplies the weights at the end.
  int64_t groups = 1;  // Group-limited choice (sigmoid): group score = sum of its two largest.
  int64_t groups_kept = 1;
  at::Tensor selection_bias_E;  // fp32, chooses only, never scales; undefined: none.
};
struct Routes {
  at::Tensor ids_TK;      // int32, in the router's order; ties go to the lowest id.
  at::Tensor weights_TK;  // fp32. Differentiable with respect to the logits.
};
// logits fp32 [T, E]. With `replay` (int32 [T, K]) the ids are given and only the weights are
// computed: over the full live scores, gathered, renormalised. A replayed id of -1 takes the live
// choice for that token.
Routes route(const at::Tensor& logits_TE, const RouterSpec& spec, const at::Tensor& replay_TK = {});

// Rows sorted by expert, stably by token: what an expert-parallel exchange will deliver too.
struct Dispatched {
  at::Tensor x_RD;        // R = T*K rows.
  at::Tensor offsets_E1;  // int64 [E+1]: rows of expert e are offsets[e] .. offsets[e+1].
  at::Tensor row_of_TK;   // int64: where token t's choice k went.
};
Dispatched dispatch_local(const at::Tensor& x_TD, const at::Tensor& ids_TK, int64_t experts);
// down(silu(gate(x)) * up(x)) of each row's own expert. gate_up [E, 2F, D] gate rows first, down
// [E, D, F].
at::Tensor grouped_mlp(const at::Tensor& x_RD, const at::Tensor& offsets_E1,
                       const ParamPtr& gate_up_E2FD, const ParamPtr& down_EDF);
// Sum over k of weight * row, in the order k = 0..K-1, in fp32, then cast to cd ("expert_order").
at::Tensor combine_local(const at::Tensor& y_RD, const at::Tensor& row_of_TK,
                         const at::Tensor& weights_TK);
// Assignments per expert, int64 [E]; ids of -1 count nowhere.
at::Tensor expert_counts(const at::Tensor& ids_TK, int64_t experts);

// ---- logprob.cc
// --------------------------------------------------------------------------------------

struct TokenLogprobs {
  at::Tensor logprobs_N;  // fp32: ln p(target) under softmax(logits / temperature).
  at::Tensor entropy_N;   // fp32, of the same distribution; undefined unless asked for.
};
// Log-probability of target n given hidden row n, logits = hidden · headᵀ in cd, softmax in fp32.
// The [N, V] logits are walked in chunks of rows and never kept: backward computes them again.
TokenLogprobs token_logprobs(const at::Tensor& hidden_ND, const ParamPtr& head_VD,
                             const at::Tensor& targets_N, double temperature, bool want_entropy);

// ---- sample.cc
// ---------------------------------------------------------------------------------------

// One row a sequence, everything on the device: the loop needs no host round trip to go on.
struct SamplingParams {
  at::Tensor temperature_B;  // fp32; 0: greedy (lowest id wins a tie).
  at::Tensor top_k_B;        // int32; 0: off.
  at::Tensor top_p_B;        // fp32; 1: off.
  at::Tensor min_p_B;    // fp32; 0: off. Relative to the most likely token, after the temperature.
  at::Tensor seed_B;     // int64: the sample's seed.
  at::Tensor counter_B;  // int64: index of the token in its sequence. (seed, counter) alone decide
                         // the draw.
};
struct Sampled {
  at::Tensor tokens_B;             // int64.
  at::Tensor logprobs_B;           // fp32, temperature 1, no filter.
  at::Tensor sampling_logprobs_B;  // fp32, of the distribution drawn from. Greedy: 0.
  at::Tensor tempered_logprobs_B;  // fp32, temperature only (what a trainer can reproduce). Greedy:
                                   // as logprobs.
};
Sampled sample(const at::Tensor& logits_BV, const SamplingParams& params);

// ---- optim.cc
// ----------------------------------------------------------------------------------------

struct AdamW {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0;
  int64_t step = 1;       // From 1, for bias correction.
  double grad_scale = 1;  // Multiplies the gradient first (clipping).
};
// In place: master (fp32), m, v; and `value`, the compute copy of master (may be the same tensor).
void adamw_step(at::Tensor& master, at::Tensor& value, const at::Tensor& grad, at::Tensor& m,
                at::Tensor& v, const AdamW& options);
// Sum of squares of a gradient in double, in a fixed order; a scalar fp64 tensor on the device.
at::Tensor sum_of_squares(const at::Tensor& grad);

// ---- logits
// ------------------------------------------------------------------------------------------

// hidden · headᵀ in fp32 for sampling: the same numbers that token_logprobs sees before its
// softmax.
at::Tensor logits(const at::Tensor& hidden_BD, const ParamPtr& head_VD);

}  // namespace quadrille::tensor
