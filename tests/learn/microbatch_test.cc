#include "learn/microbatch.h"

#include <gtest/gtest.h>

#include <numeric>

#include "base/rng.h"

namespace quadrille::learn {
namespace {

// Sequences of the given token counts; `trained` of the last tokens of each are trained.
struct Fixture {
  std::vector<std::vector<int32_t>> tokens;
  std::vector<TrainSequence> sequences;
  std::vector<const TrainSequence*> views;

  Fixture(const std::vector<int64_t>& lengths, const std::vector<int64_t>& trained) {
    for (size_t i = 0; i < lengths.size(); ++i) {
      tokens.emplace_back(static_cast<size_t>(lengths[i]));
      std::iota(tokens.back().begin(), tokens.back().end(), static_cast<int32_t>(100 * i));
    }
    for (size_t i = 0; i < lengths.size(); ++i) {
      TrainSequence s;
      s.tokens = tokens[i];
      for (int64_t t = lengths[i] - trained[i]; t < lengths[i]; ++t) s.positions.push_back(t);
      sequences.push_back(s);
    }
    for (const TrainSequence& s : sequences) views.push_back(&s);
  }
};

std::vector<int64_t> host(const at::Tensor& t) {
  const at::Tensor c = t.to(at::kLong).contiguous();
  return {c.const_data_ptr<int64_t>(), c.const_data_ptr<int64_t>() + c.numel()};
}

TEST(Counts, SequencesWithoutTrainedTokensCountNowhere) {
  const Fixture f({5, 4, 9}, {2, 0, 3});
  const Counts counts = count(f.views);
  EXPECT_EQ(counts.trained_tokens, 5);
  EXPECT_EQ(counts.sequences, 2);
  EXPECT_EQ(counts.input_tokens, 4 + 8);
}

TEST(TokenWeight, GlobalDenominatorOfExample149) {
  // Micro-batches of (tokens, sum of losses): (4, 4), (1, 5) on one rank, (2, 4), (5, 0) on the
  // other.
  Counts counts;
  counts.trained_tokens = 4 + 1 + 2 + 5;
  const double weight = token_weight(Aggregation::kTokenMean, 4, counts, 0);
  EXPECT_NEAR(weight * 4 + weight * 5 + weight * 4 + weight * 0, 1.083333, 1e-6);
}

TEST(TokenWeight, SumsToOneOverMeans) {
  Counts counts;
  counts.trained_tokens = 9;
  counts.sequences = 3;
  double token_mean = 0, seq_mean = 0;
  for (const int64_t length : {4, 2, 3}) {
    token_mean +=
        static_cast<double>(length) * token_weight(Aggregation::kTokenMean, length, counts, 0);
    seq_mean += static_cast<double>(length) *
                token_weight(Aggregation::kSeqMeanTokenMean, length, counts, 0);
  }
  EXPECT_NEAR(token_mean, 1, 1e-12);
  EXPECT_NEAR(seq_mean, 1, 1e-12);
  EXPECT_NEAR(token_weight(Aggregation::kSeqMeanTokenSum, 4, counts, 5), 1.0 / 3, 1e-12);
  EXPECT_NEAR(token_weight(Aggregation::kSeqMeanTokenSumNorm, 4, counts, 5), 1.0 / 15, 1e-12);
}

TEST(PackMicroBatches, KeepsTheBudgetAndLosesNothing) {
  Rng rng(3);
  for (int round = 0; round < 50; ++round) {
    std::vector<int64_t> lengths, trained;
    for (int i = 0; i < 40; ++i) {
      lengths.push_back(static_cast<int64_t>(2 + rng.below(60)));
      trained.push_back(rng.below(5) == 0 ? 0 : 1);
    }
    const Fixture f(lengths, trained);
    const auto budget = static_cast<int64_t>(20 + rng.below(100));
    const auto batches = pack_micro_batches(f.views, budget);
    EXPECT_EQ(batches, pack_micro_batches(f.views, budget));
    std::vector<int> seen(lengths.size(), 0);
    for (const auto& members : batches) {
      int64_t tokens = 0;
      for (const size_t i : members) {
        ++seen[i];
        tokens += lengths[i] - 1;
      }
      EXPECT_TRUE(tokens <= budget || members.size() == 1) << tokens << " over " << budget;
      EXPECT_TRUE(std::is_sorted(members.begin(), members.end()));
    }
    for (size_t i = 0; i < seen.size(); ++i) EXPECT_EQ(seen[i], trained[i] == 0 ? 0 : 1);
  }
}

TEST(PackMicroBatches, MixesNoTemperatures) {
  Fixture f({5, 5, 5, 5}, {1, 1, 1, 1});
  f.sequences[1].temperature = f.sequences[3].temperature = 0.5;
  const auto batches = pack_micro_batches(f.views, 1000);
  EXPECT_EQ(batches, (std::vector<std::vector<size_t>>{{0, 2}, {1, 3}}));
}

TEST(PackRows, HiddenOfAPositionPredictsTheNextToken) {
  const Fixture f({4, 3, 5}, {2, 0, 1});
  const std::vector<size_t> chosen = {0, 2};
  const PackedRows packed = pack_rows(f.views, chosen, at::kCPU);
  // Inputs 0 1 2 | 200 201 202 203; trained are tokens 2, 3 of the first and 204 of the last.
  EXPECT_EQ(host(packed.batch.tokens_T), (std::vector<int64_t>{0, 1, 2, 200, 201, 202, 203}));
  EXPECT_EQ(host(packed.batch.positions_T), (std::vector<int64_t>{0, 1, 2, 0, 1, 2, 3}));
  EXPECT_EQ(host(packed.batch.cu_seqlens_S1), (std::vector<int64_t>{0, 3, 7}));
  EXPECT_EQ(packed.batch.max_seqlen, 4);
  EXPECT_EQ(host(packed.rows_N), (std::vector<int64_t>{1, 2, 6}));
  EXPECT_EQ(host(packed.targets_N), (std::vector<int64_t>{2, 3, 204}));
}

}  // namespace
}  // namespace quadrille::learn
