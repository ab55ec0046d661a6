#include "base/sample.h"

#include <cmath>

#include "base/error.h"

namespace quadrille {

const char* public_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kEos:
    case FinishReason::kStopString:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kAborted:
      return "aborted";
  }
  return "aborted";
}

void Sample::validate() const {
  const auto count = static_cast<int64_t>(tokens.size());
  QD_CHECK(prompt_tokens >= 1 && prompt_tokens <= count, "prompt {} of {} tokens", prompt_tokens,
           count);
  QD_CHECK(loss_mask.size() == tokens.size(), "{} masks, {} tokens", loss_mask.size(), count);
  QD_CHECK(logprobs.size() == tokens.size(), "{} logprobs, {} tokens", logprobs.size(), count);
  for (int64_t i = 0; i < count; ++i) {
    const bool trained = loss_mask[static_cast<size_t>(i)] != 0;
    QD_CHECK(!(trained && i < prompt_tokens), "prompt position {} is in the loss mask", i);
    const float logprob = logprobs[static_cast<size_t>(i)];
    QD_CHECK(!trained || (std::isfinite(logprob) && logprob <= 0.0F), "position {} logprob {}", i,
             logprob);
  }
  int64_t at = prompt_tokens;
  int64_t version = std::numeric_limits<int64_t>::min();
  for (const VersionSpan& span : versions) {
    QD_CHECK(span.begin == at && span.end > span.begin, "version span [{}, {}) after {}",
             span.begin, span.end, at);
    QD_CHECK(span.version >= version, "version {} after {}", span.version, version);
    at = span.end;
    version = span.version;
  }
  QD_CHECK(at == count, "version spans end at {} of {}", at, count);
  QD_CHECK(routing.ids.empty() || static_cast<int64_t>(routing.ids.size()) ==
                                      (count - 1) * routing.moe_layers * routing.top_k,
           "{} route ids for {} tokens", routing.ids.size(), count);
}

}  // namespace quadrille
