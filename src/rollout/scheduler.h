// Decides what the next step computes: continuous batching over a page pool, host arithmetic only.
//
// Every sequence that has its pages is in one of two states that are really one: it has some
// positions left to compute, and computing the last of them draws a token. A decode step is that
// with one position left; a prompt, or a sequence that was put back and starts again, is that with
// many, cut into chunks by the budget.
//
// Order is age: the oldest sequence always gets what it needs, at the cost of the youngest, which
// is put back (pages freed, tokens kept) and computed again later. So somebody always gets on, and
// no sequence is lost.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "rollout/page_pool.h"
#include "rollout/sequence.h"

namespace quadrille::rollout {

// Positions [begin, begin + count) of a sequence, to be computed in this step.
struct Chunk {
  Sequence* sequence = nullptr;
  int64_t begin = 0;
  int64_t count = 0;
  bool draws = false;  // Reaches the end of what is known: the next token is drawn.
};

struct StepPlan {
  std::vector<Chunk> chunks;  // Single positions first, then longer chunks; each part oldest first.
  int64_t tokens = 0;
  int64_t singles = 0;  // How many chunks stand in the first part.
};

struct PageCopy {
  int32_t from = 0;
  int32_t to = 0;
};

struct SchedulerCounts {
  int64_t preemptions = 0;
  int64_t prefill_tokens =
      0;  // Positions computed in chunks longer than one draw, prompts and repeats.
  int64_t prefix_tokens = 0;  // Positions taken from shared or copied pages instead.
  int64_t prefix_hits = 0;    // Sequences that took them.
};

class Scheduler {
 public:
  struct Limits {
    int64_t pages = 0;
    int64_t max_running = 0;    // Sequences that hold pages.
    int64_t prefill_chunk = 0;  // Positions a step computes beside the single ones.
  };
  explicit Scheduler(const Limits& limits);

  static int64_t pages_for(int64_t positions);
  // Pages that one sample of this request holds at the most.
  static int64_t pages_at_most(const Request& request);

  // Sample 0 enters the queue; the others follow when the prompt is computed (fork).
  void add(Group& group);
  // Fills `plan` and counts its positions as computed. An empty plan with a queue is possible only
  // while tokens are unread.
  void plan(StepPlan& plan);
  // The group's prompt is computed, and every sample has a token drawn: gives pages to the samples
  // that fit, appends the copies of the prompt's last, partly filled page, and queues the rest.
  void fork(Group& group, std::vector<PageCopy>& copies);
  void finish(Sequence& sequence);
  // All pages are stale: puts every running sequence back, forgets every prefix.
  void forget_pages();
  // Another number of pages; only while nobody holds one.
  void resize(int64_t pages);

  const PagePool& pool() const { return pool_; }
  int64_t running() const { return static_cast<int64_t>(running_.size()); }
  // Unfinished samples without pages.
  int64_t queued() const { return unfinished_ - running(); }
  const SchedulerCounts& counts() const { return counts_; }

 private:
  struct Older {
    bool operator()(const Sequence* a, const Sequence* b) const { return a->order < b->order; }
  };

  bool grow(Sequence& sequence, int64_t positions);
  bool reclaim();
  bool start(Sequence& sequence);
  void run(Sequence& sequence);
  void put_back(Sequence& sequence);
  void stop_running(Sequence& sequence);
  int64_t slots_taken() const;
  int64_t spare() const;

  Limits limits_;
  PagePool pool_;
  std::vector<Sequence*> running_;      // Oldest first.
  std::set<Sequence*, Older> waiting_;  // Oldest first.
  std::map<int64_t, Group*>
      prefixed_;  // Groups that hold a prefix, by the order of their sample 0.
  int64_t unfinished_ = 0;
  SchedulerCounts counts_;
};

}  // namespace quadrille::rollout
