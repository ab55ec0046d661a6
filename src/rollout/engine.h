// Generation: many requests at once over one paged KV cache, one step at a time.
//
//   Engine engine(model, &tokenizer, {});
//   std::vector<Completion> answers = engine.run(requests);
//
// or, for whoever feeds it while it runs: add(), step(), take_finished().
//
// An answer is a pure function of (weights, prompt, sampling options, sample index). In fp32 its
// bits depend neither on the other requests nor on chunking, page limits or preemption, since
// kernels keep rows independent and draws are counted, not streamed. What was recorded about a
// token (log-probs, routes, version) is recorded once, when it is drawn, and kept if its sequence
// has to be computed again.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "rollout/request.h"
#include "rollout/runner.h"
#include "rollout/scheduler.h"
#include "rollout/sequence.h"

namespace quadrille::model {
class Transformer;
}
namespace quadrille::text {
class Tokenizer;
}

namespace quadrille::rollout {

struct EngineOptions {
  int64_t kv_cache_bytes = 0;    // 0: what the requests need, at most half of the free memory.
  int64_t max_running = 0;       // Sequences computed at a time; 0: 64 to 512, by the vocabulary.
  int64_t prefill_chunk = 2048;  // Prompt positions a step computes beside the decoding sequences.
  // Steps launched ahead of reading the last one's tokens: 0 or 1; -1: 0 on CPU, 1 on a device.
  // Answers are the same; a sequence that ends costs one row more.
  int64_t lag = -1;
  int64_t version = 0;  // Policy version of the weights.
};

struct Stats {
  int64_t running = 0;  // Sequences that hold pages.
  int64_t queued = 0;   // Unfinished samples that hold none.
  int64_t pages = 0, pages_used = 0;
  int64_t steps = 0;
  int64_t generated_tokens = 0;  // Drawn and kept.
  int64_t finished_samples = 0;
  SchedulerCounts scheduler;  // Prefill and shared tokens, preemptions.
};

class Engine {
 public:
  using TextFactory = std::function<std::unique_ptr<TokenText>()>;  // May be null: no text.
  // Pieces of one answer's text, in order, none of which a stop string can take back. Joined they
  // are its text.
  using TextListener =
      std::function<void(uint64_t request_id, int64_t sample, std::string_view piece)>;

  // The model must outlive the engine. Without a tokenizer there is no text and no stop string.
  Engine(const model::Transformer& model, const text::Tokenizer* tokenizer, EngineOptions options);
  Engine(std::unique_ptr<Runner> runner, TextFactory text, EngineOptions options);
  ~Engine();

  // Ids are unique among unfinished requests. Throws UsageError for options out of range, an empty
  // prompt, an id outside the vocabulary, and ConfigError for a request that could never fit,
  // naming the numbers.
  void add(Request request);
  // Computes one step; false when no work is left.
  bool step();
  bool has_work() const { return !groups_.empty(); }
  // What has finished since the last call, in the order of finishing.
  std::vector<Completion> take_finished();
  // Ends everything between two steps: unfinished samples finish as kAborted, with what they have.
  void abort_all();
  void abort(uint64_t request_id);

  struct RunHooks {
    std::function<bool()> stop_requested;        // Asked between steps; true: the rest is aborted.
    std::function<void(const Stats&)> progress;  // Told after each step.
  };
  // Adds, steps until done, returns all answers: requests in the given order, samples by index. The
  // engine must be idle.
  std::vector<Completion> run(std::vector<Request> requests, const RunHooks& hooks = {});

  // The weights have been replaced: cached keys and values are thrown away, unfinished sequences
  // are computed again under the new weights (their tokens stay), and what is drawn from now on is
  // of `version`.
  void weights_changed(int64_t version);
  int64_t version() const { return options_.version; }
  void set_text_listener(TextListener listener) { listener_ = std::move(listener); }
  Stats stats() const;

 private:
  struct Step;

  void check(const Request& request) const;
  void fit_cache();
  bool launch();
  void collect();
  void collect_all();
  void choose_draws(Step& step);
  at::Tensor input_tokens(const Step& step) const;
  tensor::Sampled draw(Step& step, const at::Tensor& hidden_TD);
  void record_routes(Step& step);
  void append(Sequence& sequence, int32_t token, const Step& step, int64_t row);
  void finish(Sequence& sequence, FinishReason reason);
  void open_text(Sequence& sequence);
  void tell_text(Sequence& sequence);
  void forget_if_done(Group& group);

  std::unique_ptr<Runner> runner_;
  RunnerShape shape_;
  TextFactory text_;
  EngineOptions options_;
  TextListener listener_;
  int64_t page_budget_ = 0;
  bool cache_checked_ = true;  // No request has come since the cache was last fitted.

  std::unordered_map<uint64_t, std::unique_ptr<Group>> groups_;
  std::unique_ptr<Scheduler> scheduler_;
  std::vector<std::unique_ptr<Step>> ring_;  // lag + 1 of them.
  int64_t launched_ = 0, collected_ = 0;
  int64_t next_order_ = 0;
  std::vector<Completion> finished_;
  Stats totals_;
};

}  // namespace quadrille::rollout
