#include "loop/train.h"

#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/rng.h"
#include "loop/evaluate.h"
#include "loop/run_checkpoint.h"
#include "loop/run_directory.h"
#include "loop/session.h"
#include "model/checkpoint_io.h"
#include "observe/metrics_jsonl.h"
#include "observe/plot.h"
#include "observe/progress.h"
#include "observe/tensorboard.h"
#include "text/dataset.h"

namespace quadrille::loop {
namespace {

// The run while it runs. Everything that decides the future is in `state_` or derived from the
// configuration.
class Run {
 public:
  Run(RunConfig config, bool resume, const Clock& clock, const StopFlag& stop)
      : session_(std::move(config), clock),
        clock_(clock),
        stop_(stop),
        directory_(session_.config.run.dir, resume),
        sampler_(session_.train_task->rows(), static_cast<uint64_t>(session_.config.run.seed),
                 session_.config.data.shuffle),
        progress_(clock) {
    if (resume) {
      tell_changes();
      restore();
    }
    write_file_atomic(directory_.config(), to_toml(session_.config));
    metrics_ = std::make_unique<observe::MetricsJsonl>(directory_.metrics());
    samples_ = std::make_unique<observe::JsonlWriter>(directory_.samples());
    if (session_.config.observe.tensorboard) {
      board_ = std::make_unique<observe::TensorBoardWriter>(directory_.root(), clock_,
                                                            state_.step > 0 ? state_.step + 1 : 0);
    }
  }

  Outcome run() {
    fmt::print("{}run: {} steps into {}\n", session_.summary(), session_.config.run.steps,
               directory_.root().string());
    std::fflush(stdout);
    started_ = clock_.now();
    first_step_ = state_.step;
    // Killed between the last checkpoint and the model's folder: only that is left to do.
    if (state_.step == session_.config.run.steps && state_.unfinished.empty() &&
        !std::filesystem::exists(directory_.model())) {
      finish();
      return Outcome::kDone;
    }
    if (state_.step >= session_.config.run.steps && state_.unfinished.empty()) {
      throw ConfigError(
          "the run in {} is at step {} of run.steps = {}: nothing to do; raise run.steps to go on",
          directory_.root().string(), state_.step, session_.config.run.steps);
    }
    if (!state_.unfinished.empty()) {
      Metrics metrics = state_.unfinished;
      if (!evaluate_into(metrics)) return interrupted();
      finish_step(metrics);
    }
    if (state_.step == 0 && session_.eval_task != nullptr) {
      Metrics metrics;
      if (!evaluate_into(metrics)) return interrupted();
      write(0, metrics);
    }
    while (state_.step < session_.config.run.steps) {
      if (stop_.requested()) return interrupted();
      if (!one_step()) return interrupted();
    }
    finish();
    return Outcome::kDone;
  }

 private:
  bool stopping() const { return stop_.requested(); }

  // To go on with other settings is allowed, and no longer the run that was stopped.
  void tell_changes() {
    if (!std::filesystem::exists(directory_.config())) return;
    for (const std::string& change :
         config_changes(read_file(directory_.config()), to_toml(session_.config))) {
      if (!change.starts_with("run.steps:")) log_warn("changed since the run began: {}", change);
    }
  }

  void restore() {
    const auto found = load_run_state(directory_.checkpoints(), session_);
    if (!found) {
      log_info("{} holds no checkpoint: the run starts afresh", directory_.checkpoints().string());
      directory_.cut_after(-1);
      return;
    }
    state_ = *found;
    sampler_ =
        text::Sampler(session_.train_task->rows(), static_cast<uint64_t>(session_.config.run.seed),
                      session_.config.data.shuffle, state_.sampler);
    session_.engine->weights_changed(state_.version);
    directory_.cut_after(state_.step);
    log_info("resuming after step {}", state_.step);
  }

  // False: interrupted; the step leaves no trace and is made again on resume.
  bool one_step() {
    const int64_t step = state_.step + 1;
    const TimePoint begin = clock_.now();
    text::Sampler sampler = sampler_;
    RunState next = state_;
    Metrics metrics;
    const std::vector<int64_t> rows = sampler.next(session_.config.algorithm.prompts_per_step);
    const bool made = session_.config.algorithm.is_sft() ? sft_step(rows, metrics)
                                                         : rl_step(step, rows, next, metrics);
    if (!made) return false;
    next.step = step;
    next.sampler = sampler.state();
    ++next.version;
    sampler_ = sampler;
    state_ = next;
    session_.engine->weights_changed(state_.version);
    metrics["time/step_seconds"] = seconds_between(begin, clock_.now());

    const bool last = step == session_.config.run.steps;
    if (session_.eval_task != nullptr && (last || step % session_.config.eval.every == 0)) {
      // Interrupted in its evaluation, the step is made and kept; resuming starts with the
      // evaluation.
      if (!evaluate_into(metrics)) {
        state_.unfinished = metrics;
        return false;
      }
    }
    finish_step(metrics);
    return true;
  }

  void finish_step(const Metrics& metrics) {
    const int64_t step = state_.step;
    state_.unfinished.clear();
    write(step, metrics);
    show(step, metrics);
    const int64_t every = session_.config.checkpoint.every;
    if (step == session_.config.run.steps || (every > 0 && step % every == 0)) save(metrics);
  }

  bool sft_step(const std::vector<int64_t>& rows, Metrics& metrics) {
    std::vector<learn::SftExample> examples;
    const std::optional<int32_t> end = session_.end_tokens.empty()
                                           ? std::nullopt
                                           : std::optional<int32_t>(session_.end_tokens.front());
    for (const int64_t row : rows) examples.push_back(session_.train_task->example(row, end));
    metrics = session_.trainer->sft_step(examples);
    return true;
  }

  bool rl_step(int64_t step, const std::vector<int64_t>& rows, RunState& next, Metrics& metrics) {
    RolloutPlan plan;
    plan.task = session_.train_task.get();
    plan.rows = rows;
    plan.samples = session_.config.algorithm.group_size;
    plan.sampling = session_.config.rollout.sampling(
        mix_seed(static_cast<uint64_t>(session_.config.run.seed), static_cast<uint64_t>(step)));
    plan.first_group_id = next.next_group_id;
    RolloutResult rollouts = roll_out(
        session_, plan, [this] { return stopping(); },
        [&](int64_t done, int64_t all) { show_rollout(step, done, all); });
    if (rollouts.interrupted) return false;
    next.next_group_id += rows.size();
    write_samples(rollouts, step, "train", session_.config.observe.samples_per_step);
    std::vector<Sample> samples;
    samples.reserve(rollouts.answers.size());
    for (Scored& answer : rollouts.answers) samples.push_back(std::move(answer.sample));
    metrics = session_.trainer->grpo_step(samples, state_.version);
    metrics.insert(rollouts.metrics.begin(), rollouts.metrics.end());
    return true;
  }

  bool evaluate_into(Metrics& metrics) {
    const Evaluation evaluation = evaluate(
        session_, [this] { return stopping(); },
        [&](int64_t done, int64_t all) { show_rollout(state_.step, done, all); });
    if (evaluation.rollouts.interrupted) return false;
    metrics.insert(evaluation.metrics.begin(), evaluation.metrics.end());
    write_samples(evaluation.rollouts, state_.step, "eval", INT64_MAX);
    return true;
  }

  void write_samples(const RolloutResult& rollouts, int64_t step, const std::string& split,
                     int64_t count) {
    for (const Scored& answer : rollouts.answers) {
      if (count-- <= 0) break;
      samples_->write_line(sample_line(answer, step, split));
    }
  }

  void write(int64_t step, const Metrics& metrics) {
    metrics_->write(step, metrics);
    if (board_) board_->write(step, metrics);
  }

  void show_rollout(int64_t step, int64_t done, int64_t all) {
    if (!progress_.live()) return;
    progress_.show(fmt::format("step {}/{}  answers {}/{}{}", step, session_.config.run.steps, done,
                               all, eta()));
  }

  std::string eta() const {
    const int64_t made = state_.step - first_step_;
    if (made <= 0) return "";
    const double each = seconds_between(started_, clock_.now()) / static_cast<double>(made);
    return fmt::format("  ETA {}",
                       observe::format_duration(
                           each * static_cast<double>(session_.config.run.steps - state_.step)));
  }

  void show(int64_t step, const Metrics& metrics) {
    const auto part = [&](const char* name, const char* label, int digits) {
      const auto it = metrics.find(name);
      return it == metrics.end() ? std::string()
                                 : fmt::format("  {} {:.{}f}", label, it->second, digits);
    };
    std::string line = fmt::format("step {}/{}", step, session_.config.run.steps);
    line += part("reward/mean", "reward", 3) + part("policy/loss", "loss", 4);
    line += part("policy/entropy", "entropy", 3) + part("eval/accuracy", "held-out", 3);
    line += part("time/rollout_seconds", "rollout s", 2) +
            part("time/policy_update_seconds", "update s", 2);
    if (const auto it = metrics.find("throughput/tokens_per_second"); it != metrics.end()) {
      line += fmt::format("  {} tok/s", observe::format_count(it->second));
    }
    progress_.show(line + eta(),
                   step == session_.config.run.steps || metrics.contains("eval/accuracy"));
  }

  void save(const Metrics& metrics) {
    const TimePoint begin = clock_.now();
    const auto accuracy = metrics.find("eval/accuracy");
    save_run_state(
        directory_.checkpoints(), state_, session_,
        accuracy == metrics.end() ? std::nullopt : std::optional<double>(accuracy->second));
    const std::string svg =
        observe::run_curves_svg(directory_.metrics(), directory_.root().filename().string());
    if (!svg.empty()) write_file_atomic(directory_.curves(), svg);
    log_debug("checkpoint of step {} took {:.2f} s", state_.step,
              seconds_between(begin, clock_.now()));
  }

  Outcome interrupted() {
    progress_.finish();
    if (state_.step > first_step_) save({});
    fmt::print("stopped after step {} of {}; go on with --resume\n", state_.step,
               session_.config.run.steps);
    return Outcome::kInterrupted;
  }

  void finish() {
    progress_.finish();
    model::SaveOptions options;
    options.dtype = session_.model->dtype();
    options.carry_from = session_.text_folder;
    options.end_tokens = session_.end_tokens;
    // Beside it first: a folder named model/ is whole.
    std::filesystem::path beside = directory_.model();
    beside += ".tmp";
    std::filesystem::remove_all(beside);
    model::save_model(*session_.model, beside, options);
    std::filesystem::remove_all(directory_.model());
    std::filesystem::rename(beside, directory_.model());
    fmt::print("done: {} steps in {}; model in {}, curves in {}\n", session_.config.run.steps,
               observe::format_duration(seconds_between(started_, clock_.now())),
               directory_.model().string(), directory_.curves().string());
  }

  Session session_;
  const Clock& clock_;
  const StopFlag& stop_;
  RunDirectory directory_;
  text::Sampler sampler_;
  observe::Progress progress_;
  RunState state_;
  TimePoint started_{};
  int64_t first_step_ = 0;
  std::unique_ptr<observe::MetricsJsonl> metrics_;
  std::unique_ptr<observe::JsonlWriter> samples_;
  std::unique_ptr<observe::TensorBoardWriter> board_;
};

}  // namespace

Outcome train(RunConfig config, const TrainOptions& options, const Clock& clock,
              const StopFlag& stop) {
  if (options.dry_run) {
    fmt::print("{}\n", to_toml(config));
    const Session session(std::move(config), clock);
    fmt::print("{}dry run: nothing was written\n", session.summary());
    return Outcome::kDone;
  }
  return Run(std::move(config), options.resume, clock, stop).run();
}

}  // namespace quadrille::loop
