#include <ATen/Parallel.h>
#include <ATen/ops/full.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "base/error.h"
#include "tensor/ops.h"
#include "tensor/testing.h"

namespace quadrille::tensor {
namespace {

using testing::normal;
using testing::same_bits;

struct Filters {
  double temperature = 1;
  int top_k = 0;
  double top_p = 1;
  double min_p = 0;
};

SamplingParams params(int64_t rows, const Filters& f, int64_t seed = 1, int64_t counter = 0) {
  SamplingParams p;
  p.temperature_B = at::full({rows}, f.temperature, at::kFloat);
  p.top_k_B = at::full({rows}, f.top_k, at::kInt);
  p.top_p_B = at::full({rows}, f.top_p, at::kFloat);
  p.min_p_B = at::full({rows}, f.min_p, at::kFloat);
  p.seed_B = at::full({rows}, seed, at::kLong);
  p.counter_B = at::full({rows}, 0, at::kLong);
  for (int64_t i = 0; i < rows; ++i) p.counter_B.data_ptr<int64_t>()[i] = counter + i;
  return p;
}

// The distribution after the filters as Hugging Face defines them, in double, by sorting
// everything.
std::vector<double> reference(const at::Tensor& logits, const Filters& f) {
  const int64_t n = logits.numel();
  std::vector<double> z(n);
  for (int64_t i = 0; i < n; ++i) {
    z[i] = logits.data_ptr<float>()[i] / static_cast<float>(f.temperature);
  }
  const auto softmax = [&] {
    const double m = *std::max_element(z.begin(), z.end());
    std::vector<double> p(n);
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += p[i] = std::exp(z[i] - m);
    for (double& x : p) x /= sum;
    return p;
  };
  if (f.top_k > 0) {
    std::vector<double> sorted = z;
    std::sort(sorted.rbegin(), sorted.rend());
    const double kth = sorted[std::min<int64_t>(f.top_k, n) - 1];
    for (double& x : z) x = x < kth ? -INFINITY : x;
  }
  if (f.top_p < 1) {
    const std::vector<double> p = softmax();
    std::vector<int64_t> order(n);
    std::iota(order.begin(), order.end(), 0);
    // Ascending; among equals the higher id first, so that it is the first to go.
    std::sort(order.begin(), order.end(),
              [&](int64_t a, int64_t b) { return p[a] != p[b] ? p[a] < p[b] : a > b; });
    double cumulative = 0;
    for (int64_t i = 0; i + 1 < n; ++i) {
      cumulative += p[order[i]];
      if (cumulative <= 1 - static_cast<double>(static_cast<float>(f.top_p)))
        z[order[i]] = -INFINITY;
    }
  }
  if (f.min_p > 0) {
    const std::vector<double> p = softmax();
    const double largest = *std::max_element(p.begin(), p.end());
    for (int64_t i = 0; i < n; ++i) {
      if (p[i] < static_cast<double>(static_cast<float>(f.min_p)) * largest) z[i] = -INFINITY;
    }
  }
  return softmax();
}

at::Tensor repeat(const at::Tensor& row, int64_t times) {
  return row.unsqueeze(0).expand({times, -1}).contiguous();
}

// Every token that the reference allows has its probability in sampling_logprobs; nothing else is
// ever drawn.
TEST(Sample, SetsAndProbabilitiesAreHuggingFaces) {
  Rng rng(401);
  const std::vector<Filters> filters = {
      {1, 0, 1, 0},        {0.7, 5, 1, 0},  {1, 1, 1, 0},       {2, 100, 1, 0}, {1, 0, 0.9, 0},
      {1.5, 0, 0.3, 0},    {1, 0, 1e-6, 0}, {0.6, 20, 0.95, 0}, {1, 0, 1, 0.1}, {1, 0, 1, 1},
      {0.8, 10, 0.8, 0.2}, {1, 0, 0, 0},    {1, 3, 0.5, 0.05}};
  for (const int64_t vocabulary : {1, 2, 17, 33, 50}) {
    for (const Filters& f : filters) {
      SCOPED_TRACE(::testing::Message()
                   << "V " << vocabulary << ", temperature " << f.temperature << ", top_k "
                   << f.top_k << ", top_p " << f.top_p << ", min_p " << f.min_p);
      const at::Tensor row = normal(rng, {vocabulary}, 1.5);
      const std::vector<double> want = reference(row, f);
      const int64_t draws = 2000;
      const Sampled got = sample(repeat(row, draws), params(draws, f, 77));
      std::set<int64_t> seen;
      const at::Tensor logp = at::log_softmax(row.to(at::kDouble), 0);
      const at::Tensor tempered =
          at::log_softmax(row.div(static_cast<float>(f.temperature)).to(at::kDouble), 0);
      for (int64_t i = 0; i < draws; ++i) {
        const int64_t token = got.tokens_B.data_ptr<int64_t>()[i];
        ASSERT_GT(want[token], 0) << token;
        seen.insert(token);
        ASSERT_NEAR(got.sampling_logprobs_B.data_ptr<float>()[i], std::log(want[token]), 2e-6);
        ASSERT_NEAR(got.logprobs_B.data_ptr<float>()[i], logp.data_ptr<double>()[token], 2e-6);
        ASSERT_NEAR(got.tempered_logprobs_B.data_ptr<float>()[i],
                    tempered.data_ptr<double>()[token], 2e-6);
      }
      for (int64_t i = 0; i < vocabulary; ++i) {
        EXPECT_TRUE(want[i] < 0.01 || seen.count(i))
            << "token " << i << " of probability " << want[i];
      }
    }
  }
}

// Pearson's chi-square against the exact distribution; the seed is fixed, so this cannot flake.
TEST(Sample, ChiSquare) {
  Rng rng(402);
  for (const Filters& f :
       {Filters{1, 0, 1, 0}, Filters{0.8, 12, 0.9, 0}, Filters{1.3, 0, 0.7, 0.02}}) {
    const at::Tensor row = normal(rng, {24}, 1.0);
    const std::vector<double> want = reference(row, f);
    const int64_t draws = 40000;
    std::vector<double> count(24, 0.0);
    // Half over counters, half over seeds: both must be independent draws.
    const Sampled by_counter = sample(repeat(row, draws / 2), params(draws / 2, f, 5));
    SamplingParams seeds = params(draws / 2, f);
    for (int64_t i = 0; i < draws / 2; ++i) {
      seeds.seed_B.data_ptr<int64_t>()[i] = 1000 + i;
      seeds.counter_B.data_ptr<int64_t>()[i] = 3;
    }
    const Sampled by_seed = sample(repeat(row, draws / 2), seeds);
    for (const Sampled* s : {&by_counter, &by_seed}) {
      for (int64_t i = 0; i < draws / 2; ++i) ++count[s->tokens_B.data_ptr<int64_t>()[i]];
    }
    double chi = 0;
    int cells = 0;
    for (int i = 0; i < 24; ++i) {
      if (want[i] == 0) {
        EXPECT_EQ(count[i], 0);
        continue;
      }
      const double expected = want[i] * static_cast<double>(draws);
      chi += (count[i] - expected) * (count[i] - expected) / expected;
      ++cells;
    }
    // Mean cells - 1, deviation sqrt(2 (cells - 1)).
    EXPECT_LT(chi, cells - 1 + 4 * std::sqrt(2.0 * (cells - 1)))
        << "seed 402, " << cells << " cells";
  }
}

TEST(Sample, GreedyTakesTheLowestOfEquals) {
  at::Tensor logits = at::zeros({3, 40});
  logits[1][33] = logits[1][7] = 2.0;
  logits[2][39] = 1.0;
  const Sampled got = sample(logits, params(3, {0, 1, 0.5, 0.5}));
  EXPECT_EQ(got.tokens_B[0].item<int64_t>(), 0);
  EXPECT_EQ(got.tokens_B[1].item<int64_t>(), 7);
  EXPECT_EQ(got.tokens_B[2].item<int64_t>(), 39);
  EXPECT_EQ(got.sampling_logprobs_B.abs().sum().item<float>(), 0.0F);
  EXPECT_TRUE(same_bits(got.tempered_logprobs_B, got.logprobs_B));
  EXPECT_NEAR(got.logprobs_B[0].item<double>(), -std::log(40.0), 1e-6);
}

TEST(Sample, TopKKeepsTiesAtTheEdgeAndTopPDropsHighIdsFirst) {
  at::Tensor row = at::zeros({20});
  row[3] = 2.0;
  row[11] = row[12] = row[13] = 1.0;
  std::set<int64_t> seen;
  const int64_t draws = 500;
  const Sampled k = sample(repeat(row, draws), params(draws, {1, 2, 1, 0}));
  for (int64_t i = 0; i < draws; ++i) seen.insert(k.tokens_B.data_ptr<int64_t>()[i]);
  EXPECT_EQ(seen, (std::set<int64_t>{3, 11, 12, 13}));
  seen.clear();
  // Uniform over 20: 0.33 needs seven of them, the seven lowest ids.
  const Sampled p = sample(at::zeros({draws, 20}), params(draws, {1, 0, 0.33, 0}));
  for (int64_t i = 0; i < draws; ++i) seen.insert(p.tokens_B.data_ptr<int64_t>()[i]);
  EXPECT_EQ(seen, (std::set<int64_t>{0, 1, 2, 3, 4, 5, 6}));
  // Equals of the k-th that are -inf: everything stays, and -inf still has no mass.
  at::Tensor few = at::full({600}, -INFINITY, at::kFloat);
  few[2] = few[599] = 1.0;
  seen.clear();
  const Sampled k5 = sample(repeat(few, draws), params(draws, {1, 5, 1, 0}));
  for (int64_t i = 0; i < draws; ++i) seen.insert(k5.tokens_B.data_ptr<int64_t>()[i]);
  EXPECT_EQ(seen, (std::set<int64_t>{2, 599}));
  // Equals on both sides of a chunk's edge.
  seen.clear();
  const Sampled wide = sample(at::zeros({3000, 700}), params(3000, {1, 0, 0.3999, 0}));
  for (int64_t i = 0; i < 3000; ++i) seen.insert(wide.tokens_B.data_ptr<int64_t>()[i]);
  EXPECT_EQ(*seen.rbegin(), 279);
  EXPECT_GT(seen.size(), 270U);
  // -inf is never drawn, and a mass that is all in one token draws it.
  at::Tensor masked = at::full({20}, -INFINITY, at::kFloat);
  masked[5] = -3.0;
  const Sampled only = sample(repeat(masked, draws), params(draws, {1, 0, 0.9, 0}));
  EXPECT_TRUE((only.tokens_B == 5).all().item<bool>());
  EXPECT_EQ(only.logprobs_B.abs().sum().item<float>(), 0.0F);
}

TEST(Sample, LargeVocabularyFilters) {
  Rng rng(403);
  at::Tensor flat = normal(rng, {151936}, 2.5);
  at::Tensor peaked = flat * 0.5;
  for (const int64_t at : {5, 77777, 151935}) peaked[at] = 9.0 + static_cast<double>(at % 7);
  const at::Tensor tied = flat.round();
  for (const at::Tensor& row : {flat, peaked, tied}) {
    for (const Filters& f :
         {Filters{1, 0, 0.9, 0}, Filters{1, 50, 0.95, 0}, Filters{2, 0, 0.999, 0},
          Filters{1, 20000, 1, 0}, Filters{1, 0, 1, 0.05}, Filters{0.01, 0, 0.5, 0}}) {
      const std::vector<double> want = reference(row, f);
      const Sampled got = sample(repeat(row, 64), params(64, f, 9));
      for (int64_t i = 0; i < 64; ++i) {
        const int64_t token = got.tokens_B.data_ptr<int64_t>()[i];
        ASSERT_GT(want[token], 0);
        ASSERT_NEAR(got.sampling_logprobs_B.data_ptr<float>()[i], std::log(want[token]), 5e-6);
      }
    }
  }
}

TEST(Sample, DependsOnSeedAndCounterAlone) {
  Rng rng(404);
  const at::Tensor logits = normal(rng, {65, 1000}, 2.0);
  const Filters f{0.9, 40, 0.95, 0.01};
  const int before = at::get_num_threads();
  const Sampled all = sample(logits, params(65, f, 3, 10));
  for (const int threads : {1, 2}) {
    at::set_num_threads(threads);
    const Sampled again = sample(logits, params(65, f, 3, 10));
    EXPECT_TRUE(same_bits(again.tokens_B, all.tokens_B));
    EXPECT_TRUE(same_bits(again.sampling_logprobs_B, all.sampling_logprobs_B));
    for (const int64_t row : {0, 31, 64}) {
      const Sampled one = sample(logits.narrow(0, row, 1), params(1, f, 3, 10 + row));
      EXPECT_TRUE(same_bits(one.tokens_B, all.tokens_B.narrow(0, row, 1)));
      EXPECT_TRUE(same_bits(one.logprobs_B, all.logprobs_B.narrow(0, row, 1)));
      EXPECT_TRUE(same_bits(one.tempered_logprobs_B, all.tempered_logprobs_B.narrow(0, row, 1)));
    }
  }
  at::set_num_threads(before);
  EXPECT_EQ(sample(at::zeros({0, 10}), params(0, f)).tokens_B.numel(), 0);
}

// A policy that did not change must have a ratio of exactly one.
TEST(Sample, LogprobsHaveTheBitsOfTheTrainers) {
  Rng rng(405);
  for (const int64_t vocabulary : {7, 1000, 5000}) {
    const at::Tensor hidden = normal(rng, {33, 48});
    const ParamPtr head = testing::param(normal(rng, {vocabulary, 48}, 0.5), false);
    for (const double temperature : {1.0, 0.7}) {
      const Sampled got = sample(logits(hidden, head), params(33, {temperature, 0, 0.9, 0}));
      const auto trained = token_logprobs(hidden, head, got.tokens_B, temperature, false);
      EXPECT_TRUE(same_bits(got.tempered_logprobs_B, trained.logprobs_N));
      const auto plain = token_logprobs(hidden, head, got.tokens_B, 1.0, false);
      EXPECT_TRUE(same_bits(got.logprobs_B, plain.logprobs_N));
    }
  }
}

TEST(Sample, RefusesNanWithTheRow) {
  at::Tensor logits = at::zeros({4, 100});
  logits[2][77] = NAN;
  try {
    sample(logits, params(4, {}));
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("row 2"), std::string::npos) << error.what();
  }
  EXPECT_THROW(sample(at::full({1, 8}, -INFINITY, at::kFloat), params(1, {})), Error);
  EXPECT_THROW(sample(at::full({1, 8}, INFINITY, at::kFloat), params(1, {})), Error);
}

}  // namespace
}  // namespace quadrille::tensor
