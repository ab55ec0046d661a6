// Log-probabilities and entropies of chosen tokens, without keeping [N, V] of anything large.
//
// Rows go to threads in blocks; a block's logits are made, reduced and forgotten. Small ones are
// kept for backward, which turns them into gradients in place; large ones are made again, chunk by
// chunk.
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "base/error.h"
#include "tensor/autograd.h"
#include "tensor/cpu/packed.h"
#include "tensor/cpu/pointwise.h"
#include "tensor/cpu/tensors.h"
#include "tensor/ops.h"
#include "tensor/threads.h"

namespace quadrille::tensor {
namespace {

using cpu::Block;
using cpu::Gemm;
using cpu::Phase;
using cpu::Type;

constexpr int64_t kKept = int64_t{4} << 20;    // Logits kept from forward to backward: 16 MiB.
constexpr int64_t kChunk = int64_t{32} << 20;  // Logits alive at once in backward: 128 MiB.
constexpr int64_t kBlockRows = 56;  // A thread's share; small, for there may be many columns.

struct Head {
  int64_t rows = 0;
  int64_t hidden = 0;
  int64_t vocabulary = 0;
  Type type = Type::kFp32;
  float temperature = 1;

  double flops(int64_t of_rows) const {
    return 2.0 * static_cast<double>(of_rows) * static_cast<double>(hidden * vocabulary);
  }
};

// Logits of rows begin .. end into z [end - begin, V], on the calling thread.
void make_logits(const Head& s, const at::Tensor& hidden_ND, const cpu::PackedWeight& head,
                 int64_t begin, int64_t end, float* z) {
  Gemm g{.m = end - begin, .n = s.vocabulary, .k = s.hidden, .compute = s.type};
  g.a = static_cast<const char*>(hidden_ND.const_data_ptr()) +
        begin * s.hidden * hidden_ND.element_size();
  g.a_type = s.type;
  g.a_row = s.hidden;
  g.b = head.matrix(0);
  g.b_packed = true;
  g.c = z;
  g.c_row = s.vocabulary;
  g.round_to_bf16 = s.type == Type::kBf16;
  for (const Block& block : cpu::plan(std::span(&g, 1), 1)) cpu::run_block(g, block);
}

// body(begin, end) over blocks of rows `from` .. `to`.
Phase by_rows(int64_t from, int64_t to, std::function<void(int64_t, int64_t)> body) {
  return {(to - from + kBlockRows - 1) / kBlockRows, [=, body = std::move(body)](int64_t i) {
            const int64_t begin = from + i * kBlockRows;
            body(begin, std::min(to, begin + kBlockRows));
          }};
}

struct Kept {
  at::Tensor normalizer_N;  // fp64: log of the sum of exp(z / temperature).
  at::Tensor entropy_N;     // fp32, or undefined.
  at::Tensor logits_NV;     // Undefined: too large.
};

TokenLogprobs forward(const Head& s, const at::Tensor& hidden_ND, Param& head_VD,
                      const at::Tensor& targets_N, bool want_entropy, Kept* kept) {
  const auto head = cpu::packed(head_VD, s.vocabulary, s.type, threads());
  TokenLogprobs result;
  result.logprobs_N = cpu::empty({s.rows}, at::kFloat);
  if (want_entropy) result.entropy_N = cpu::empty({s.rows}, at::kFloat);
  if (kept != nullptr) {
    kept->normalizer_N = cpu::empty({s.rows}, at::kDouble);
    if (s.rows * s.vocabulary <= kKept) {
      kept->logits_NV = cpu::empty({s.rows, s.vocabulary}, at::kFloat);
    }
  }
  const auto* targets = targets_N.const_data_ptr<int64_t>();
  auto* logprobs = result.logprobs_N.mutable_data_ptr<float>();
  auto* entropy = want_entropy ? result.entropy_N.mutable_data_ptr<float>() : nullptr;
  auto* normalizer = kept == nullptr ? nullptr : kept->normalizer_N.mutable_data_ptr<double>();
  float* all = nullptr;
  if (kept != nullptr && kept->logits_NV.defined()) {
    all = kept->logits_NV.mutable_data_ptr<float>();
  }
  const Phase phase = by_rows(0, s.rows, [&](int64_t begin, int64_t end) {
    std::unique_ptr<float[]> own;
    if (all == nullptr) {
      own = std::make_unique_for_overwrite<float[]>(
          static_cast<size_t>((end - begin) * s.vocabulary));
    }
    float* z = all == nullptr ? own.get() : all + begin * s.vocabulary;
    make_logits(s, hidden_ND, *head, begin, end, z);
    for (int64_t n = begin; n < end; ++n, z += s.vocabulary) {
      const cpu::RowSoftmax stats =
          cpu::pointwise_kernels().softmax_stats(z, s.vocabulary, s.temperature, want_entropy);
      const double scaled = static_cast<double>(z[targets[n]] / s.temperature);
      logprobs[n] = static_cast<float>(scaled - stats.largest - stats.log_sum);
      if (entropy != nullptr) entropy[n] = static_cast<float>(stats.entropy);
      if (normalizer != nullptr) normalizer[n] = stats.largest + stats.log_sum;
    }
  });
  cpu::run_phases(std::span(&phase, 1), cpu::threads_for(s.flops(s.rows), threads()));
  if (kept != nullptr && want_entropy) kept->entropy_N = result.entropy_N.detach();
  return result;
}

at::Tensor backward(const Head& s, const at::Tensor& hidden_ND, Param& head_VD,
                    const at::Tensor& targets_N, const Kept& kept, const at::Tensor& d_logprobs_N,
                    const at::Tensor& d_entropy_N, bool needs_dx) {
  const auto head = cpu::packed(head_VD, s.vocabulary, s.type, threads());
  const auto* targets = targets_N.const_data_ptr<int64_t>();
  const auto* normalizer = kept.normalizer_N.const_data_ptr<double>();
  const auto read = [](const at::Tensor& t, int64_t n) {
    return t.defined() ? t.const_data_ptr<float>()[n] : 0.0F;
  };
  at::Tensor dx_ND;
  if (needs_dx) dx_ND = cpu::empty({s.rows, s.hidden}, hidden_ND.scalar_type());

  const bool in_place = kept.logits_NV.defined();
  const int64_t chunk = in_place ? s.rows : std::max<int64_t>(kBlockRows, kChunk / s.vocabulary);
  at::Tensor chunk_NV = kept.logits_NV;
  if (!in_place) chunk_NV = cpu::empty({std::min(chunk, s.rows), s.vocabulary}, at::kFloat);
  auto* dz = chunk_NV.mutable_data_ptr<float>();
  // Gradients take the place of logits; in bf16 they fill the first half of each row.
  const int64_t dz_row = s.type == Type::kFp32 ? s.vocabulary : 2 * s.vocabulary;

  for (int64_t from = 0; from < s.rows; from += chunk) {
    const int64_t to = std::min(s.rows, from + chunk);
    std::vector<Gemm> products;
    if (needs_dx) {
      Gemm g{.m = to - from, .n = s.hidden, .k = s.vocabulary, .compute = s.type};
      g.a = dz;
      g.a_type = s.type;
      g.a_row = dz_row;
      g.b = head_VD.value.const_data_ptr();
      g.b_type = s.type;
      g.b_row = s.hidden;
      g.c = static_cast<char*>(dx_ND.data_ptr()) + from * s.hidden * dx_ND.element_size();
      g.c_type = s.type;
      g.c_row = s.hidden;
      products.push_back(g);
    }
    if (head_VD.grad.defined()) {
      Gemm g{.m = s.vocabulary, .n = s.hidden, .k = to - from, .compute = s.type};
      g.a = dz;
      g.a_type = s.type;
      g.a_row = 1;
      g.a_col = dz_row;
      g.b = static_cast<const char*>(hidden_ND.const_data_ptr()) +
            from * s.hidden * hidden_ND.element_size();
      g.b_type = s.type;
      g.b_row = s.hidden;
      g.c = head_VD.grad.mutable_data_ptr<float>();
      g.c_row = s.hidden;
      g.accumulate = true;
      products.push_back(g);
    }
    const int team = cpu::threads_for(2 * s.flops(to - from), threads());
    const std::vector<Block> blocks = cpu::plan(products, team);
    const Phase phases[] = {
        by_rows(from, to,
                [&](int64_t begin, int64_t end) {
                  float* z = dz + (begin - from) * s.vocabulary;
                  if (!in_place) make_logits(s, hidden_ND, *head, begin, end, z);
                  for (int64_t n = begin; n < end; ++n, z += s.vocabulary) {
                    cpu::SoftmaxBackward row;
                    row.temperature = s.temperature;
                    row.log_normalizer = normalizer[n];
                    row.d_logprob = read(d_logprobs_N, n);
                    row.d_entropy = read(d_entropy_N, n);
                    row.entropy = read(kept.entropy_N, n);
                    row.target = targets[n];
                    cpu::pointwise_kernels().softmax_backward(z, z, s.type, s.vocabulary, row);
                  }
                }),
        {static_cast<int64_t>(blocks.size()),
         [&](int64_t i) {
           const Block& block = blocks[static_cast<size_t>(i)];
           cpu::run_block(products[static_cast<size_t>(block.problem)], block);
         }},
    };
    cpu::run_phases(phases, team);
  }
  return dx_ND;
}

}  // namespace

TokenLogprobs token_logprobs(const at::Tensor& hidden_ND, const ParamPtr& head_VD,
                             const at::Tensor& targets_N, double temperature, bool want_entropy) {
  QD_CHECK(temperature > 0, "temperature {}", temperature);
  const at::Tensor hidden = cpu::plain(hidden_ND);
  const at::Tensor targets = cpu::plain(targets_N);
  Head shape;
  shape.rows = hidden.size(0);
  shape.hidden = hidden.size(1);
  shape.vocabulary = head_VD->value.size(0);
  shape.type = cpu::type_of(hidden);
  shape.temperature = static_cast<float>(temperature);
  QD_CHECK(targets.numel() == shape.rows && head_VD->value.size(1) == shape.hidden,
           "hidden [{}, {}], {} targets, head [{}, {}]", shape.rows, shape.hidden, targets.numel(),
           shape.vocabulary, head_VD->value.size(1));
  const auto* ids = targets.const_data_ptr<int64_t>();
  for (int64_t n = 0; n < shape.rows; ++n) {
    QD_CHECK(ids[n] >= 0 && ids[n] < shape.vocabulary, "target {} of row {}, vocabulary {}", ids[n],
             n, shape.vocabulary);
  }
  const bool differentiable = wants_node({hidden_ND}, {head_VD});
  Kept kept;
  TokenLogprobs result =
      forward(shape, hidden, *head_VD, targets, want_entropy, differentiable ? &kept : nullptr);
  if (differentiable) {
    const bool needs_dx = hidden_ND.requires_grad();
    record("token_logprobs", {hidden_ND}, {result.logprobs_N, result.entropy_N},
           [=](const auto& grads) {
             const auto given = [](const at::Tensor& grad) {
               return grad.defined() ? cpu::plain(grad) : grad;
             };
             return std::vector<at::Tensor>{backward(shape, hidden, *head_VD, targets, kept,
                                                     given(grads[0]), given(grads[1]), needs_dx)};
           });
  }
  return result;
}

}  // namespace quadrille::tensor
