#include <ATen/Parallel.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/softmax.h>

#include <algorithm>
#include <numeric>

#include "tensor/ops.h"
#include "tensor/testing.h"

namespace quadrille::tensor {
namespace {

using testing::finite_difference;
using testing::normal;
using testing::same_bits;

at::Tensor ints(const std::vector<int32_t>& values) {
  return at::from_blob(const_cast<int32_t*>(values.data()), {static_cast<int64_t>(values.size())},
                       at::kInt)
      .clone();
}
at::Tensor longs(const std::vector<int64_t>& values) {
  return at::from_blob(const_cast<int64_t*>(values.data()), {static_cast<int64_t>(values.size())},
                       at::kLong)
      .clone();
}
at::Tensor bounds(const std::vector<int64_t>& lengths) {
  std::vector<int32_t> cu = {0};
  for (const int64_t n : lengths) cu.push_back(cu.back() + static_cast<int32_t>(n));
  return ints(cu);
}

// Sequence by sequence, the whole score matrix, in the dtype of q.
at::Tensor oracle(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                  const std::vector<int64_t>& lengths, const AttentionSpec& spec) {
  const int64_t group = q.size(1) / k.size(1);
  std::vector<at::Tensor> parts = {at::empty({0, q.size(1), v.size(2)}, q.options())};
  int64_t first = 0;
  for (const int64_t n : lengths) {
    const at::Tensor qs = q.narrow(0, first, n).transpose(0, 1);
    const at::Tensor ks = k.narrow(0, first, n).transpose(0, 1).repeat_interleave(group, 0);
    const at::Tensor vs = v.narrow(0, first, n).transpose(0, 1).repeat_interleave(group, 0);
    const at::Tensor distance = at::arange(n).unsqueeze(1) - at::arange(n).unsqueeze(0);
    at::Tensor hidden = distance < 0;
    if (spec.window > 0) hidden = hidden.logical_or(distance >= spec.window);
    const at::Tensor scores =
        (at::bmm(qs, ks.transpose(1, 2)) * spec.scale).masked_fill(hidden, -INFINITY);
    parts.push_back(at::bmm(at::softmax(scores, -1), vs).transpose(0, 1));
    first += n;
  }
  return at::cat(parts);
}

struct Case {
  int64_t heads, kv_heads, d, e, window;
  std::vector<int64_t> lengths;
};
void PrintTo(const Case& c, std::ostream* out) {
  *out << c.heads << " heads, " << c.kv_heads << " kv, d " << c.d << ", e " << c.e << ", window "
       << c.window;
  for (const int64_t n : c.lengths) *out << (n == c.lengths.front() ? ", lengths " : " ") << n;
}

class Attention : public ::testing::TestWithParam<Case> {
 protected:
  struct Inputs {
    at::Tensor q, k, v, dout, cu;
    int64_t tokens, longest;
    AttentionSpec spec;
  };
  static Inputs inputs(Rng& rng, at::ScalarType dtype = at::kFloat) {
    const Case& c = GetParam();
    Inputs in;
    in.tokens = std::accumulate(c.lengths.begin(), c.lengths.end(), int64_t{0});
    in.longest = c.lengths.empty() ? 0 : *std::max_element(c.lengths.begin(), c.lengths.end());
    in.spec = {1.0 / std::sqrt(static_cast<double>(c.d)), c.window};
    in.q = normal(rng, {in.tokens, c.heads, c.d}, 1.5).to(dtype);
    in.k = normal(rng, {in.tokens, c.kv_heads, c.d}, 1.5).to(dtype);
    in.v = normal(rng, {in.tokens, c.kv_heads, c.e}).to(dtype);
    in.dout = normal(rng, {in.tokens, c.heads, c.e}).to(dtype);
    in.cu = bounds(c.lengths);
    return in;
  }
  static at::Tensor packed(const Inputs& in) {
    return attention_packed(in.q, in.k, in.v, in.cu, in.longest, in.spec);
  }
};

TEST_P(Attention, PackedAgreesWithDouble) {
  Rng rng(201);
  Inputs in = inputs(rng);
  const at::Tensor out = packed(in);
  const at::Tensor want = oracle(in.q.to(at::kDouble), in.k.to(at::kDouble), in.v.to(at::kDouble),
                                 GetParam().lengths, in.spec);
  EXPECT_TENSOR_NEAR(out, want, 1e-5, 3e-6);
}

TEST_P(Attention, GradientsAgreeWithAutogradInDouble) {
  Rng rng(202);
  Inputs in = inputs(rng);
  const at::Tensor q = in.q.to(at::kDouble).requires_grad_(true);
  const at::Tensor k = in.k.to(at::kDouble).requires_grad_(true);
  const at::Tensor v = in.v.to(at::kDouble).requires_grad_(true);
  for (at::Tensor* x : {&in.q, &in.k, &in.v}) x->requires_grad_(true);
  packed(in).backward(in.dout);
  if (in.tokens == 0) return;
  oracle(q, k, v, GetParam().lengths, in.spec).backward(in.dout.to(at::kDouble));
  EXPECT_TENSOR_NEAR(in.q.grad(), q.grad(), 2e-5, 1e-5);
  EXPECT_TENSOR_NEAR(in.k.grad(), k.grad(), 2e-5, 1e-5);
  EXPECT_TENSOR_NEAR(in.v.grad(), v.grad(), 2e-5, 1e-5);
}

// Prefill in random pieces over shuffled pages, then one token at a time: the same bits as packed,
// in both dtypes.
TEST_P(Attention, PagedHasTheBitsOfPacked) {
  const Case& c = GetParam();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    Rng rng(203);
    const Inputs in = inputs(rng, dtype);
    const at::Tensor want = packed(in);
    const auto sequences = static_cast<int64_t>(c.lengths.size());
    const int64_t width = (in.longest + kPageTokens - 1) / kPageTokens + 1;
    const int64_t pages = sequences * width + 3;
    KvCache cache = make_kv_cache({2, c.kv_heads, c.d, c.e}, pages, dtype, at::kCPU);
    for (at::Tensor& x : cache.keys) x.fill_(NAN);  // What nobody wrote must not be read.
    for (at::Tensor& x : cache.values) x.fill_(NAN);
    std::vector<int32_t> free(pages);
    std::iota(free.begin(), free.end(), 0);
    for (size_t i = free.size(); i > 1; --i) std::swap(free[i - 1], free[rng.below(i)]);
    std::vector<int32_t> table(sequences * width);
    for (size_t i = 0; i < table.size(); ++i) table[i] = free[i];

    std::vector<int64_t> done(sequences, 0);
    for (int round = 0; round < 1000; ++round) {
      std::vector<int64_t> rows, slots, counts;
      std::vector<int32_t> context, chosen;
      int64_t first = 0;
      for (int64_t s = 0; s < sequences; ++s) {
        const int64_t left = c.lengths[s] - done[s];
        const int64_t limit = rng.below(2) == 0 ? 1 : 20;
        const int64_t n = std::min<int64_t>(left, 1 + static_cast<int64_t>(rng.below(limit)));
        if (n > 0 && rng.below(4) != 0) {
          for (int64_t t = done[s]; t < done[s] + n; ++t) {
            rows.push_back(first + t);
            slots.push_back(table[s * width + t / kPageTokens] * kPageTokens + t % kPageTokens);
          }
          done[s] += n;
          counts.push_back(n);
          context.push_back(static_cast<int32_t>(done[s]));
          chosen.insert(chosen.end(), table.begin() + s * width, table.begin() + (s + 1) * width);
        }
        first += c.lengths[s];
      }
      const at::Tensor at_rows = longs(rows);
      kv_write(cache, 1, in.k.index_select(0, at_rows), in.v.index_select(0, at_rows),
               longs(slots));
      const at::Tensor got = attention_paged(
          in.q.index_select(0, at_rows), cache, 1, bounds(counts),
          ints(chosen).view({static_cast<int64_t>(counts.size()), width}), ints(context), in.spec);
      ASSERT_TRUE(same_bits(got, want.index_select(0, at_rows)))
          << "round " << round << ", seed 203";
      if (done == c.lengths) break;
    }
    EXPECT_EQ(done, c.lengths);
  }
}

TEST_P(Attention, ThreadsAndOtherSequencesDoNotMatter) {
  Rng rng(204);
  Inputs in = inputs(rng);
  for (at::Tensor* x : {&in.q, &in.k, &in.v}) x->requires_grad_(true);
  const int before = at::get_num_threads();
  std::vector<at::Tensor> first;
  for (const int threads : {1, 2}) {
    at::set_num_threads(threads);
    for (at::Tensor* x : {&in.q, &in.k, &in.v}) x->mutable_grad() = at::Tensor();
    const at::Tensor out = packed(in);
    out.backward(in.dout);
    const std::vector<at::Tensor> all = {out, in.q.grad(), in.k.grad(), in.v.grad()};
    if (first.empty()) first = all;
    for (size_t i = 0; i < all.size(); ++i) EXPECT_TRUE(same_bits(first[i], all[i])) << i;
  }
  at::set_num_threads(before);
  // Each sequence alone.
  int64_t at = 0;
  for (const int64_t n : GetParam().lengths) {
    std::vector<at::Tensor> x;
    for (const at::Tensor* t : {&in.q, &in.k, &in.v}) {
      x.push_back(t->detach().narrow(0, at, n).clone().requires_grad_(true));
    }
    const at::Tensor out = attention_packed(x[0], x[1], x[2], bounds({n}), n, in.spec);
    out.backward(in.dout.narrow(0, at, n));
    EXPECT_TRUE(same_bits(out, first[0].narrow(0, at, n)));
    for (int i = 0; i < 3 && n > 0; ++i)
      EXPECT_TRUE(same_bits(x[i].grad(), first[i + 1].narrow(0, at, n))) << i;
    at += n;
  }
}

TEST_P(Attention, Bf16StaysNearDouble) {
  Rng rng(205);
  Inputs in = inputs(rng, at::kBFloat16);
  const at::Tensor q = in.q.to(at::kDouble).requires_grad_(true);
  const at::Tensor k = in.k.to(at::kDouble).requires_grad_(true);
  const at::Tensor v = in.v.to(at::kDouble).requires_grad_(true);
  for (at::Tensor* x : {&in.q, &in.k, &in.v}) x->requires_grad_(true);
  const at::Tensor out = packed(in);
  const at::Tensor want = oracle(q, k, v, GetParam().lengths, in.spec);
  EXPECT_TENSOR_NEAR(out, want, 1.0 / 200, 1e-3);
  if (in.tokens == 0) return;
  out.backward(in.dout);
  want.backward(in.dout.to(at::kDouble));
  EXPECT_TENSOR_NEAR(in.q.grad(), q.grad(), 1.0 / 50, 0.04);
  EXPECT_TENSOR_NEAR(in.k.grad(), k.grad(), 1.0 / 50, 0.04);
  EXPECT_TENSOR_NEAR(in.v.grad(), v.grad(), 1.0 / 100, 0.01);
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, Attention,
    ::testing::Values(Case{1, 1, 8, 8, 0, {1}}, Case{4, 2, 32, 32, 0, {70, 1, 16, 33}},
                      Case{4, 1, 24, 40, 0, {17, 15}}, Case{3, 1, 10, 7, 0, {5, 0, 31}},
                      Case{2, 2, 64, 64, 0, {65}}, Case{6, 2, 80, 72, 0, {19, 48}},
                      Case{4, 2, 32, 32, 1, {40, 3}}, Case{4, 1, 16, 16, 5, {37, 64}},
                      Case{2, 1, 33, 17, 20, {70, 21}}, Case{2, 2, 16, 48, 16, {50}},
                      Case{4, 2, 32, 32, 0, {}}, Case{9, 3, 64, 64, 0, {150}},
                      Case{2, 1, 8, 8, 0, {300}}));

TEST(AttentionGradient, FiniteDifferences) {
  Rng rng(206);
  for (const int64_t window : {0, 3}) {
    const std::vector<int64_t> lengths = {6, 3};
    const AttentionSpec spec{0.4, window};
    at::Tensor q = normal(rng, {9, 4, 5}).requires_grad_(true);
    at::Tensor k = normal(rng, {9, 2, 5}).requires_grad_(true);
    at::Tensor v = normal(rng, {9, 2, 6}).requires_grad_(true);
    const at::Tensor dout = normal(rng, {9, 4, 6});
    attention_packed(q, k, v, bounds(lengths), 6, spec).backward(dout);
    std::vector<at::Tensor> x = {q.detach().to(at::kDouble), k.detach().to(at::kDouble),
                                 v.detach().to(at::kDouble)};
    const std::vector<at::Tensor> grads = {q.grad(), k.grad(), v.grad()};
    for (int i = 0; i < 3; ++i) {
      EXPECT_TENSOR_NEAR(
          grads[i],
          finite_difference(x[i],
                            [&](const at::Tensor& moved) {
                              auto at_x = x;
                              at_x[i] = moved;
                              return (oracle(at_x[0], at_x[1], at_x[2], lengths, spec) * dout)
                                  .sum()
                                  .item<double>();
                            }),
          1e-4, 1e-5);
    }
  }
}

// Scores far apart: no overflow, no NaN, and the row still sums to one.
TEST(AttentionRange, LargeScores) {
  Rng rng(207);
  at::Tensor q = normal(rng, {40, 1, 16}, 200.0).requires_grad_(true);
  at::Tensor k = normal(rng, {40, 1, 16}, 200.0).requires_grad_(true);
  at::Tensor v = at::empty({40, 1, 16}, at::kFloat).fill_(1.0);
  v.requires_grad_(true);
  const at::Tensor out = attention_packed(q, k, v, bounds({40}), 40, {1.0, 0});
  EXPECT_TENSOR_NEAR(out, v, 1e-6, 0);
  out.sum().backward();
  EXPECT_TRUE(q.grad().isfinite().all().item<bool>());
  EXPECT_TRUE(k.grad().isfinite().all().item<bool>());
}

TEST(KvCacheTest, CopiesWholePagesOfAllLayers) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    Rng rng(208);
    const KvShape shape{3, 2, 24, 40};
    KvCache cache = make_kv_cache(shape, 5, dtype, at::kCPU);
    int64_t bytes = 0;
    for (const auto* tensors : {&cache.keys, &cache.values}) {
      for (const at::Tensor& x : *tensors) bytes += static_cast<int64_t>(x.nbytes());
    }
    EXPECT_EQ(bytes, 5 * kv_page_bytes(shape, dtype));
    for (int64_t layer = 0; layer < 3; ++layer) {
      kv_write(cache, layer, normal(rng, {80, 2, 24}).to(dtype), normal(rng, {80, 2, 40}).to(dtype),
               at::arange(80, at::kLong));
    }
    const KvCache old{shape, 5, {cache.keys[2].clone()}, {cache.values[0].clone()}};
    copy_pages(cache, longs({1, 4}), longs({0, 3}));
    const at::Tensor now = longs({1, 1, 2, 4, 4});
    EXPECT_TRUE(same_bits(cache.keys[2], old.keys[0].index_select(0, now)));
    EXPECT_TRUE(same_bits(cache.values[0], old.values[0].index_select(0, now)));
  }
}

}  // namespace
}  // namespace quadrille::tensor
