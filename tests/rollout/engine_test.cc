// Whatever the limits, the engine gives the answers that drawing one token after the other gives,
// and leaves nothing behind.
#include "rollout/engine.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "base/error.h"
#include "rollout/fake_runner.h"

namespace quadrille::rollout {
namespace {

struct Bench {
  explicit Bench(EngineOptions options, int64_t max_positions = 0) {
    auto owned = std::make_unique<FakeRunner>(max_positions);
    runner = owned.get();
    engine = std::make_unique<Engine>(std::move(owned), fake_text(), options);
  }
  FakeRunner* runner;
  std::unique_ptr<Engine> engine;
};

Request make_request(uint64_t id, int64_t prompt_tokens, int64_t samples, int64_t max_new_tokens) {
  Request request;
  request.id = id;
  for (int64_t i = 0; i < prompt_tokens; ++i) {
    request.prompt.push_back(static_cast<int32_t>(mix_seed(id, static_cast<uint64_t>(i)) % kVocab));
  }
  request.samples = samples;
  request.sampling.seed = id * 31;
  request.max_new_tokens = max_new_tokens;
  return request;
}

// Prompts around page borders, groups of all sizes, every way to end.
std::vector<Request> mixed_requests() {
  std::vector<Request> requests;
  uint64_t id = 0;
  for (const int64_t prompt : {1, 15, 16, 17, 31, 32, 33, 50}) {
    for (const int64_t samples : {1, 3, 6}) {
      Request request =
          make_request(id, prompt, samples, id % 5 == 0 ? 1 : 10 + static_cast<int64_t>(id) % 23);
      ++id;
      request.record_routes = id % 2 == 0;
      if (id % 3 == 0) request.stop_tokens = {3, 17, 28};
      if (id % 4 == 0) request.stop_strings = {"abca", "bbb", "c c"};
      if (id % 7 == 0) request.sampling.temperature = 0;
      requests.push_back(std::move(request));
    }
  }
  return requests;
}

void expect_plain_answers(const std::vector<Request>& requests,
                          const std::vector<Completion>& answers, const std::string& where) {
  size_t at = 0;
  for (const Request& request : requests) {
    for (int64_t sample = 0; sample < request.samples; ++sample, ++at) {
      ASSERT_LT(at, answers.size());
      expect_same(answers[at], plain_answer(request, sample),
                  fmt::format("{} answer {}", where, at));
    }
  }
  EXPECT_EQ(at, answers.size());
}

void expect_idle(const Engine& engine) {
  EXPECT_FALSE(engine.has_work());
  EXPECT_EQ(engine.stats().running, 0);
  EXPECT_EQ(engine.stats().queued, 0);
  EXPECT_EQ(engine.stats().pages_used, 0);
}

TEST(Engine, AnswersDoNotDependOnLimits) {
  const std::vector<Request> requests = mixed_requests();
  int64_t most_needed = 0;
  for (const Request& request : requests) {
    most_needed = std::max(most_needed, Scheduler::pages_at_most(request));
  }
  int64_t preemptions = 0;
  for (const int64_t lag : {0, 1}) {
    for (const int64_t max_running : {1, 2, 5, 16, 300}) {
      for (const int64_t prefill_chunk : {1, 16, 37, 4096}) {
        for (const int64_t pages : {most_needed, most_needed + 3, most_needed * 4, int64_t{0}}) {
          EngineOptions options;
          options.lag = lag;
          options.max_running = max_running;
          options.prefill_chunk = prefill_chunk;
          options.kv_cache_bytes = pages * kPageBytes;
          const std::string where = fmt::format("lag {} max_running {} prefill_chunk {} pages {}",
                                                lag, max_running, prefill_chunk, pages);
          Bench bench(options);
          const auto answers = bench.engine->run(requests);
          expect_plain_answers(requests, answers, where);
          expect_idle(*bench.engine);
          EXPECT_LE(bench.runner->most_sequences, max_running) << where;
          EXPECT_LE(bench.runner->largest_batch, max_running + prefill_chunk) << where;
          preemptions += bench.engine->stats().scheduler.preemptions;
          if (HasFailure()) return;
        }
      }
    }
  }
  EXPECT_GT(preemptions, 300);  // Or the page limits tested nothing.
}

TEST(Engine, OrderOfRequestsDoesNotMatter) {
  std::vector<Request> requests = mixed_requests();
  std::reverse(requests.begin(), requests.end());
  std::swap(requests[3], requests[11]);
  Bench bench({});
  expect_plain_answers(requests, bench.engine->run(requests), "reversed");
}

TEST(Engine, RequestsMayComeWhileItRuns) {
  for (const int64_t lag : {0, 1}) {
    EngineOptions options;
    options.lag = lag;
    options.max_running = 4;
    Bench bench(options);
    const std::vector<Request> requests = mixed_requests();
    std::map<std::pair<uint64_t, int64_t>, Completion> answers;
    size_t next = 0;
    do {
      // Larger ones come later, so that the cache has to be made anew in between.
      if (next < requests.size() && bench.runner->steps % 3 == 0)
        bench.engine->add(requests[next++]);
      if (!bench.engine->has_work()) bench.engine->add(requests[next++]);
      bench.engine->step();
      for (Completion& done : bench.engine->take_finished()) {
        const auto key = std::pair(done.request_id, done.sample);
        EXPECT_TRUE(answers.emplace(key, std::move(done)).second) << "an answer came twice";
      }
    } while (bench.engine->has_work() || next < requests.size());
    std::vector<Completion> ordered;
    for (auto& [key, done] : answers) ordered.push_back(std::move(done));
    expect_plain_answers(requests, ordered, "one by one");
    expect_idle(*bench.engine);
  }
}

TEST(Engine, PromptIsComputedOnceForItsGroup) {
  Bench bench({});
  const std::vector<Request> requests = {make_request(1, 40, 8, 5)};
  expect_plain_answers(requests, bench.engine->run(requests), "group");
  EXPECT_EQ(bench.runner->logit_rows, 1 + 8 * 4);  // One row for all first draws.
  EXPECT_EQ(bench.runner->copied_pages,
            7);  // 40 = 2 pages and a half; sample 0 keeps the first copy.
  EXPECT_EQ(bench.engine->stats().scheduler.prefill_tokens, 40);
  EXPECT_EQ(bench.engine->stats().scheduler.prefix_tokens, 7 * 40);
  EXPECT_EQ(bench.engine->stats().steps, 5);
}

TEST(Engine, FullPagesAreSharedWithoutCopies) {
  Bench bench({});
  const std::vector<Request> requests = {make_request(1, 32, 5, 3)};
  expect_plain_answers(requests, bench.engine->run(requests), "two pages");
  EXPECT_EQ(bench.runner->copied_pages, 0);
}

TEST(Engine, LateSamplesTakeThePrefix) {
  EngineOptions options;
  options.max_running = 2;
  Bench bench(options);
  const std::vector<Request> requests = {make_request(1, 40, 7, 5)};
  expect_plain_answers(requests, bench.engine->run(requests), "late");
  // The prompt once, and for the five late samples its last half page with the token already drawn.
  EXPECT_EQ(bench.engine->stats().scheduler.prefill_tokens, 40 + 5 * 9);
  EXPECT_EQ(bench.engine->stats().scheduler.prefix_hits, 6);
}

TEST(Engine, OneTokenAnswersTakeNoStepMore) {
  Bench bench({});
  const std::vector<Request> requests = {make_request(1, 20, 4, 1), make_request(2, 5, 1, 1)};
  expect_plain_answers(requests, bench.engine->run(requests), "one token");
  EXPECT_EQ(bench.engine->stats().steps, 1);
  EXPECT_EQ(bench.runner->copied_pages, 0);
}

TEST(Engine, HugeGroupsAreDrawnInParts) {
  const std::vector<Request> requests = {make_request(1, 20, 700, 3)};
  for (const int64_t lag : {0, 1}) {
    EngineOptions options;
    options.lag = lag;
    Bench bench(options);
    expect_plain_answers(requests, bench.engine->run(requests), "700 samples");
    expect_idle(*bench.engine);
  }
}

TEST(Engine, AnswersEndAtTheLastPosition) {
  Bench bench({}, /*max_positions=*/24);
  Request request = make_request(1, 20, 1, 100);
  const auto answers = bench.engine->run({request});
  EXPECT_EQ(answers[0].tokens.size(),
            5U);  // Inputs at positions 20 .. 23, and the last one is only drawn.
  EXPECT_EQ(answers[0].finish, FinishReason::kLength);
  EXPECT_THROW(bench.engine->add(make_request(1, 25, 1, 1)), UsageError);
}

TEST(Engine, NewWeightsLeaveNothingStale) {
  for (const int64_t lag : {0, 1}) {
    EngineOptions options;
    options.lag = lag;
    options.max_running = 5;
    options.version = 3;
    Bench bench(options);
    std::vector<Request> requests = {make_request(1, 40, 8, 12), make_request(2, 33, 1, 12)};
    for (Request& request : requests) {
      request.record_routes = true;
      bench.engine->add(request);
    }
    for (int i = 0; i < 4; ++i) bench.engine->step();
    bench.runner->weights = 8;
    bench.engine->weights_changed(5);
    while (bench.engine->step()) {
    }
    const std::vector<Completion> answers = bench.engine->take_finished();
    EXPECT_EQ(answers.size(), 9U);
    int64_t spans = 0;
    for (const Completion& answer : answers) {
      const Request& request = requests[answer.request_id - 1];
      const Sample sample = to_sample(request, answer);
      sample.validate();
      spans += static_cast<int64_t>(answer.versions.size());
      // Tokens of version 3 are those of the old weights; the rest follow from them under the new
      // ones.
      const Completion old_answer = plain_answer(request, answer.sample, 7);
      uint64_t context = 8;
      for (const int32_t token : request.prompt) context = extend(context, token);
      for (const VersionSpan& span : answer.versions) {
        for (int64_t i = span.begin; i < span.end; ++i) {
          const auto at = static_cast<size_t>(i);
          if (span.version == 3) {
            EXPECT_EQ(answer.tokens[at], old_answer.tokens[at]);
            EXPECT_EQ(answer.logprobs[at], old_answer.logprobs[at]);
          } else {
            EXPECT_EQ(span.version, 5);
            EXPECT_EQ(answer.tokens[at], fake_draw(context, 1, answer.seed, i).token);
          }
          context = extend(context, answer.tokens[at]);
        }
      }
    }
    EXPECT_GT(spans, 9);
    expect_idle(*bench.engine);
  }
}

TEST(Engine, StopsBetweenStepsWhenAsked) {
  for (const int64_t lag : {0, 1}) {
    EngineOptions options;
    options.lag = lag;
    options.max_running = 3;
    Bench bench(options);
    const std::vector<Request> requests = {make_request(1, 20, 2, 30), make_request(2, 20, 6, 30)};
    int steps = 0;
    Engine::RunHooks hooks;
    hooks.stop_requested = [&] { return steps++ == 5; };
    const auto answers = bench.engine->run(requests, hooks);
    ASSERT_EQ(answers.size(), 8U);
    for (const Completion& answer : answers) {
      EXPECT_EQ(answer.finish, FinishReason::kAborted);
      const Completion whole = plain_answer(requests[answer.request_id - 1], answer.sample);
      ASSERT_LT(answer.tokens.size(), whole.tokens.size());
      EXPECT_TRUE(std::equal(answer.tokens.begin(), answer.tokens.end(), whole.tokens.begin()));
    }
    EXPECT_EQ(answers[0].tokens.size(), 5U);
    expect_idle(*bench.engine);
    expect_plain_answers(requests, bench.engine->run(requests), "after an abort");
  }
}

TEST(Engine, OneRequestCanBeAborted) {
  Bench bench({});
  const std::vector<Request> requests = {make_request(1, 20, 3, 30), make_request(2, 20, 2, 30)};
  for (const Request& request : requests) bench.engine->add(request);
  for (int i = 0; i < 4; ++i) bench.engine->step();
  bench.engine->abort(1);
  while (bench.engine->step()) {
  }
  const auto answers = bench.engine->take_finished();
  ASSERT_EQ(answers.size(), 5U);
  for (const Completion& answer : answers) {
    if (answer.request_id == 2)
      expect_same(answer, plain_answer(requests[1], answer.sample), "kept");
  }
  expect_idle(*bench.engine);
}

TEST(Engine, StreamedTextIsTheText) {
  EngineOptions options;
  options.max_running = 4;
  Bench bench(options);
  std::vector<Request> requests = mixed_requests();
  for (Request& request : requests) request.stop_strings = {"abca", "bbb", "c c"};
  std::map<std::pair<uint64_t, int64_t>, std::string> streamed;
  bench.engine->set_text_listener([&](uint64_t id, int64_t sample, std::string_view piece) {
    streamed[{id, sample}] += piece;
  });
  for (const Completion& answer : bench.engine->run(requests)) {
    EXPECT_EQ((streamed[{answer.request_id, answer.sample}]), answer.text);
  }
}

TEST(Engine, SamplesCarryWhatTheTrainerNeeds) {
  Bench bench({});
  Request request = make_request(9, 20, 2, 10);
  request.stop_tokens = {3, 17, 28};
  request.record_routes = true;
  request.sampling.temperature = 0.5;
  for (const Completion& answer : bench.engine->run({request})) {
    const Sample sample = to_sample(request, answer);
    sample.validate();
    EXPECT_EQ(sample.group_id, 9U);
    EXPECT_EQ(sample.prompt_tokens, 20);
    EXPECT_EQ(sample.response_tokens(), static_cast<int64_t>(answer.tokens.size()));
    EXPECT_EQ(sample.loss_mask.back(), 1);  // The end token too.
    EXPECT_TRUE(std::isnan(sample.logprobs[19]));
    EXPECT_EQ(sample.logprobs[20], answer.tempered_logprobs[0]);
    EXPECT_EQ(sample.temperature, 0.5F);
  }
}

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(Engine, RefusesWhatCannotBeDone) {
  EngineOptions options;
  options.kv_cache_bytes = 3 * kPageBytes;
  Bench bench(options);
  Engine& engine = *bench.engine;
  const auto changed = [&](const std::function<void(Request&)>& change) {
    Request request = make_request(1, 10, 1, 5);
    change(request);
    return message_of([&] { engine.add(request); });
  };
  EXPECT_EQ(changed([](Request& r) { r.prompt.clear(); }), "the prompt has no tokens");
  EXPECT_EQ(changed([](Request& r) { r.prompt[2] = 40; }),
            "token 40 is outside the vocabulary of 40");
  EXPECT_EQ(changed([](Request& r) { r.max_new_tokens = 0; }),
            "max_new_tokens must be at least 1, got 0");
  EXPECT_EQ(changed([](Request& r) { r.samples = 0; }), "samples must be at least 1, got 0");
  EXPECT_EQ(changed([](Request& r) { r.sampling.top_p = 0; }),
            "top_p must be above 0 and at most 1, got 0");
  EXPECT_EQ(changed([](Request& r) { r.sampling.temperature = -1; }),
            "temperature must be 0 or more, got -1");
  EXPECT_EQ(changed([](Request& r) { r.stop_strings = {""}; }), "a stop string is empty");
  EXPECT_EQ(changed([](Request& r) { r.max_new_tokens = 40; }),
            "a prompt of 10 tokens with 40 new ones needs 4 cache pages of 1000 bytes, there is "
            "room for 3: raise "
            "kv_cache_bytes to 4000 or lower max_new_tokens");
  EXPECT_EQ(changed([](Request& r) { r.max_new_tokens = 39; }),
            "no error");  // 10 + 38 positions: three pages.
  EXPECT_EQ(changed([](Request&) {}), "request 1 is not finished yet");
  Engine mute(std::make_unique<FakeRunner>(), nullptr, {});
  Request stops = make_request(1, 10, 1, 5);
  stops.stop_strings = {"x"};
  EXPECT_EQ(message_of([&] { mute.add(stops); }), "stop strings need a tokenizer");
  // A bad request among good ones leaves nothing behind.
  EXPECT_THROW(mute.run({make_request(1, 10, 1, 5), make_request(2, 0, 1, 5)}), UsageError);
  expect_idle(mute);
  EXPECT_TRUE(mute.take_finished().empty());
}

}  // namespace
}  // namespace quadrille::rollout
