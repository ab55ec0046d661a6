// Drawing a token from one row of logits.
#pragma once

#include <cstdint>

namespace quadrille::tensor::cpu {

struct SampleArgs {
  float temperature = 1;  // 0: greedy.
  int64_t top_k = 0;      // 0: off.
  float top_p = 1;        // 1: off.
  float min_p = 0;        // 0: off.
  uint64_t seed = 0;
  uint64_t counter = 0;
};
struct SampleResult {
  int64_t token = -1;  // -1: the row has a NaN, +inf, or nothing but -inf.
  float logprob = 0;
  float sampling_logprob = 0;
  float tempered_logprob = 0;
};

// Filters in this order, each on what the one before left, with the sets of Hugging Face's
// processors:
//   temperature  z = logit / temperature
//   top_k        z >= the k-th largest z (equals of the k-th all stay)
//   top_p        by falling z, equals by rising id: a token stays while less than top_p of the mass
//   lies before it min_p        at least min_p times as likely as the most likely token
// The most likely token always stays. Then the inverse of the distribution function at a uniform
// number of 53 bits from philox(seed, counter), summed over rising ids: weights in fp32, sums in
// double.
SampleResult sample_row(const float* logits, int64_t vocabulary, const SampleArgs& args);

}  // namespace quadrille::tensor::cpu
