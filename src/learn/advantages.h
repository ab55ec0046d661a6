// How much better an answer is than the others of its group: one number an answer, copied to its
// tokens.
//
// Computed in double on the host over the whole rollout batch, before it is cut into mini-batches.
// A group is complete when it comes in; members without a usable score are taken out before mean
// and deviation.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace quadrille::learn {

enum class AdvantageMethod { kGrpo, kDrGrpo, kRloo };  // Room for REINFORCE++, OPO and GAE.

struct AdvantageOptions {
  AdvantageMethod method = AdvantageMethod::kGrpo;
  double eps = 1e-6;               // Added to the standard deviation.
  bool drop_zero_variance = true;  // Groups whose rewards are all equal leave the loss.
};

struct Answer {
  uint64_t group_id = 0;
  double reward =
      0;  // As the verifier gave it: decides whether a group differs. Not finite: unscored.
  double score = 0;       // With penalties and KL: what the advantage is made of.
  bool excluded = false;  // Aborted or filtered: not a member of its group.
};

struct Advantages {
  std::vector<double> values;  // 0 where not in the loss.
  std::vector<uint8_t> kept;   // 1: in the loss.

  // Groups are those with at least one usable member; singles are not among the zero-variance ones.
  int64_t groups = 0;
  int64_t single_groups = 0;
  int64_t zero_variance_groups = 0;
  int64_t all_right_groups = 0;  // Zero variance with a reward above 0, and without.
  int64_t all_wrong_groups = 0;
};

Advantages group_advantages(std::span<const Answer> answers, const AdvantageOptions& options);

// DAPO's length penalty: 0 up to limit - buffer, falling to -1 at the limit.
double overlong_penalty(int64_t length, int64_t limit, int64_t buffer);

// Next KL weight: moves by at most a fifth of answers/horizon, towards `target` nats a token.
double adapted_kl_coef(double coef, double kl, double target, int64_t answers, int64_t horizon);

}  // namespace quadrille::learn
