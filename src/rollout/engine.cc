#include "rollout/engine.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/index_copy.h>
#include <ATen/ops/index_select.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "base/error.h"
#include "base/rng.h"
#include "rollout/memory.h"
#include "rollout/readback.h"
#include "rollout/step_buffers.h"

namespace quadrille::rollout {
namespace {

constexpr int64_t kDrawRows = 256;  // Rows of logits that are repeated at a time, at the least.
// Many rows share the reading of the weights; their logits stay under 128 MiB.
int64_t default_running(int64_t vocab) {
  return std::clamp<int64_t>((int64_t{1} << 25) / std::max<int64_t>(1, vocab), 64, 512);
}

constexpr int64_t kLeastCacheBytes = int64_t{64} << 20;

}  // namespace

// A step from its launch until its tokens are read.
struct Engine::Step {
  explicit Step(at::Device device) : buffers(device) {}

  StepPlan plan;
  std::vector<int64_t> draw_rows;
  std::vector<Draw> draws;
  StepBuffers buffers;
  tensor::Sampled sampled;
  Readback readback;
  bool routes = false;
  int64_t version = 0;
};

Engine::Engine(std::unique_ptr<Runner> runner, TextFactory text, EngineOptions options)
    : runner_(std::move(runner)),
      shape_(runner_->shape()),
      text_(std::move(text)),
      options_(options) {
  if (options_.max_running < 0 || options_.prefill_chunk < 1 || options_.kv_cache_bytes < 0) {
    throw UsageError(
        "max_running {} and kv_cache_bytes {} must be 0 or more, prefill_chunk {} at least 1",
        options_.max_running, options_.kv_cache_bytes, options_.prefill_chunk);
  }
  if (options_.max_running == 0) options_.max_running = default_running(shape_.vocab);
  if (options_.lag < 0) options_.lag = shape_.device.is_cpu() ? 0 : 1;
  QD_CHECK(options_.lag <= 1, "lag {}", options_.lag);
  const int64_t bytes = options_.kv_cache_bytes > 0
                            ? options_.kv_cache_bytes
                            : std::max(kLeastCacheBytes, free_memory_bytes(shape_.device) / 2);
  page_budget_ = std::min<int64_t>(bytes / shape_.page_bytes, std::numeric_limits<int32_t>::max());
  scheduler_ = std::make_unique<Scheduler>(
      Scheduler::Limits{0, options_.max_running, options_.prefill_chunk});
  for (int64_t i = 0; i <= options_.lag; ++i)
    ring_.push_back(std::make_unique<Step>(shape_.device));
}

Engine::~Engine() = default;

void Engine::check(const Request& request) const {
  request.sampling.validate();
  const auto prompt = static_cast<int64_t>(request.prompt.size());
  if (prompt == 0) throw UsageError("the prompt has no tokens");
  if (request.samples < 1) throw UsageError("samples must be at least 1, got {}", request.samples);
  if (request.max_new_tokens < 1) {
    throw UsageError("max_new_tokens must be at least 1, got {}", request.max_new_tokens);
  }
  if (!request.stop_strings.empty() && !text_) throw UsageError("stop strings need a tokenizer");
  for (const std::string& stop : request.stop_strings) {
    if (stop.empty()) throw UsageError("a stop string is empty");
  }
  for (const int32_t token : request.prompt) {
    if (token < 0 || token >= shape_.vocab) {
      throw UsageError("token {} is outside the vocabulary of {}", token, shape_.vocab);
    }
  }
  if (shape_.max_positions > 0 && prompt > shape_.max_positions) {
    throw UsageError("the prompt has {} tokens, the model takes {} positions", prompt,
                     shape_.max_positions);
  }
  if (groups_.contains(request.id)) throw UsageError("request {} is not finished yet", request.id);
}

void Engine::add(Request request) {
  check(request);
  if (shape_.max_positions > 0) {
    // The last token is drawn, not computed, so it may stand behind the last position.
    const int64_t room = shape_.max_positions - static_cast<int64_t>(request.prompt.size()) + 1;
    request.max_new_tokens = std::min(request.max_new_tokens, room);
  }
  const int64_t pages = Scheduler::pages_at_most(request);
  if (pages > page_budget_) {
    throw ConfigError(
        "a prompt of {} tokens with {} new ones needs {} cache pages of {} bytes, there is room "
        "for {}: raise "
        "kv_cache_bytes to {} or lower max_new_tokens",
        request.prompt.size(), request.max_new_tokens, pages, shape_.page_bytes, page_budget_,
        pages * shape_.page_bytes);
  }
  auto group = std::make_unique<Group>();
  group->request = std::move(request);
  const Request& kept = group->request;
  group->samples = std::vector<Sequence>(static_cast<size_t>(kept.samples));
  group->unfinished = kept.samples;
  for (size_t i = 0; i < group->samples.size(); ++i) {
    Sequence& sequence = group->samples[i];
    sequence.group = group.get();
    sequence.index = static_cast<int64_t>(i);
    sequence.order = next_order_++;
    sequence.seed = mix_seed(kept.sampling.seed, i);
  }
  scheduler_->add(*group);
  groups_.emplace(kept.id, std::move(group));
  cache_checked_ = false;
}

// Sizes the cache for what is asked, within the budget. It can only be replaced while nobody runs.
void Engine::fit_cache() {
  if (cache_checked_ || scheduler_->running() > 0) return;
  collect_all();
  cache_checked_ = true;
  int64_t wanted = 0;
  int64_t largest = 0;
  for (const auto& [id, group] : groups_) {
    const int64_t each = Scheduler::pages_at_most(group->request);
    const int64_t shared = group->prompt_tokens() / tensor::kPageTokens;
    wanted += shared + group->unfinished * (each - shared);
    largest = std::max(largest, each);
  }
  wanted = std::min(wanted, options_.max_running * largest);
  wanted = std::min(page_budget_, wanted + wanted / 32 + 1);  // What Scheduler::spare() keeps.
  if (wanted <= scheduler_->pool().pages()) return;
  scheduler_->forget_pages();
  scheduler_->resize(wanted);
  runner_->make_cache(wanted);
}

bool Engine::step() {
  if (!has_work()) return false;
  const at::NoGradGuard no_grad;
  fit_cache();
  const bool launched = launch();
  QD_CHECK(launched || launched_ != collected_,
           "nothing can run: {} samples queued, {} of {} pages used", scheduler_->queued(),
           scheduler_->pool().used(), scheduler_->pool().pages());
  while (launched_ - collected_ > (launched ? options_.lag : 0)) collect();
  return has_work();
}

bool Engine::launch() {
  Step& step = *ring_[static_cast<size_t>(launched_) % ring_.size()];
  scheduler_->plan(step.plan);
  if (step.plan.chunks.empty()) return false;
  choose_draws(step);
  step.buffers.build(step.plan, step.draw_rows, step.draws, runner_->cache());
  step.version = options_.version;
  model::Batch batch = step.buffers.batch;
  batch.tokens_T = input_tokens(step);
  model::ForwardExtras extras;
  extras.want_routes = step.routes;
  const at::Tensor hidden_TD = runner_->forward(batch, &extras);
  step.sampled = step.draws.empty() ? tensor::Sampled{} : draw(step, hidden_TD);
  step.readback.start(step.sampled, extras.routes_TK);

  for (size_t b = 0; b < step.draws.size(); ++b) {
    Sequence& sequence = *step.draws[b].sequence;
    ++sequence.unread;
    ++sequence.group->unread;
    sequence.drawn_row = static_cast<int64_t>(b);
  }
  std::vector<PageCopy> copies;
  for (const Chunk& chunk : step.plan.chunks) {
    if (chunk.draws && !chunk.sequence->group->drawn)
      scheduler_->fork(*chunk.sequence->group, copies);
  }
  if (!copies.empty()) {
    std::vector<int64_t> from, to;
    for (const PageCopy& copy : copies) {
      from.push_back(copy.from);
      to.push_back(copy.to);
    }
    const auto on_device = [&](std::vector<int64_t>& pages) {
      return at::from_blob(pages.data(), {static_cast<int64_t>(pages.size())}, at::kLong)
          .to(at::TensorOptions().device(shape_.device), /*non_blocking=*/false, /*copy=*/true);
    };
    runner_->copy_pages(on_device(from), on_device(to));
  }
  ++launched_;
  ++totals_.steps;
  return true;
}

// Which hidden rows tokens are drawn from, and for whom. The first draws of all samples of a group
// come from the last row of its prompt.
void Engine::choose_draws(Step& step) {
  step.draw_rows.clear();
  step.draws.clear();
  step.routes = false;
  int64_t row = 0;
  for (const Chunk& chunk : step.plan.chunks) {
    row += chunk.count;
    Group& group = *chunk.sequence->group;
    step.routes = step.routes || group.request.record_routes;
    if (!chunk.draws) continue;
    const auto source = static_cast<int64_t>(step.draw_rows.size());
    step.draw_rows.push_back(row - 1);
    if (group.drawn) {
      step.draws.push_back({chunk.sequence, source});
    } else {
      for (Sequence& sequence : group.samples) {
        if (sequence.state != SequenceState::kDone) step.draws.push_back({&sequence, source});
      }
    }
  }
  step.routes = step.routes && shape_.moe_layers > 0;
}

// Tokens that the host has not read yet go from the last step's draws straight into this step's
// inputs.
at::Tensor Engine::input_tokens(const Step& step) const {
  const StepBuffers& buffers = step.buffers;
  if (buffers.into_N.numel() == 0) return buffers.batch.tokens_T;
  const Step& last = *ring_[static_cast<size_t>(launched_ - 1) % ring_.size()];
  const at::Tensor& drawn_B = last.sampled.tokens_B;
  if (buffers.continues) return drawn_B.narrow(0, 0, step.plan.tokens);
  return buffers.batch.tokens_T.index_copy(0, buffers.into_N,
                                           drawn_B.index_select(0, buffers.from_N));
}

tensor::Sampled Engine::draw(Step& step, const at::Tensor& hidden_TD) {
  const StepBuffers& buffers = step.buffers;
  const auto rows = static_cast<int64_t>(step.draw_rows.size());
  const auto draws = static_cast<int64_t>(step.draws.size());
  // Every row draws, in order: decoding alone.
  const bool all_rows = rows == step.plan.tokens;
  const at::Tensor logits_UV =
      runner_->logits(all_rows ? hidden_TD : hidden_TD.index_select(0, buffers.rows_U));
  const int64_t part = std::max(options_.max_running, kDrawRows);
  if (draws == rows && draws <= part) return runner_->sample(logits_UV, buffers.params);
  // Large groups: their rows of logits are repeated, a part at a time.
  std::vector<at::Tensor> tokens, logprobs, sampling, tempered;
  for (int64_t begin = 0; begin < draws; begin += part) {
    const int64_t count = std::min(part, draws - begin);
    const auto cut = [&](const at::Tensor& tensor_B) { return tensor_B.narrow(0, begin, count); };
    const tensor::SamplingParams& all = buffers.params;
    const tensor::Sampled sampled =
        runner_->sample(logits_UV.index_select(0, cut(buffers.repeat_B)),
                        {cut(all.temperature_B), cut(all.top_k_B), cut(all.top_p_B),
                         cut(all.min_p_B), cut(all.seed_B), cut(all.counter_B)});
    tokens.push_back(sampled.tokens_B);
    logprobs.push_back(sampled.logprobs_B);
    sampling.push_back(sampled.sampling_logprobs_B);
    tempered.push_back(sampled.tempered_logprobs_B);
  }
  return {at::cat(tokens), at::cat(logprobs), at::cat(sampling), at::cat(tempered)};
}

void Engine::collect() {
  Step& step = *ring_[static_cast<size_t>(collected_) % ring_.size()];
  step.readback.wait();
  ++collected_;
  if (step.routes) record_routes(step);
  const int64_t* tokens = step.draws.empty() ? nullptr : step.readback.tokens();
  for (size_t b = 0; b < step.draws.size(); ++b) {
    Sequence& sequence = *step.draws[b].sequence;
    --sequence.unread;
    --sequence.group->unread;
    if (sequence.state != SequenceState::kDone) {
      append(sequence, static_cast<int32_t>(tokens[b]), step, static_cast<int64_t>(b));
    }
    forget_if_done(*sequence.group);
  }
}

void Engine::collect_all() {
  while (collected_ < launched_) collect();
}

// A position's route is kept from the first time it is computed; prompts are recorded once for the
// group.
void Engine::record_routes(Step& step) {
  const std::vector<at::Tensor>& routes_TK = step.readback.routes_TK();
  const int64_t width = shape_.moe_layers * shape_.top_k;
  int64_t row = 0;
  for (const Chunk& chunk : step.plan.chunks) {
    Sequence& sequence = *chunk.sequence;
    Group& group = *sequence.group;
    const int64_t prompt = group.prompt_tokens();
    for (int64_t i = 0; i < chunk.count; ++i, ++row) {
      if (!group.request.record_routes || sequence.state == SequenceState::kDone) continue;
      const int64_t position = chunk.begin + i;
      const bool in_prompt = position < prompt;
      std::vector<int32_t>& record = in_prompt ? group.prompt_routes : sequence.routes;
      if (static_cast<int64_t>(record.size()) != (in_prompt ? position : position - prompt) * width)
        continue;
      for (const at::Tensor& layer_TK : routes_TK) {
        const int32_t* ids = layer_TK.const_data_ptr<int32_t>() + row * shape_.top_k;
        record.insert(record.end(), ids, ids + shape_.top_k);
      }
    }
  }
}

void Engine::append(Sequence& sequence, int32_t token, const Step& step, int64_t row) {
  const Request& request = sequence.group->request;
  const auto at = static_cast<int64_t>(sequence.tokens.size());
  sequence.tokens.push_back(token);
  sequence.logprobs.push_back(step.readback.logprobs()[row]);
  sequence.sampling_logprobs.push_back(step.readback.sampling_logprobs()[row]);
  sequence.tempered_logprobs.push_back(step.readback.tempered_logprobs()[row]);
  if (sequence.versions.empty() || sequence.versions.back().version != step.version) {
    sequence.versions.push_back({at, at + 1, step.version});
  } else {
    sequence.versions.back().end = at + 1;
  }
  ++totals_.generated_tokens;

  bool stopped = false;
  if (!request.stop_strings.empty() || listener_) {
    open_text(sequence);
    stopped = sequence.text.append(sequence.decoder->push(token));
    tell_text(sequence);
  }
  const std::vector<int32_t>& ends = request.stop_tokens;
  if (std::find(ends.begin(), ends.end(), token) != ends.end()) {
    finish(sequence, FinishReason::kEos);
  } else if (stopped) {
    finish(sequence, FinishReason::kStopString);
  } else if (at + 1 == request.max_new_tokens) {
    finish(sequence, FinishReason::kLength);
  }
}

void Engine::finish(Sequence& sequence, FinishReason reason) {
  Group& group = *sequence.group;
  scheduler_->finish(sequence);
  if (text_) {
    if (sequence.decoder == nullptr) {
      open_text(sequence);
      for (const int32_t token : sequence.tokens)
        sequence.text.append(sequence.decoder->push(token));
    }
    sequence.text.append(sequence.decoder->finish());
    sequence.text.settle();
    tell_text(sequence);
  }
  Completion done;
  done.request_id = group.request.id;
  done.sample = sequence.index;
  done.seed = sequence.seed;
  if (group.request.record_routes && shape_.moe_layers > 0 && !sequence.tokens.empty()) {
    done.routing.moe_layers = shape_.moe_layers;
    done.routing.top_k = shape_.top_k;
    std::vector<int32_t>& ids = done.routing.ids;
    ids.reserve(group.prompt_routes.size() + sequence.routes.size());
    ids.insert(ids.end(), group.prompt_routes.begin(), group.prompt_routes.end());
    ids.insert(ids.end(), sequence.routes.begin(), sequence.routes.end());
    // One more position may have been computed than a sequence that ends early needs.
    const size_t positions = group.request.prompt.size() + sequence.tokens.size() - 1;
    const size_t width = static_cast<size_t>(shape_.moe_layers * shape_.top_k);
    QD_CHECK(ids.size() >= positions * width, "{} route ids for {} positions", ids.size(),
             positions);
    ids.resize(positions * width);
  }
  done.tokens = std::move(sequence.tokens);
  done.logprobs = std::move(sequence.logprobs);
  done.sampling_logprobs = std::move(sequence.sampling_logprobs);
  done.tempered_logprobs = std::move(sequence.tempered_logprobs);
  done.versions = std::move(sequence.versions);
  done.finish = reason;
  done.text = sequence.text.text();
  finished_.push_back(std::move(done));
  ++totals_.finished_samples;
}

void Engine::open_text(Sequence& sequence) {
  if (sequence.decoder != nullptr) return;
  sequence.decoder = text_();
  sequence.text = StopText(&sequence.group->request.stop_strings);
}

void Engine::tell_text(Sequence& sequence) {
  if (!listener_) return;
  const std::string_view piece = sequence.text.take_settled();
  if (!piece.empty()) listener_(sequence.group->request.id, sequence.index, piece);
}

void Engine::forget_if_done(Group& group) {
  if (group.unfinished == 0 && group.unread == 0) groups_.erase(group.request.id);
}

std::vector<Completion> Engine::take_finished() {
  return std::exchange(finished_, {});
}

void Engine::abort(uint64_t request_id) {
  collect_all();
  const auto found = groups_.find(request_id);
  if (found == groups_.end()) return;
  Group& group = *found->second;
  for (Sequence& sequence : group.samples) {
    if (sequence.state != SequenceState::kDone) finish(sequence, FinishReason::kAborted);
  }
  forget_if_done(group);
}

void Engine::abort_all() {
  collect_all();
  std::vector<uint64_t> ids;
  for (const auto& [id, group] : groups_) ids.push_back(id);
  for (const uint64_t id : ids) abort(id);
}

std::vector<Completion> Engine::run(std::vector<Request> requests, const RunHooks& hooks) {
  QD_CHECK(!has_work() && finished_.empty(), "run() needs an idle engine");
  std::unordered_map<uint64_t, size_t> first;  // Where the samples of a request go.
  size_t total = 0;
  try {
    for (Request& request : requests) {
      first.emplace(request.id, total);
      total += static_cast<size_t>(std::max<int64_t>(0, request.samples));
      add(std::move(request));
    }
  } catch (...) {
    abort_all();
    finished_.clear();
    throw;
  }
  while (has_work()) {
    if (hooks.stop_requested && hooks.stop_requested()) {
      abort_all();
      break;
    }
    step();
    if (hooks.progress) hooks.progress(stats());
  }
  std::vector<Completion> ordered(total);
  for (Completion& done : finished_) {
    const size_t at = first.at(done.request_id) + static_cast<size_t>(done.sample);
    ordered[at] = std::move(done);
  }
  finished_.clear();
  return ordered;
}

void Engine::weights_changed(int64_t version) {
  QD_CHECK(version >= options_.version, "version {} after {}", version, options_.version);
  collect_all();
  scheduler_->forget_pages();
  options_.version = version;
}

Stats Engine::stats() const {
  Stats stats = totals_;
  stats.running = scheduler_->running();
  stats.queued = scheduler_->queued();
  stats.pages = scheduler_->pool().pages();
  stats.pages_used = scheduler_->pool().used();
  stats.scheduler = scheduler_->counts();
  return stats;
}

}  // namespace quadrille::rollout
