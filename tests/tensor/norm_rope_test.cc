#include <ATen/Parallel.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/stack.h>

#include "tensor/ops.h"
#include "tensor/testing.h"

namespace quadrille::tensor {
namespace {

using testing::finite_difference;
using testing::normal;
using testing::param;
using testing::same_bits;

constexpr double kEps = 1e-5;

// In the dtype of x for the last product, as models.md writes it; in double everything is double.
at::Tensor norm_oracle(const at::Tensor& x, const at::Tensor& weight) {
  const at::Tensor u = x.scalar_type() == at::kDouble ? x : x.to(at::kFloat);
  return weight * (u * (u * u).mean(-1, true).add(kEps).rsqrt()).to(x.scalar_type());
}

RopeTable rope_table(int64_t positions, int64_t dim, bool interleaved) {
  const at::Tensor inverse = at::arange(0, dim, 2, at::kDouble).mul(-std::log(10000.0) / dim).exp();
  const at::Tensor angle = at::outer(at::arange(positions, at::kDouble), inverse);
  return {angle.cos().to(at::kFloat), angle.sin().to(at::kFloat), interleaved};
}

at::Tensor rope_oracle(const at::Tensor& x, const RopeTable& rope, const at::Tensor& positions) {
  const int64_t half = x.size(-1) / 2;
  const at::Tensor cos = rope.cos.to(x.scalar_type()).index_select(0, positions).unsqueeze(1);
  const at::Tensor sin = rope.sin.to(x.scalar_type()).index_select(0, positions).unsqueeze(1);
  const at::Tensor a = rope.interleaved ? x.slice(-1, 0, {}, 2) : x.narrow(-1, 0, half);
  const at::Tensor b = rope.interleaved ? x.slice(-1, 1, {}, 2) : x.narrow(-1, half, half);
  return at::cat({a * cos - b * sin, b * cos + a * sin}, -1);
}

Qkv qkv_oracle(const at::Tensor& qkv, const QkvSpec& spec, const at::Tensor& q_weight,
               const at::Tensor& k_weight, const RopeTable& rope, const at::Tensor& positions) {
  const int64_t d = spec.head_dim;
  const int64_t tokens = qkv.size(0);
  at::Tensor q = qkv.narrow(1, 0, spec.heads * d);
  at::Tensor k = qkv.narrow(1, spec.heads * d, spec.kv_heads * d);
  at::Tensor v = qkv.narrow(1, (spec.heads + spec.kv_heads) * d, spec.kv_heads * d);
  if (spec.norm == QkNorm::kWhole) {
    q = norm_oracle(q, q_weight);
    k = norm_oracle(k, k_weight);
  }
  q = q.reshape({tokens, spec.heads, d});
  k = k.reshape({tokens, spec.kv_heads, d});
  v = v.reshape({tokens, spec.kv_heads, d});
  if (spec.norm == QkNorm::kPerHead) {
    q = norm_oracle(q, q_weight);
    k = norm_oracle(k, k_weight);
  }
  if (spec.clip > 0) {
    q = q.clamp(-spec.clip, spec.clip);
    k = k.clamp(-spec.clip, spec.clip);
    v = v.clamp(-spec.clip, spec.clip);
  }
  return {rope_oracle(q, rope, positions), rope_oracle(k, rope, positions), v};
}

TEST(NormRope, RmsNormAgreesWithDoubleAndItsGradientWithDifferences) {
  Rng rng(101);
  for (const int64_t cols : {1, 7, 16, 33, 80, 128}) {
    for (const int64_t rows : {0, 1, 5}) {
      SCOPED_TRACE(::testing::Message() << rows << " x " << cols << ", seed 101");
      at::Tensor x = normal(rng, {rows, cols}, 2.0);
      const ParamPtr w = param(normal(rng, {cols}));
      const at::Tensor dy = normal(rng, {rows, cols});
      x.requires_grad_(true);
      const at::Tensor y = rms_norm(x, w, kEps);
      EXPECT_TENSOR_NEAR(y, norm_oracle(x.detach().to(at::kDouble), w->value.to(at::kDouble)), 2e-6,
                         1e-6);
      if (rows == 0) continue;
      y.backward(dy);
      const at::Tensor wd = w->value.to(at::kDouble);
      const at::Tensor xd = x.detach().to(at::kDouble);
      EXPECT_TENSOR_NEAR(
          x.grad(),
          finite_difference(xd,
                            [&](const at::Tensor& at_x) {
                              return (norm_oracle(at_x, wd) * dy).sum().item<double>();
                            }),
          1e-4, 1e-5);
      EXPECT_TENSOR_NEAR(
          w->grad,
          finite_difference(wd,
                            [&](const at::Tensor& at_w) {
                              return (norm_oracle(xd, at_w) * dy).sum().item<double>();
                            }),
          1e-4, 1e-5);
    }
  }
}

TEST(NormRope, AddRmsNormIsTheSumAndItsNorm) {
  Rng rng(102);
  for (const int64_t cols : {5, 48, 130}) {
    at::Tensor x = normal(rng, {9, cols});
    at::Tensor residual = normal(rng, {9, cols});
    const ParamPtr w = param(normal(rng, {cols}));
    const ParamPtr w2 = param(w->value);
    at::Tensor sum = (x + residual).detach();
    const at::Tensor dsum = normal(rng, {9, cols});
    const at::Tensor dy = normal(rng, {9, cols});
    x.requires_grad_(true);
    residual.requires_grad_(true);
    sum.requires_grad_(true);
    const auto [s, y] = add_rms_norm(x, residual, w, kEps);
    const at::Tensor y2 = rms_norm(sum, w2, kEps);
    EXPECT_TRUE(same_bits(s, sum));
    EXPECT_TRUE(same_bits(y, y2));
    ((s * dsum).sum() + (y * dy).sum()).backward();
    ((sum * dsum).sum() + (y2 * dy).sum()).backward();
    EXPECT_TENSOR_NEAR(x.grad(), sum.grad(), 1e-5, 1e-6);
    EXPECT_TRUE(same_bits(x.grad(), residual.grad()));
    EXPECT_TRUE(same_bits(w->grad, w2->grad));

    // One output unused.
    at::Tensor z = x.detach().clone().requires_grad_(true);
    (add_rms_norm(z, residual.detach(), w, kEps).first * dsum).sum().backward();
    EXPECT_TRUE(same_bits(z.grad(), dsum));
    at::Tensor u = x.detach().clone().requires_grad_(true);
    (add_rms_norm(u, residual.detach(), w, kEps).second * dy).sum().backward();
    EXPECT_TENSOR_NEAR(u.grad(), sum.grad() - dsum, 1e-4, 1e-5);
  }
}

TEST(NormRope, NoNodeWithoutNeed) {
  Rng rng(103);
  const at::Tensor x = normal(rng, {2, 8});
  EXPECT_FALSE(rms_norm(x, param(normal(rng, {8}), false), kEps).requires_grad());
  EXPECT_TRUE(rms_norm(x, param(normal(rng, {8})), kEps).requires_grad());
  at::NoGradGuard no_grad;
  EXPECT_FALSE(rms_norm(x, param(normal(rng, {8})), kEps).requires_grad());
}

struct QkvCase {
  int64_t tokens, heads, kv_heads, head_dim;
  QkNorm norm;
  double clip;
  bool interleaved;
};

class PrepareQkv : public ::testing::TestWithParam<QkvCase> {};

TEST_P(PrepareQkv, AgreesWithDoubleAndDifferences) {
  const QkvCase c = GetParam();
  Rng rng(104);
  QkvSpec spec{c.heads, c.kv_heads, c.head_dim, c.norm, nullptr, nullptr, kEps, c.clip};
  const bool whole = c.norm == QkNorm::kWhole;
  if (c.norm != QkNorm::kNone) {
    spec.q_norm = param(normal(rng, {c.head_dim * (whole ? c.heads : 1)}));
    spec.k_norm = param(normal(rng, {c.head_dim * (whole ? c.kv_heads : 1)}));
  }
  const RopeTable rope = rope_table(50, c.head_dim, c.interleaved);
  at::Tensor positions = at::empty({c.tokens}, at::kLong);
  for (int64_t t = 0; t < c.tokens; ++t)
    positions.data_ptr<int64_t>()[t] = static_cast<int64_t>(rng.below(50));
  at::Tensor qkv = normal(rng, {c.tokens, (c.heads + 2 * c.kv_heads) * c.head_dim});
  const at::Tensor dq = normal(rng, {c.tokens, c.heads, c.head_dim});
  const at::Tensor dk = normal(rng, {c.tokens, c.kv_heads, c.head_dim});
  const at::Tensor dv = normal(rng, {c.tokens, c.kv_heads, c.head_dim});
  const auto wide = [](const ParamPtr& p) { return p ? p->value.to(at::kDouble) : at::Tensor(); };
  const at::Tensor x = qkv.to(at::kDouble);

  qkv.requires_grad_(true);
  const Qkv got = prepare_qkv(qkv, spec, rope, positions);
  const Qkv want = qkv_oracle(x, spec, wide(spec.q_norm), wide(spec.k_norm), rope, positions);
  EXPECT_TENSOR_NEAR(got.q_THd, want.q_THd, 1e-5, 2e-6);
  EXPECT_TENSOR_NEAR(got.k_TGd, want.k_TGd, 1e-5, 2e-6);
  EXPECT_TENSOR_NEAR(got.v_TGd, want.v_TGd, 1e-5, 2e-6);
  if (c.tokens == 0) return;

  ((got.q_THd * dq).sum() + (got.k_TGd * dk).sum() + (got.v_TGd * dv).sum()).backward();
  const auto loss = [&](const at::Tensor& at_x, const at::Tensor& q_weight,
                        const at::Tensor& k_weight) {
    const Qkv out = qkv_oracle(at_x, spec, q_weight, k_weight, rope, positions);
    return ((out.q_THd * dq).sum() + (out.k_TGd * dk).sum() + (out.v_TGd * dv).sum())
        .item<double>();
  };
  EXPECT_TENSOR_NEAR(qkv.grad(),
                     finite_difference(x,
                                       [&](const at::Tensor& at_x) {
                                         return loss(at_x, wide(spec.q_norm), wide(spec.k_norm));
                                       }),
                     2e-4, 2e-5);
  if (c.norm != QkNorm::kNone) {
    EXPECT_TENSOR_NEAR(
        spec.q_norm->grad,
        finite_difference(wide(spec.q_norm),
                          [&](const at::Tensor& w) { return loss(x, w, wide(spec.k_norm)); }),
        2e-4, 2e-5);
    EXPECT_TENSOR_NEAR(
        spec.k_norm->grad,
        finite_difference(wide(spec.k_norm),
                          [&](const at::Tensor& w) { return loss(x, wide(spec.q_norm), w); }),
        2e-4, 2e-5);
  }

  // An output that nobody uses has no gradient at all.
  at::Tensor again = qkv.detach().clone().requires_grad_(true);
  (prepare_qkv(again, spec, rope, positions).k_TGd * dk).sum().backward();
  const int64_t q_cols = c.heads * c.head_dim;
  const int64_t k_cols = c.kv_heads * c.head_dim;
  EXPECT_TRUE(
      same_bits(again.grad().narrow(1, q_cols, k_cols), qkv.grad().narrow(1, q_cols, k_cols)));
  EXPECT_EQ(again.grad().narrow(1, 0, q_cols).abs().sum().item<float>(), 0.0F);
  EXPECT_EQ(again.grad().narrow(1, q_cols + k_cols, k_cols).abs().sum().item<float>(), 0.0F);
}

INSTANTIATE_TEST_SUITE_P(Shapes, PrepareQkv,
                         ::testing::Values(QkvCase{3, 4, 2, 8, QkNorm::kNone, 0, false},
                                           QkvCase{2, 3, 3, 10, QkNorm::kNone, 0, true},
                                           QkvCase{3, 4, 1, 32, QkNorm::kPerHead, 0, false},
                                           QkvCase{2, 2, 1, 18, QkNorm::kPerHead, 0.7, true},
                                           QkvCase{2, 4, 2, 12, QkNorm::kWhole, 0.9, false},
                                           QkvCase{1, 6, 2, 64, QkNorm::kPerHead, 0, false},
                                           QkvCase{2, 2, 2, 80, QkNorm::kWhole, 0, false},
                                           QkvCase{0, 4, 2, 32, QkNorm::kPerHead, 0, false}));

TEST(NormRope, ApplyRopeRotatesAndItsGradientRotatesBack) {
  Rng rng(105);
  for (const bool interleaved : {false, true}) {
    for (const int64_t dim : {2, 8, 18, 64}) {
      const RopeTable rope = rope_table(64, dim, interleaved);
      const at::Tensor positions = at::arange(7, at::kLong).mul(9);
      at::Tensor x = normal(rng, {7, 3, dim}).requires_grad_(true);
      const at::Tensor dy = normal(rng, {7, 3, dim});
      const at::Tensor y = apply_rope(x, rope, positions);
      const at::Tensor xd = x.detach().to(at::kDouble);
      EXPECT_TENSOR_NEAR(y, rope_oracle(xd, rope, positions), 1e-5, 1e-6);
      y.backward(dy);
      EXPECT_TENSOR_NEAR(
          x.grad(),
          finite_difference(xd,
                            [&](const at::Tensor& at_x) {
                              return (rope_oracle(at_x, rope, positions) * dy).sum().item<double>();
                            }),
          1e-4, 1e-5);
    }
  }
}

// The dtype order of models.md, bit for bit, against the same formulas in ATen.
TEST(NormRope, Bf16FollowsTheDtypeRules) {
  Rng rng(106);
  const at::Tensor x = normal(rng, {40, 128}).to(at::kBFloat16);
  const ParamPtr w = param(normal(rng, {128}).to(at::kBFloat16));
  const at::Tensor y = rms_norm(x, w, kEps);
  const at::Tensor want = norm_oracle(x, w->value);
  // The order of the sum of squares is not ATen's, so a rounding may fall the other way now and
  // then.
  EXPECT_LE((y != want).sum().item<int64_t>(), 10);
  EXPECT_TENSOR_NEAR(y, want, 1.0 / 64, 0);

  for (const bool interleaved : {false, true}) {
    const RopeTable rope = rope_table(64, 32, interleaved);
    const at::Tensor positions = at::arange(40, at::kLong);
    const at::Tensor heads = normal(rng, {40, 4, 32}).to(at::kBFloat16);
    EXPECT_TRUE(same_bits(apply_rope(heads, rope, positions), rope_oracle(heads, rope, positions)));
    const QkvSpec spec{2, 1, 32, QkNorm::kNone, nullptr, nullptr, kEps, 1.5};
    const Qkv got = prepare_qkv(x, spec, rope, positions);
    const Qkv expected = qkv_oracle(x, spec, {}, {}, rope, positions);
    EXPECT_TRUE(same_bits(got.q_THd, expected.q_THd));
    EXPECT_TRUE(same_bits(got.k_TGd, expected.k_TGd));
    EXPECT_TRUE(same_bits(got.v_TGd, expected.v_TGd));
  }
}

TEST(NormRope, RowsAndThreadsDoNotMatter) {
  Rng rng(107);
  const int64_t tokens = 300;
  const RopeTable rope = rope_table(400, 32, false);
  const at::Tensor positions = at::arange(tokens, at::kLong);
  const at::Tensor x = normal(rng, {tokens, 256});
  const at::Tensor dy = normal(rng, {tokens, 256});
  const at::Tensor weight = normal(rng, {256});
  const at::Tensor head_weight = normal(rng, {32});
  const int before = at::get_num_threads();
  std::vector<at::Tensor> first;
  for (const int threads : {1, 2}) {
    at::set_num_threads(threads);
    const ParamPtr w = param(weight);
    const QkvSpec spec{4, 2, 32, QkNorm::kPerHead, param(head_weight), param(head_weight), kEps, 0};
    at::Tensor in = x.clone().requires_grad_(true);
    const at::Tensor y = rms_norm(in, w, kEps);
    y.backward(dy);
    at::Tensor in2 = x.clone().requires_grad_(true);
    const Qkv qkv = prepare_qkv(in2, spec, rope, positions);
    (qkv.q_THd.sum() + (qkv.k_TGd * qkv.k_TGd).sum()).backward();
    const std::vector<at::Tensor> all = {
        y,         in.grad(),  w->grad,           qkv.q_THd,
        qkv.k_TGd, in2.grad(), spec.q_norm->grad, spec.k_norm->grad};
    if (first.empty()) first = all;
    for (size_t i = 0; i < all.size(); ++i) EXPECT_TRUE(same_bits(first[i], all[i])) << i;
    for (const int64_t row : {0, 17, 299}) {
      EXPECT_TRUE(same_bits(rms_norm(x.narrow(0, row, 1), w, kEps), y.narrow(0, row, 1)));
      EXPECT_TRUE(
          same_bits(prepare_qkv(x.narrow(0, row, 1), spec, rope, positions.narrow(0, row, 1)).q_THd,
                    qkv.q_THd.narrow(0, row, 1)));
    }
  }
  at::set_num_threads(before);
}

}  // namespace
}  // namespace quadrille::tensor
