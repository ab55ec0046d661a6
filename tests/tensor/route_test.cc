#include <ATen/Parallel.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <numeric>

#include "tensor/ops.h"
#include "tensor/testing.h"

namespace quadrille::tensor {
namespace {

using testing::finite_difference;
using testing::normal;
using testing::same_bits;

at::Tensor floats(std::vector<float> values, at::IntArrayRef shape) {
  return at::from_blob(values.data(), shape, at::kFloat).clone();
}
at::Tensor ids(std::vector<int32_t> values, at::IntArrayRef shape) {
  return at::from_blob(values.data(), shape, at::kInt).clone();
}
std::vector<int32_t> numbers(const at::Tensor& x) {
  return {x.data_ptr<int32_t>(), x.data_ptr<int32_t>() + x.numel()};
}

// The weights that the formulas of models.md give to the chosen ids, in double.
at::Tensor weights_oracle(const at::Tensor& logits, const at::Tensor& chosen,
                          const RouterSpec& spec) {
  const at::Tensor scores =
      spec.score == RouterScore::kSoftmax ? at::softmax(logits, -1) : at::sigmoid(logits);
  at::Tensor w = scores.gather(1, chosen.to(at::kLong));
  if (spec.normalize) w = w / (w.sum(-1, true) + spec.normalize_eps);
  return w * spec.scaling;
}

// Ids by sorting, one token at a time.
std::vector<int32_t> ids_oracle(const at::Tensor& logits, const RouterSpec& spec) {
  const int64_t experts = logits.size(1);
  const at::Tensor scores =
      spec.score == RouterScore::kSoftmax ? at::softmax(logits, -1) : at::sigmoid(logits);
  std::vector<int32_t> out;
  for (int64_t t = 0; t < logits.size(0); ++t) {
    std::vector<double> c(experts);
    for (int64_t e = 0; e < experts; ++e) {
      c[e] = scores[t][e].item<double>() +
             (spec.selection_bias_E.defined() ? spec.selection_bias_E[e].item<double>() : 0.0);
    }
    const int64_t size = experts / spec.groups;
    std::vector<std::pair<double, int64_t>> groups;
    for (int64_t g = 0; g < spec.groups; ++g) {
      std::vector<double> in(c.begin() + g * size, c.begin() + (g + 1) * size);
      std::sort(in.rbegin(), in.rend());
      groups.emplace_back(-(in[0] + (size > 1 ? in[1] : 0)), g);
    }
    std::sort(groups.begin(), groups.end());
    std::vector<std::pair<double, int32_t>> order;
    for (int64_t i = 0; i < spec.groups_kept; ++i) {
      for (int64_t e = groups[i].second * size; e < (groups[i].second + 1) * size; ++e) {
        order.emplace_back(-c[e], static_cast<int32_t>(e));
      }
    }
    std::sort(order.begin(), order.end());
    for (int64_t k = 0; k < spec.top_k; ++k) out.push_back(order[k].second);
  }
  return out;
}

TEST(Route, ExamplesOfTheDesign) {
  RouterSpec spec;
  spec.top_k = 2;
  const at::Tensor logits = floats({2, 1, 0, 0, 2, 0, 1, 0, 1, 2, 0, 0, 2, 1, 0, 1}, {4, 4});
  const Routes routes = route(logits, spec);
  EXPECT_EQ(numbers(routes.ids_TK), (std::vector<int32_t>{0, 1, 0, 2, 1, 0, 0, 1}));
  const at::Tensor counts = expert_counts(routes.ids_TK, 4);
  EXPECT_EQ(std::vector<int64_t>(counts.data_ptr<int64_t>(), counts.data_ptr<int64_t>() + 4),
            (std::vector<int64_t>{4, 3, 1, 0}));

  const at::Tensor one = floats({0.5, 1, 2, 0}, {1, 4});
  spec.normalize = true;
  const Routes live = route(one, spec);
  EXPECT_EQ(numbers(live.ids_TK), (std::vector<int32_t>{2, 1}));
  EXPECT_TENSOR_NEAR(live.weights_TK, floats({0.731059, 0.268941}, {1, 2}), 0, 1e-6);
  const Routes replayed = route(one, spec, ids({0, 1}, {1, 2}));
  EXPECT_EQ(numbers(replayed.ids_TK), (std::vector<int32_t>{0, 1}));
  EXPECT_TENSOR_NEAR(replayed.weights_TK, floats({0.377541, 0.622459}, {1, 2}), 0, 1e-6);
  EXPECT_TRUE(same_bits(route(one, spec, ids({-1, -1}, {1, 2})).ids_TK, live.ids_TK));
  spec.normalize = false;
  EXPECT_TENSOR_NEAR(route(one, spec, ids({0, 1}, {1, 2})).weights_TK,
                     floats({0.129250, 0.213097}, {1, 2}), 0, 1e-6);

  RouterSpec deep;
  deep.score = RouterScore::kSigmoid;
  deep.top_k = 3;
  deep.normalize = true;
  deep.normalize_eps = 1e-20;
  deep.scaling = 2.5;
  deep.groups = 4;
  deep.groups_kept = 2;
  deep.selection_bias_E = floats({0, 0.6, 0, 0, 0, 0, 0.3, 0}, {8});
  const at::Tensor row = floats({1, 0, -1, 2, 0.5, -0.5, 0, 1.5}, {1, 8});
  const Routes grouped = route(row, deep);
  EXPECT_EQ(numbers(grouped.ids_TK), (std::vector<int32_t>{1, 7, 6}));
  EXPECT_TENSOR_NEAR(grouped.weights_TK, floats({0.687730, 1.124541, 0.687730}, {1, 3}), 0, 1e-6);
  deep.groups = deep.groups_kept = 1;
  std::vector<int32_t> free = numbers(route(row, deep).ids_TK);
  std::sort(free.begin(), free.end());
  EXPECT_EQ(free, (std::vector<int32_t>{1, 3, 7}));
}

// A masked group must lose even against negative choices (masking with 0 would let it win).
TEST(Route, MaskedGroupsLoseAgainstNegativeChoices) {
  RouterSpec spec;
  spec.score = RouterScore::kSigmoid;
  spec.top_k = 3;
  spec.groups = 2;
  spec.groups_kept = 1;
  spec.selection_bias_E = floats({-1, -1, -5, -5, -5, -5}, {6});
  const Routes routes = route(floats({0, 0, 0, 5, 5, 5}, {1, 6}), spec);
  EXPECT_EQ(numbers(routes.ids_TK), (std::vector<int32_t>{0, 1, 2}));
}

struct RouteCase {
  int64_t experts, top_k, groups, groups_kept;
  bool sigmoid, normalize, bias;
};

TEST(Route, AgreesWithSortingAndDifferences) {
  for (const RouteCase& c :
       {RouteCase{8, 2, 1, 1, false, true, false}, RouteCase{8, 2, 1, 1, false, false, false},
        RouteCase{60, 4, 1, 1, false, true, false}, RouteCase{5, 5, 1, 1, false, true, false},
        RouteCase{1, 1, 1, 1, false, true, false}, RouteCase{128, 8, 1, 1, false, true, false},
        RouteCase{64, 6, 1, 1, true, true, true}, RouteCase{256, 8, 8, 4, true, true, true},
        RouteCase{24, 3, 4, 2, true, false, true}, RouteCase{33, 4, 1, 1, true, true, false},
        RouteCase{12, 2, 12, 5, true, true, true}}) {
    Rng rng(301);
    SCOPED_TRACE(::testing::Message() << c.experts << " experts, top " << c.top_k << ", seed 301");
    RouterSpec spec;
    spec.score = c.sigmoid ? RouterScore::kSigmoid : RouterScore::kSoftmax;
    spec.top_k = c.top_k;
    spec.normalize = c.normalize;
    spec.normalize_eps = c.sigmoid ? 1e-20 : 0;
    spec.scaling = c.sigmoid ? 2.5 : 1.0;
    spec.groups = c.groups;
    spec.groups_kept = c.groups_kept;
    if (c.bias) spec.selection_bias_E = normal(rng, {c.experts}, 0.2);
    const int64_t tokens = c.experts > 64 ? 3 : 9;
    at::Tensor logits = normal(rng, {tokens, c.experts}, 1.5).requires_grad_(true);
    const at::Tensor dw = normal(rng, {tokens, c.top_k});
    const at::Tensor wide = logits.detach().to(at::kDouble);
    const Routes live = route(logits, spec);
    EXPECT_EQ(numbers(live.ids_TK), ids_oracle(wide, spec));
    // Replay of any ids, also of ones the live choice does not have.
    at::Tensor replay = at::empty({tokens, c.top_k}, at::kInt);
    for (int64_t t = 0; t < tokens; ++t) {
      std::vector<int32_t> all(c.experts);
      std::iota(all.begin(), all.end(), 0);
      for (int64_t k = 0; k < c.top_k; ++k) {
        std::swap(all[k], all[k + static_cast<int64_t>(rng.below(c.experts - k))]);
        replay.data_ptr<int32_t>()[t * c.top_k + k] = all[k];
      }
    }
    for (const Routes& routes : {live, route(logits, spec, replay)}) {
      EXPECT_TENSOR_NEAR(routes.weights_TK, weights_oracle(wide, routes.ids_TK, spec), 2e-6, 1e-7);
      logits.mutable_grad() = at::Tensor();
      routes.weights_TK.backward(dw);
      EXPECT_TENSOR_NEAR(
          logits.grad(),
          finite_difference(
              wide,
              [&](const at::Tensor& x) {
                return (weights_oracle(x, routes.ids_TK, spec) * dw).sum().item<double>();
              }),
          2e-4, 1e-6);
    }
    EXPECT_EQ(numbers(route(logits, spec, replay).ids_TK), numbers(replay));
    // One token that was not recorded among others that were.
    replay.select(0, tokens - 1).fill_(-1);
    const Routes mixed = route(logits, spec, replay);
    EXPECT_TRUE(same_bits(mixed.ids_TK[tokens - 1], live.ids_TK[tokens - 1]));
    EXPECT_TRUE(same_bits(mixed.weights_TK[tokens - 1], live.weights_TK[tokens - 1]));
    EXPECT_TRUE(same_bits(mixed.ids_TK.narrow(0, 0, tokens - 1), replay.narrow(0, 0, tokens - 1)));
  }
}

TEST(Route, TiesGoToTheLowestId) {
  RouterSpec spec;
  spec.top_k = 3;
  for (const int64_t experts : {4, 16, 40, 130}) {
    EXPECT_EQ(numbers(route(at::zeros({1, experts}), spec).ids_TK),
              (std::vector<int32_t>{0, 1, 2}));
  }
  at::Tensor logits = at::zeros({1, 40});
  logits[0][33] = logits[0][20] = 1.0;
  EXPECT_EQ(numbers(route(logits, spec).ids_TK), (std::vector<int32_t>{20, 33, 0}));
}

TEST(Route, EmptyBatch) {
  RouterSpec spec;
  spec.top_k = 2;
  const Routes routes = route(at::zeros({0, 8}), spec);
  const Dispatched sent = dispatch_local(at::zeros({0, 16}), routes.ids_TK, 8);
  EXPECT_EQ(sent.x_RD.size(0), 0);
  EXPECT_EQ(sent.offsets_E1[8].item<int64_t>(), 0);
  EXPECT_EQ(combine_local(sent.x_RD, sent.row_of_TK, routes.weights_TK).size(0), 0);
}

TEST(Route, ThreadsAndOtherRowsDoNotMatter) {
  Rng rng(302);
  RouterSpec spec;
  spec.top_k = 4;
  spec.normalize = true;
  at::Tensor logits = normal(rng, {2000, 60}).requires_grad_(true);
  const at::Tensor dw = normal(rng, {2000, 4});
  const int before = at::get_num_threads();
  std::vector<at::Tensor> first;
  for (const int threads : {1, 2}) {
    at::set_num_threads(threads);
    logits.mutable_grad() = at::Tensor();
    const Routes routes = route(logits, spec);
    routes.weights_TK.backward(dw);
    const std::vector<at::Tensor> all = {routes.ids_TK, routes.weights_TK, logits.grad()};
    if (first.empty()) first = all;
    for (size_t i = 0; i < all.size(); ++i) EXPECT_TRUE(same_bits(first[i], all[i]));
    const Routes one = route(logits.narrow(0, 777, 1), spec);
    EXPECT_TRUE(same_bits(one.weights_TK, routes.weights_TK.narrow(0, 777, 1)));
  }
  at::set_num_threads(before);
}

// Dispatch, a weighted identity for experts, combine: everything against index arithmetic in the
// test.
TEST(Dispatch, RoundTripAndGradients) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const int64_t cols : {1, 19, 64, 130}) {
      for (const bool holes : {false, true}) {
        Rng rng(303);
        const int64_t tokens = 23;
        const int64_t top_k = 3;
        const int64_t experts = 7;
        SCOPED_TRACE(::testing::Message()
                     << c10::toString(dtype) << " " << cols << " holes " << holes);
        at::Tensor x = normal(rng, {tokens, cols}).to(dtype).requires_grad_(true);
        at::Tensor weights = normal(rng, {tokens, top_k}).requires_grad_(true);
        at::Tensor chosen = at::empty({tokens, top_k}, at::kInt);
        for (int64_t i = 0; i < tokens * top_k; ++i) {
          // Expert 2 gets nothing; with holes some assignments name no expert.
          auto e = static_cast<int32_t>(rng.below(experts));
          if (e == 2) e = holes ? -1 : 3;
          chosen.data_ptr<int32_t>()[i] = e;
        }
        const Dispatched sent = dispatch_local(x, chosen, experts);
        const auto* offsets = sent.offsets_E1.data_ptr<int64_t>();
        const auto* row_of = sent.row_of_TK.data_ptr<int64_t>();
        ASSERT_EQ(sent.x_RD.size(0), tokens * top_k);
        // Stable: walking assignments in order, each expert's rows fill in order.
        std::vector<int64_t> next(offsets, offsets + experts);
        for (int64_t i = 0; i < tokens * top_k; ++i) {
          const int32_t e = chosen.data_ptr<int32_t>()[i];
          ASSERT_EQ(row_of[i], e < 0 ? -1 : next[e]++);
          ASSERT_TRUE(e < 0 || same_bits(sent.x_RD[row_of[i]], x[i / top_k]));
        }
        for (int64_t e = 0; e < experts; ++e) ASSERT_EQ(next[e], offsets[e + 1]);
        EXPECT_EQ(offsets[3], offsets[2]);
        const at::Tensor rest =
            sent.x_RD.narrow(0, offsets[experts], tokens * top_k - offsets[experts]);
        EXPECT_EQ(rest.numel() == 0, !holes);
        EXPECT_EQ(rest.abs().sum().item<float>(), 0.0F);

        at::Tensor y = normal(rng, {tokens * top_k, cols}).to(dtype).requires_grad_(true);
        const at::Tensor out = combine_local(y, sent.row_of_TK, weights);
        const at::Tensor dout = normal(rng, {tokens, cols}).to(dtype);
        at::Tensor want = at::zeros({tokens, cols});
        at::Tensor dy = at::zeros({tokens * top_k, cols});
        at::Tensor dw = at::zeros({tokens, top_k}, at::kDouble);
        at::Tensor dx = at::zeros({tokens, cols});
        const at::Tensor drows = normal(rng, {tokens * top_k, cols}).to(dtype);
        {
          at::NoGradGuard no_grad;
          for (int64_t t = 0; t < tokens; ++t) {
            for (int64_t k = 0; k < top_k; ++k) {
              const int64_t row = row_of[t * top_k + k];
              if (row < 0) continue;
              want[t] += weights[t][k] * y[row].to(at::kFloat);
              dy[row] = (weights[t][k] * dout[t].to(at::kFloat)).to(dtype).to(at::kFloat);
              dw[t][k] = (dout[t].to(at::kDouble) * y[row].to(at::kDouble)).sum();
              dx[t] += drows[row].to(at::kFloat);
            }
          }
        }
        EXPECT_TRUE(same_bits(out, want.to(dtype)));  // The order of "expert_order", bit for bit.
        out.backward(dout);
        EXPECT_TRUE(same_bits(y.grad(), dy.to(dtype)));
        EXPECT_TENSOR_NEAR(weights.grad(), dw, 1e-5, 1e-5);
        sent.x_RD.backward(drows);
        EXPECT_TRUE(same_bits(x.grad(), dx.to(dtype)));
      }
    }
  }
}

}  // namespace
}  // namespace quadrille::tensor
