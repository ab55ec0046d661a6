// Random numbers that replay: counter-based (Philox 4x32-10, Salmon et al., SC'11) where a value
// must not depend on who asks first, and a small sequential generator with a state that fits a
// checkpoint.
//
// A sampled token is a pure function of (seed, position), so an answer does not depend on the batch
// it was generated in, on preemption or on the number of workers.
#pragma once

#include <array>
#include <cstdint>

namespace quadrille {

// Philox 4x32-10: 128 random bits for (key, counter).
std::array<uint32_t, 4> philox(uint64_t key, uint64_t counter_low, uint64_t counter_high = 0);

// Uniform in (0, 1), never 0 or 1: safe under log(). 23 bits, since a half added to 24 would round
// up to 1.
inline float uniform_open(uint32_t bits) {
  return (static_cast<float>(bits >> 9) + 0.5F) * (1.0F / 8388608.0F);
}

// Mixes two numbers into a well-spread seed (SplitMix64 finaliser): seed of sample 3 of prompt 17
// of step 5.
uint64_t mix_seed(uint64_t a, uint64_t b);

// Sequential generator over philox(seed, counter). The state is two numbers.
class Rng {
 public:
  struct State {
    uint64_t seed = 0;
    uint64_t counter = 0;
    bool operator==(const State&) const = default;
  };

  explicit Rng(uint64_t seed) : state_{seed, 0} {}
  explicit Rng(State state) : state_(state) {}

  uint64_t next_u64();
  // Uniform in [0, bound), without modulo bias. bound >= 1.
  uint64_t below(uint64_t bound);
  // Uniform in [0, 1), 53 bits.
  double uniform();
  // Standard normal (Box-Muller).
  double normal();

  const State& state() const { return state_; }

 private:
  State state_;
};

}  // namespace quadrille
