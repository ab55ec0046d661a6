#include "base/rng.h"

#include <cmath>
#include <numbers>

#include "base/error.h"

namespace quadrille {

std::array<uint32_t, 4> philox(uint64_t key, uint64_t counter_low, uint64_t counter_high) {
  constexpr uint32_t kMul0 = 0xD2511F53U;
  constexpr uint32_t kMul1 = 0xCD9E8D57U;
  constexpr uint32_t kWeyl0 = 0x9E3779B9U;
  constexpr uint32_t kWeyl1 = 0xBB67AE85U;
  std::array<uint32_t, 4> x = {
      static_cast<uint32_t>(counter_low), static_cast<uint32_t>(counter_low >> 32),
      static_cast<uint32_t>(counter_high), static_cast<uint32_t>(counter_high >> 32)};
  auto k0 = static_cast<uint32_t>(key);
  auto k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = static_cast<uint64_t>(kMul0) * x[0];
    const uint64_t p1 = static_cast<uint64_t>(kMul1) * x[2];
    x = {static_cast<uint32_t>(p1 >> 32) ^ x[1] ^ k0, static_cast<uint32_t>(p1),
         static_cast<uint32_t>(p0 >> 32) ^ x[3] ^ k1, static_cast<uint32_t>(p0)};
    k0 += kWeyl0;
    k1 += kWeyl1;
  }
  return x;
}

uint64_t mix_seed(uint64_t a, uint64_t b) {
  uint64_t z = a + 0x9E3779B97F4A7C15ULL * (b + 1);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
  return z ^ (z >> 31);
}

uint64_t Rng::next_u64() {
  const auto x = philox(state_.seed, state_.counter++);
  return (static_cast<uint64_t>(x[0]) << 32) | x[1];
}

uint64_t Rng::below(uint64_t bound) {
  QD_CHECK(bound >= 1, "bound {}", bound);
  // Values in the last, incomplete run of `bound` would favour small results.
  const uint64_t limit = UINT64_MAX - UINT64_MAX % bound;
  uint64_t value = next_u64();
  while (value >= limit) value = next_u64();
  return value % bound;
}

double Rng::uniform() {
  return static_cast<double>(next_u64() >> 11) * 0x1.0p-53;
}

double Rng::normal() {
  const double radius = std::sqrt(-2.0 * std::log(1.0 - uniform()));
  return radius * std::cos(2.0 * std::numbers::pi * uniform());
}

}  // namespace quadrille
