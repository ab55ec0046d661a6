#include "rollout/scheduler.h"

#include <gtest/gtest.h>

#include <array>

#include "base/error.h"
#include "rollout/page_pool.h"

namespace quadrille::rollout {
namespace {

TEST(PagePool, CountsHolders) {
  PagePool pool(4);
  std::vector<int32_t> a, b;
  EXPECT_TRUE(pool.allocate(3, a));
  EXPECT_FALSE(pool.allocate(2, b));
  EXPECT_TRUE(b.empty());
  pool.share(a, 2, b);
  EXPECT_EQ(pool.used(), 3);
  pool.release(a);
  EXPECT_EQ(pool.used(), 2);
  EXPECT_TRUE(pool.allocate(2, a));
  EXPECT_EQ(pool.available(), 0);
  pool.release(b);
  pool.release(a);
  EXPECT_EQ(pool.used(), 0);
  a = {1};
  EXPECT_THROW(pool.release(a), InternalError);
  EXPECT_THROW(pool.share(a, 1, b), InternalError);
}

Group make_group(int64_t prompt, int64_t samples, int64_t max_new_tokens) {
  Group group;
  group.request.prompt.assign(static_cast<size_t>(prompt), 1);
  group.request.samples = samples;
  group.request.max_new_tokens = max_new_tokens;
  group.samples = std::vector<Sequence>(static_cast<size_t>(samples));
  group.unfinished = samples;
  return group;
}

// A group is named by address, so it is wired where it will stay.
void wire(Group& group, int64_t order) {
  for (Sequence& sequence : group.samples) {
    sequence.group = &group;
    sequence.order = order++;
  }
}

void draw_all(const StepPlan& plan, Scheduler& scheduler) {
  std::vector<PageCopy> copies;
  for (const Chunk& chunk : plan.chunks) {
    if (!chunk.draws) continue;
    Group& group = *chunk.sequence->group;
    if (group.drawn) {
      chunk.sequence->tokens.push_back(1);
    } else {
      for (Sequence& sequence : group.samples) sequence.tokens.push_back(1);
      scheduler.fork(group, copies);
    }
  }
}

TEST(Scheduler, MixesChunksWithDecoding) {
  Scheduler scheduler({.pages = 100, .max_running = 8, .prefill_chunk = 10});
  Group a = make_group(4, 1, 50), b = make_group(25, 1, 50);
  wire(a, 0);
  wire(b, 1);
  scheduler.add(a);
  scheduler.add(b);
  StepPlan plan;
  const auto step = [&] {
    scheduler.plan(plan);
    std::vector<std::array<int64_t, 3>> seen;
    for (const Chunk& c : plan.chunks) seen.push_back({c.sequence->order, c.begin, c.count});
    draw_all(plan, scheduler);
    return seen;
  };
  using Seen = std::vector<std::array<int64_t, 3>>;
  EXPECT_EQ(step(), (Seen{{0, 0, 4}, {1, 0, 6}}));
  EXPECT_EQ(step(), (Seen{{0, 4, 1}, {1, 6, 10}}));
  EXPECT_EQ(step(), (Seen{{0, 5, 1}, {1, 16, 9}}));
  EXPECT_EQ(step(), (Seen{{0, 6, 1}, {1, 25, 1}}));
  EXPECT_EQ(plan.singles, 2);
}

TEST(Scheduler, PutsTheYoungestBack) {
  // Two sequences of one page each that both need a second one, and three pages.
  Scheduler scheduler({.pages = 3, .max_running = 8, .prefill_chunk = 64});
  Group a = make_group(16, 1, 17), b = make_group(15, 1, 17);
  wire(a, 0);
  wire(b, 1);
  scheduler.add(a);
  scheduler.add(b);
  StepPlan plan;
  scheduler.plan(plan);
  draw_all(plan, scheduler);
  EXPECT_EQ(scheduler.running(), 2);
  scheduler.plan(plan);  // a takes the third page, b fills its first.
  draw_all(plan, scheduler);
  EXPECT_EQ(scheduler.running(), 2);
  scheduler.plan(plan);
  EXPECT_EQ(scheduler.running(), 1);
  EXPECT_EQ(scheduler.counts().preemptions, 1);
  EXPECT_EQ(b.samples[0].state, SequenceState::kWaiting);
  EXPECT_EQ(b.samples[0].tokens.size(), 2U);
  ASSERT_EQ(plan.chunks.size(), 1U);
  draw_all(plan, scheduler);
  scheduler.finish(a.samples[0]);
  scheduler.plan(plan);  // All of b again, the tokens drawn included.
  ASSERT_EQ(plan.chunks.size(), 1U);
  EXPECT_EQ(plan.chunks[0].count, 17);
  EXPECT_TRUE(plan.chunks[0].draws);
  scheduler.finish(b.samples[0]);
  EXPECT_EQ(scheduler.pool().used(), 0);
  EXPECT_THROW(scheduler.finish(b.samples[0]), InternalError);
}

TEST(Scheduler, PromptsLeaveRoomForTheirGroups) {
  Scheduler scheduler({.pages = 100, .max_running = 8, .prefill_chunk = 64});
  Group a = make_group(10, 6, 5), b = make_group(10, 6, 5), c = make_group(10, 6, 5);
  wire(a, 0);
  wire(b, 6);
  wire(c, 12);
  for (Group* group : {&a, &b, &c}) scheduler.add(*group);
  StepPlan plan;
  scheduler.plan(plan);
  EXPECT_EQ(plan.chunks.size(),
            2U);  // 6 + 6 places are spoken for: c would only hold a page and wait.
  draw_all(plan, scheduler);
  EXPECT_EQ(scheduler.running(), 8);
  EXPECT_EQ(scheduler.queued(), 10);
}

}  // namespace
}  // namespace quadrille::rollout
