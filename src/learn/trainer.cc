#include "learn/trainer.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/GradMode.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "learn/policy_metrics.h"
#include "learn/rollout_batch.h"
#include "learn/score.h"
#include "learn/update.h"

namespace quadrille::learn {
namespace {

at::Tensor to_device(const std::vector<double>& values, at::Device device) {
  return at::from_blob(const_cast<double*>(values.data()), {static_cast<int64_t>(values.size())},
                       at::kDouble)
      .to(device, at::kDouble, /*non_blocking=*/false, /*copy=*/true);
}

std::vector<double> to_host(const at::Tensor& tensor) {
  const at::Tensor host = tensor.to(at::kCPU, at::kDouble).contiguous();
  return {host.const_data_ptr<double>(), host.const_data_ptr<double>() + host.numel()};
}

// Checked before anything is built on it.
const AlgorithmConfig& valid(const AlgorithmConfig& algorithm,
                             const model::Transformer* reference) {
  algorithm.validate();
  if (algorithm.needs_reference() && reference == nullptr) {
    throw ConfigError("algorithm.kl_coef = {} needs a reference policy", algorithm.kl_coef);
  }
  return algorithm;
}

}  // namespace

struct Trainer::Impl {
  // Over the whole run; part of the state.
  struct Counters {
    int64_t single_groups = 0;
    int64_t all_right_groups = 0;
    int64_t all_wrong_groups = 0;
    int64_t missing_logprobs = 0;
  };

  model::Transformer& model;
  const model::Transformer* reference;
  const TrainerOptions options;
  const AlgorithmConfig& algorithm;
  const Clock& clock;
  Updater updater;
  Counters counters;
  double kl_coef;

  Impl(model::Transformer& m, const model::Transformer* ref, TrainerOptions o, const Clock& c)
      : model(m),
        reference(ref),
        options(std::move(o)),
        algorithm(valid(options.algorithm, ref)),
        clock(c),
        updater(m, algorithm, options.optimizer, options.total_steps),
        kl_coef(algorithm.kl_coef) {}

  at::Device device() const { return model.device(); }
  int64_t budget() const { return algorithm.micro_batch_tokens; }

  // ---- SFT --------------------------------------------------------------------------------------

  struct SftBatch {
    std::vector<TrainSequence> sequences;
    std::vector<std::vector<double>> weights;  // Aligned with each sequence's positions.
    MiniBatch mini;
  };

  SftBatch make_sft_batch(std::span<const SftExample> examples) const {
    SftBatch batch;
    for (size_t i = 0; i < examples.size(); ++i) {
      const SftExample& example = examples[i];
      QD_CHECK(example.tokens.size() >= 2 && example.weights.size() == example.tokens.size(),
               "example {}: {} tokens, {} weights", i, example.tokens.size(),
               example.weights.size());
      TrainSequence sequence;
      sequence.tokens = example.tokens;
      std::vector<double> weights;
      for (size_t t = 1; t < example.tokens.size(); ++t) {
        const double weight = example.weights[t];
        QD_CHECK(std::isfinite(weight) && weight >= 0, "example {}: weight {} at token {}", i,
                 weight, t);
        if (weight == 0) continue;
        sequence.positions.push_back(static_cast<int64_t>(t));
        weights.push_back(weight);
      }
      batch.sequences.push_back(std::move(sequence));
      batch.weights.push_back(std::move(weights));
    }
    for (const TrainSequence& sequence : batch.sequences) batch.mini.views.push_back(&sequence);
    batch.mini.counts = count(batch.mini.views);
    batch.mini.counts.trained_tokens = 0;
    for (const std::vector<double>& weights : batch.weights) {
      for (const double weight : weights) batch.mini.counts.trained_tokens += weight;
    }
    batch.mini.want_entropy = algorithm.entropy_coef > 0;
    return batch;
  }

  Metrics sft_step(std::span<const SftExample> examples) {
    const TimePoint begin = clock.now();
    const SftBatch batch = make_sft_batch(examples);
    StepTotals totals(model.config(), device());
    at::Tensor loss_sum = to_device({0.0}, device());
    const auto loss_of = [&](std::span<const size_t> chosen,
                             const tensor::TokenLogprobs& logprobs) {
      std::vector<double> weights;
      for (const size_t i : chosen) {
        for (const double weight : batch.weights[i]) {
          weights.push_back(weight / batch.mini.counts.trained_tokens);
        }
      }
      const at::Tensor weights_N = to_device(weights, device());
      at::Tensor loss = learn::sft_loss(logprobs.logprobs_N, weights_N);
      loss_sum.add_(loss.detach());
      if (batch.mini.want_entropy) {
        const at::Tensor entropy = (weights_N * logprobs.entropy_N.to(at::kDouble)).sum();
        loss = loss - entropy * algorithm.entropy_coef;
      }
      return loss;
    };
    updater.step(batch.mini, loss_of, totals);
    Metrics metrics;
    updater.add_metrics(totals, metrics);
    if (totals.mini_batches > 0) metrics["policy/loss"] = loss_sum.item<double>();
    metrics["time/policy_update_seconds"] = seconds_between(begin, clock.now());
    return metrics;
  }

  double sft_loss(std::span<const SftExample> examples) const {
    const SftBatch batch = make_sft_batch(examples);
    if (!(batch.mini.counts.trained_tokens > 0)) return 0;
    const auto logprobs = score(model, batch.mini.views, budget());
    double sum = 0;
    for (size_t i = 0; i < logprobs.size(); ++i) {
      for (size_t n = 0; n < logprobs[i].size(); ++n) sum -= batch.weights[i][n] * logprobs[i][n];
    }
    return sum / batch.mini.counts.trained_tokens;
  }

  // ---- GRPO -------------------------------------------------------------------------------------

  // Fills `field` of the chosen items by forward passes of `scorer`.
  void score_items(const model::Transformer& scorer, RolloutBatch& batch,
                   const std::vector<uint8_t>& chosen, std::vector<float> TrainItem::*field) const {
    std::vector<const TrainSequence*> views;
    std::vector<TrainItem*> items;
    for (size_t i = 0; i < batch.items.size(); ++i) {
      if (chosen[i] == 0) continue;
      views.push_back(&batch.items[i].sequence);
      items.push_back(&batch.items[i]);
    }
    auto lists = score(scorer, views, budget());
    for (size_t i = 0; i < items.size(); ++i) items[i]->*field = std::move(lists[i]);
  }

  // KL in the reward: with the old policy, which sampled the answer, and without gradient.
  void add_kl_rewards(RolloutBatch& batch, Metrics& metrics) {
    double sum = 0;
    double tokens = 0;
    double penalties = 0;
    int64_t answers = 0;
    for (TrainItem& item : batch.items) {
      if (item.excluded) continue;
      const auto tensor_of = [](const std::vector<float>& list) {
        return to_device({list.begin(), list.end()}, at::kCPU);
      };
      const double kl = token_kl(kl_kind(algorithm.kl), tensor_of(item.old), tensor_of(item.ref))
                            .sum()
                            .item<double>();
      item.kl_reward = kl_coef * kl;
      sum += kl;
      penalties += item.kl_reward;
      tokens += static_cast<double>(item.old.size());
      ++answers;
    }
    if (tokens == 0) return;
    metrics["policy/kl_ref"] = sum / tokens;
    metrics["reward/kl_in_reward_mean"] = penalties / static_cast<double>(answers);
  }

  // Strict mode: names the first token at which trainer and sampler part.
  void require_equal(const TrainItem& item, size_t n, double trainer, double sampler,
                     const char* what) const {
    if (trainer == sampler) return;
    throw Error(
        "strict mode: {} of sample {} (group {}), token {}: the trainer has log-probability "
        "{:.9g}, the sampler "
        "recorded {:.9g} with the same weights",
        what, item.sample, item.group_id, item.sequence.positions[n], trainer, sampler);
  }

  Metrics grpo_step(std::span<const Sample> samples, int64_t version) {
    QD_CHECK(!algorithm.is_sft(), "preset {}", algorithm.preset);
    Metrics metrics;
    add_sample_metrics(samples, metrics);
    const bool recompute = algorithm.recomputes_old_logprobs();
    RolloutBatch batch = make_batch(samples, algorithm, recompute, options.max_response_tokens);
    std::vector<uint8_t> members(batch.items.size());
    bool fresh = true;
    double penalties = 0;
    for (size_t i = 0; i < members.size(); ++i) {
      members[i] = batch.items[i].excluded ? 0 : 1;
      penalties += batch.items[i].penalty;
      for (const VersionSpan& span : samples[i].versions) fresh = fresh && span.version == version;
    }
    if (algorithm.overlong_buffer > 0 && !samples.empty()) {
      metrics["reward/overlong_mean"] = penalties / static_cast<double>(samples.size());
    }

    // Whose log-probabilities are needed when: KL in the reward needs both before advantages exist,
    // all else only for what stays in the loss.
    const auto score_old = [&](const std::vector<uint8_t>& chosen) {
      if (!recompute) return;
      const TimePoint begin = clock.now();
      score_items(model, batch, chosen, &TrainItem::old);
      metrics["time/old_logprob_seconds"] = seconds_between(begin, clock.now());
    };
    const auto score_reference = [&](const std::vector<uint8_t>& chosen) {
      const TimePoint begin = clock.now();
      score_items(*reference, batch, chosen, &TrainItem::ref);
      metrics["time/ref_logprob_seconds"] = seconds_between(begin, clock.now());
    };
    if (algorithm.kl_as_reward()) {
      score_old(members);
      score_reference(members);
      add_kl_rewards(batch, metrics);
    }
    const Advantages advantages = set_advantages(batch, algorithm);
    count_groups(batch, advantages, metrics);
    if (!algorithm.kl_as_reward()) {
      score_old(advantages.kept);
      if (algorithm.kl_as_loss()) score_reference(advantages.kept);
    }

    StepTotals totals(model.config(), device());
    PolicyTotals policy(device());
    if (recompute) compare_with_sampler(batch, advantages.kept, fresh, policy);
    const TimePoint begin = clock.now();
    const auto mini_batches = cut_mini_batches(batch, advantages.kept, algorithm.mini_batches);
    bool first = true;
    for (int64_t epoch = 0; epoch < algorithm.epochs; ++epoch) {
      for (const std::vector<const TrainItem*>& items : mini_batches) {
        policy_step(items, recompute, first, first && fresh && options.strict, totals, policy);
        first = first && totals.mini_batches == 0;
      }
    }
    updater.add_metrics(totals, metrics);
    policy.add_metrics(totals.mini_batches, algorithm.kl_as_loss(), metrics);
    metrics["time/policy_update_seconds"] = seconds_between(begin, clock.now());
    if (algorithm.needs_reference()) {
      metrics["policy/kl_coef"] = kl_coef;
      if (algorithm.kl_target > 0 && metrics.contains("policy/kl_ref")) {
        kl_coef = adapted_kl_coef(kl_coef, metrics["policy/kl_ref"], algorithm.kl_target,
                                  static_cast<int64_t>(samples.size()), algorithm.kl_horizon);
      }
    }
    return metrics;
  }

  void count_groups(const RolloutBatch& batch, const Advantages& advantages, Metrics& metrics) {
    counters.single_groups += advantages.single_groups;
    counters.all_right_groups += advantages.all_right_groups;
    counters.all_wrong_groups += advantages.all_wrong_groups;
    counters.missing_logprobs += batch.missing_logprobs;
    metrics["advantage/single_groups_total"] = static_cast<double>(counters.single_groups);
    metrics["advantage/zero_variance_all_right_total"] =
        static_cast<double>(counters.all_right_groups);
    metrics["advantage/zero_variance_all_wrong_total"] =
        static_cast<double>(counters.all_wrong_groups);
    metrics["mismatch/missing_logprobs_total"] = static_cast<double>(counters.missing_logprobs);
    double n = 0;
    double sum = 0;
    double squares = 0;
    for (size_t i = 0; i < advantages.values.size(); ++i) {
      if (advantages.kept[i] == 0) continue;
      n += 1;
      sum += advantages.values[i];
      squares += advantages.values[i] * advantages.values[i];
    }
    metrics["advantage/answers"] = n;
    if (n == 0) return;
    metrics["advantage/mean"] = sum / n;
    metrics["advantage/std"] =
        n > 1 ? std::sqrt(std::max(0.0, (squares - sum * sum / n) / (n - 1))) : 0.0;
  }

  // The recomputed old policy against what was recorded while sampling, over all kept tokens that
  // have a record.
  void compare_with_sampler(const RolloutBatch& batch, const std::vector<uint8_t>& kept, bool fresh,
                            PolicyTotals& policy) const {
    std::vector<double> old;
    std::vector<double> behaviour;
    for (size_t i = 0; i < batch.items.size(); ++i) {
      if (kept[i] == 0) continue;
      const TrainItem& item = batch.items[i];
      for (size_t n = 0; n < item.old.size(); ++n) {
        if (std::isnan(item.behaviour[n])) continue;
        if (options.strict && fresh) {
          require_equal(item, n, item.old[n], item.behaviour[n], "the old policy");
        }
        old.push_back(item.old[n]);
        behaviour.push_back(item.behaviour[n]);
      }
    }
    policy.add(mismatch(to_device(old, device()), to_device(behaviour, device())));
  }

  // One optimizer step on one mini-batch of a rollout batch. `first`: with the weights that the
  // batch began with.
  void policy_step(const std::vector<const TrainItem*>& items, bool recompute, bool first,
                   bool must_be_exact, StepTotals& totals, PolicyTotals& policy) {
    MiniBatch batch;
    for (const TrainItem* item : items) batch.views.push_back(&item->sequence);
    batch.counts = count(batch.views);
    batch.want_entropy = true;
    PolicyLossOptions loss_options = policy_loss_options(algorithm);
    if (algorithm.kl_as_loss()) loss_options.kl_coef = kl_coef;

    const auto loss_of = [&](std::span<const size_t> chosen,
                             const tensor::TokenLogprobs& logprobs) {
      std::vector<double> old, ref, advantages, weights;
      for (const size_t i : chosen) {
        const TrainItem& item = *items[i];
        const auto n = static_cast<size_t>(item.sequence.trained_tokens());
        old.insert(old.end(), item.old.begin(), item.old.end());
        ref.insert(ref.end(), item.ref.begin(), item.ref.end());
        advantages.insert(advantages.end(), n, item.advantage);
        weights.insert(weights.end(), n,
                       token_weight(aggregation(algorithm), item.sequence.trained_tokens(),
                                    batch.counts, algorithm.norm_length));
      }
      PolicyLossInput input;
      input.logprobs = logprobs.logprobs_N;
      input.old_logprobs = to_device(old, device());
      input.advantages = to_device(advantages, device());
      input.weights = to_device(weights, device());
      if (algorithm.kl_as_loss()) input.ref_logprobs = to_device(ref, device());
      input.entropy = logprobs.entropy_N;
      const PolicyLoss loss = policy_loss(input, loss_options);
      policy.add(loss);
      if (first) {
        policy.add_first(loss);
        if (!recompute) policy.add(mismatch(logprobs.logprobs_N.detach(), input.old_logprobs));
      }
      if (must_be_exact) {
        const std::vector<double> now = to_host(logprobs.logprobs_N.detach());
        size_t at = 0;
        for (const size_t i : chosen) {
          for (size_t n = 0; n < items[i]->old.size(); ++n, ++at) {
            require_equal(*items[i], n, now[at], items[i]->old[n], "the first step");
          }
        }
      }
      return loss.loss;
    };
    updater.step(batch, loss_of, totals);
  }
};

Trainer::Trainer(model::Transformer& model, const model::Transformer* reference,
                 TrainerOptions options, const Clock& clock)
    : impl_(std::make_unique<Impl>(model, reference, std::move(options), clock)) {}
Trainer::~Trainer() = default;

Metrics Trainer::sft_step(std::span<const SftExample> examples) {
  return impl_->sft_step(examples);
}
double Trainer::sft_loss(std::span<const SftExample> examples) const {
  return impl_->sft_loss(examples);
}
Metrics Trainer::grpo_step(std::span<const Sample> samples, int64_t version) {
  return impl_->grpo_step(samples, version);
}
int64_t Trainer::steps() const {
  return impl_->updater.counters.tried;
}

NamedTensors Trainer::weights() const {
  NamedTensors out = impl_->updater.optimizer().masters();
  for (const tensor::ParamPtr& param : impl_->model.parameters()) {
    if (!param->grad.defined()) out.emplace_back(param->name, param->value);
  }
  return out;
}

NamedTensors Trainer::moments() const {
  return impl_->updater.optimizer().moments();
}

std::string Trainer::state_json() const {
  const Updater::Counters& u = impl_->updater.counters;
  const Impl::Counters& c = impl_->counters;
  const nlohmann::json state = {{"updates", impl_->updater.optimizer().steps()},
                                {"tried", u.tried},
                                {"skipped_empty", u.skipped_empty},
                                {"skipped_not_finite", u.skipped_not_finite},
                                {"single_groups", c.single_groups},
                                {"all_right_groups", c.all_right_groups},
                                {"all_wrong_groups", c.all_wrong_groups},
                                {"missing_logprobs", c.missing_logprobs},
                                {"kl_coef", impl_->kl_coef}};
  return state.dump();
}

void Trainer::load(const std::function<at::Tensor(const std::string&)>& find,
                   const std::string& state_json) {
  Updater::Counters u;
  Impl::Counters c;
  int64_t updates = 0;
  double kl_coef = 0;
  try {
    const nlohmann::json state = nlohmann::json::parse(state_json);
    updates = state.at("updates").get<int64_t>();
    u.tried = state.at("tried").get<int64_t>();
    u.skipped_empty = state.at("skipped_empty").get<int64_t>();
    u.skipped_not_finite = state.at("skipped_not_finite").get<int64_t>();
    c.single_groups = state.at("single_groups").get<int64_t>();
    c.all_right_groups = state.at("all_right_groups").get<int64_t>();
    c.all_wrong_groups = state.at("all_wrong_groups").get<int64_t>();
    c.missing_logprobs = state.at("missing_logprobs").get<int64_t>();
    kl_coef = state.at("kl_coef").get<double>();
  } catch (const nlohmann::json::exception& error) {
    throw FormatError("trainer state of the checkpoint: {}", error.what());
  }
  impl_->updater.optimizer().load(find, updates);
  const c10::NoGradGuard no_grad;
  for (const tensor::ParamPtr& param : impl_->model.parameters()) {
    if (param->grad.defined()) continue;
    param->value.copy_(find(param->name));
    param->changed();
  }
  impl_->updater.counters = u;
  impl_->counters = c;
  // A fixed coefficient is what the configuration says now.
  if (impl_->algorithm.kl_target > 0) impl_->kl_coef = kl_coef;
}

}  // namespace quadrille::learn
