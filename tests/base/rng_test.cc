#include "base/rng.h"

#include <gtest/gtest.h>

#include <cmath>

namespace quadrille {
namespace {

// Known answers of the Random123 distribution (kat_vectors, philox 4x32 with 10 rounds).
TEST(Rng, PhiloxKnownAnswers) {
  EXPECT_EQ(philox(0, 0),
            (std::array<uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox(UINT64_MAX, UINT64_MAX, UINT64_MAX),
            (std::array<uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
}

TEST(Rng, StateReplays) {
  Rng a(7);
  for (int i = 0; i < 5; ++i) a.next_u64();
  Rng b(a.state());
  EXPECT_EQ(a.next_u64(), b.next_u64());
  EXPECT_EQ(a.below(10), b.below(10));
}

TEST(Rng, MomentsAreRight) {
  Rng rng(11);
  double sum = 0;
  double squares = 0;
  constexpr int kCount = 20000;
  for (int i = 0; i < kCount; ++i) {
    const double x = rng.normal();
    sum += x;
    squares += x * x;
  }
  EXPECT_NEAR(sum / kCount, 0.0, 0.03);
  EXPECT_NEAR(squares / kCount, 1.0, 0.05);
  EXPECT_GT(uniform_open(0), 0.0F);
  EXPECT_LT(uniform_open(UINT32_MAX), 1.0F);
}

}  // namespace
}  // namespace quadrille
