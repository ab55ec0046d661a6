#include "rollout/request.h"

#include <cmath>

#include "base/error.h"

namespace quadrille::rollout {

void SamplingOptions::validate() const {
  if (!(temperature >= 0) || !std::isfinite(temperature)) {
    throw UsageError("temperature must be 0 or more, got {}", temperature);
  }
  if (!(top_p > 0 && top_p <= 1))
    throw UsageError("top_p must be above 0 and at most 1, got {}", top_p);
  if (top_k < 0) throw UsageError("top_k must be 0 (off) or more, got {}", top_k);
  if (!(min_p >= 0 && min_p <= 1)) throw UsageError("min_p must be between 0 and 1, got {}", min_p);
}

Sample to_sample(const Request& request, const Completion& completion) {
  Sample sample;
  sample.group_id = request.id;
  sample.tokens = request.prompt;
  sample.prompt_tokens = static_cast<int64_t>(request.prompt.size());
  sample.tokens.insert(sample.tokens.end(), completion.tokens.begin(), completion.tokens.end());
  sample.loss_mask.assign(request.prompt.size(), 0);
  sample.loss_mask.resize(sample.tokens.size(), 1);
  sample.logprobs.assign(request.prompt.size(), std::numeric_limits<float>::quiet_NaN());
  sample.logprobs.insert(sample.logprobs.end(), completion.tempered_logprobs.begin(),
                         completion.tempered_logprobs.end());
  for (const VersionSpan& span : completion.versions) {
    sample.versions.push_back(
        {span.begin + sample.prompt_tokens, span.end + sample.prompt_tokens, span.version});
  }
  sample.routing = completion.routing;
  sample.finish = completion.finish;
  sample.temperature = static_cast<float>(request.sampling.temperature);
  sample.seed = completion.seed;
  sample.text = completion.text;
  return sample;
}

}  // namespace quadrille::rollout
