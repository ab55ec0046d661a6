#include "loop/rollout_phase.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/rng.h"

namespace quadrille::loop {
namespace {

void score(Session& session, RolloutResult& result) {
  std::vector<reward::RewardItem> items;
  items.reserve(result.answers.size());
  for (size_t i = 0; i < result.answers.size(); ++i) {
    const Scored& answer = result.answers[i];
    items.push_back({std::to_string(i), answer.prompt, answer.sample.text, answer.row});
  }
  const std::vector<reward::RewardResult> scores = session.reward->score(items);
  int64_t errors = 0;
  for (size_t i = 0; i < scores.size(); ++i) {
    result.answers[i].sample.reward = scores[i].reward;
    result.answers[i].sample.reward_parts = scores[i].parts;
    result.answers[i].error = scores[i].error;
    result.answers[i].extracted = scores[i].extracted;
    errors += std::isnan(scores[i].reward) ? 1 : 0;
  }
  result.metrics["reward/errors"] = static_cast<double>(errors);
}

}  // namespace

RolloutResult roll_out(Session& session, const RolloutPlan& plan, const std::function<bool()>& stop,
                       const std::function<void(int64_t, int64_t)>& progress) {
  RolloutResult result;
  const TimePoint start = session.clock.now();
  std::vector<rollout::Request> requests;
  std::vector<Prompt> prompts;
  for (size_t i = 0; i < plan.rows.size(); ++i) {
    prompts.push_back(plan.task->prompt(plan.rows[i]));
    rollout::Request request;
    request.id = plan.first_group_id + i;
    request.prompt = prompts.back().tokens;
    request.samples = plan.samples;
    request.sampling = plan.sampling;
    request.sampling.seed = mix_seed(plan.sampling.seed, i);
    request.stop_tokens = session.end_tokens;
    request.stop_strings = session.config.rollout.stop;
    request.max_new_tokens = session.config.rollout.max_new_tokens;
    request.record_routes = session.config.rollout.record_routes;
    requests.push_back(std::move(request));
  }
  const auto all = static_cast<int64_t>(plan.rows.size()) * plan.samples;
  const rollout::Stats before = session.engine->stats();
  rollout::Engine::RunHooks hooks;
  hooks.stop_requested = [&] {
    result.interrupted = result.interrupted || stop();
    return result.interrupted;
  };
  hooks.progress = [&](const rollout::Stats& stats) {
    progress(stats.finished_samples - before.finished_samples, all);
  };
  const std::vector<rollout::Completion> completions = session.engine->run(requests, hooks);
  if (result.interrupted) return result;

  int64_t tokens = 0;
  for (const rollout::Completion& completion : completions) {
    const auto index = static_cast<size_t>(completion.request_id - plan.first_group_id);
    Scored answer;
    answer.sample = rollout::to_sample(requests[index], completion);
    answer.sample.prompt_index = plan.rows[index];
    answer.prompt = prompts[index].text;
    answer.row = prompts[index].fields;
    tokens += static_cast<int64_t>(completion.tokens.size());
    result.answers.push_back(std::move(answer));
  }
  const TimePoint generated = session.clock.now();
  score(session, result);
  const TimePoint scored = session.clock.now();
  const rollout::Stats after = session.engine->stats();
  const double seconds = seconds_between(start, generated);
  result.metrics["time/rollout_seconds"] = seconds;
  result.metrics["time/reward_seconds"] = seconds_between(generated, scored);
  result.metrics["throughput/rollout_tokens_per_second"] =
      static_cast<double>(tokens) / std::max(1e-9, seconds);
  result.metrics["rollout/preemptions"] =
      static_cast<double>(after.scheduler.preemptions - before.scheduler.preemptions);
  return result;
}

std::string sample_line(const Scored& answer, int64_t step, const std::string& split) {
  nlohmann::ordered_json line;
  line["step"] = step;
  line["split"] = split;
  line["row"] = answer.sample.prompt_index;
  line["prompt"] = answer.prompt;
  line["completion"] = answer.sample.text;
  if (answer.row->contains("answer")) line["answer"] = answer.row->at("answer");
  line["reward"] = std::isnan(answer.sample.reward) ? nlohmann::ordered_json()
                                                    : nlohmann::ordered_json(answer.sample.reward);
  if (answer.sample.reward_parts.size() > 1) line["reward_parts"] = answer.sample.reward_parts;
  if (!answer.error.empty()) line["error"] = answer.error;
  line["tokens"] = answer.sample.response_tokens();
  line["finish_reason"] = public_name(answer.sample.finish);
  return line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace quadrille::loop
