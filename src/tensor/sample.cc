// Sampling: one row a sequence, each a pure function of its logits, its filters and (seed,
// counter).
#include <ATen/core/Tensor.h>

#include "base/error.h"
#include "tensor/args.h"
#include "tensor/cpu/parallel.h"
#include "tensor/cpu/sample.h"
#include "tensor/ops.h"

namespace quadrille::tensor {

Sampled sample(const at::Tensor& logits_BV, const SamplingParams& params) {
  const int64_t rows = logits_BV.size(0);
  const int64_t vocabulary = logits_BV.size(1);
  QD_CHECK(rows == 0 || vocabulary > 0, "no vocabulary");
  for (const at::Tensor* p : {&params.temperature_B, &params.top_k_B, &params.top_p_B,
                              &params.min_p_B, &params.seed_B, &params.counter_B}) {
    QD_CHECK(p->defined() && p->numel() == rows, "sampling parameters for {} rows of {}",
             p->defined() ? p->numel() : 0, rows);
  }
  const at::Tensor logits = cpu::plain(logits_BV);
  const float* x = data<const float>(logits);
  const float* temperature = data<const float>(params.temperature_B);
  const int32_t* top_k = data<const int32_t>(params.top_k_B);
  const float* top_p = data<const float>(params.top_p_B);
  const float* min_p = data<const float>(params.min_p_B);
  const int64_t* seed = data<const int64_t>(params.seed_B);
  const int64_t* counter = data<const int64_t>(params.counter_B);
  Sampled out{cpu::empty({rows}, at::kLong), cpu::empty({rows}, logits.scalar_type()),
              cpu::empty({rows}, logits.scalar_type()), cpu::empty({rows}, logits.scalar_type())};
  int64_t* tokens = data<int64_t>(out.tokens_B);
  float* logprobs = data<float>(out.logprobs_B);
  float* sampling = data<float>(out.sampling_logprobs_B);
  float* tempered = data<float>(out.tempered_logprobs_B);
  for (int64_t row = 0; row < rows; ++row) {
    QD_CHECK(temperature[row] >= 0 && top_k[row] >= 0 && top_p[row] >= 0 && top_p[row] <= 1 &&
                 min_p[row] >= 0 && min_p[row] <= 1,
             "row {}: temperature {}, top_k {}, top_p {}, min_p {}", row, temperature[row],
             top_k[row], top_p[row], min_p[row]);
  }
  const double cycles = static_cast<double>(rows) * (1000 + 1.5 * static_cast<double>(vocabulary));
  cpu::for_items(rows, cycles, [&](int64_t row) {
    const cpu::SampleResult result =
        cpu::sample_row(x + row * vocabulary, vocabulary,
                        {temperature[row], top_k[row], top_p[row], min_p[row],
                         static_cast<uint64_t>(seed[row]), static_cast<uint64_t>(counter[row])});
    tokens[row] = result.token;
    logprobs[row] = result.logprob;
    sampling[row] = result.sampling_logprob;
    tempered[row] = result.tempered_logprob;
  });
  for (int64_t row = 0; row < rows; ++row) {
    // Not our bug: damaged weights, or a policy that training has driven apart.
    if (tokens[row] < 0) {
      throw Error(
          "row {} of the logits holds a NaN or +inf, or nothing but -inf: the model's weights are "
          "damaged or have diverged",
          row);
    }
  }
  return out;
}

}  // namespace quadrille::tensor
