// Verifiers that need no process of their own: pure functions of completion and row.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "reward/reward.h"

namespace quadrille::reward {

// One verdict; NaN and a reason if the row lacks what the verifier needs.
struct Verdict {
  float reward = 0;
  std::string error;
  std::optional<std::string> extracted;  // As in RewardResult.
};
using Verifier = std::function<Verdict(const RewardItem&)>;

//   exact    the completion equals the row's `answer`, white space at both ends aside
//   numeric  the last number in the completion equals the number in `answer` within `tolerance`
//   (relative to
//            the larger of 1 and the answer); "1,234.5", "-3", "2e5", "3/4" and "50%" are numbers
//   regex    `pattern` matches somewhere; with a capture group, the first group equals `answer`
//   format   `pattern` matches the whole completion
// Throws ConfigError for a pattern that does not compile, naming the place in it.
Verifier make_verifier(const RewardPart& part);

}  // namespace quadrille::reward
