#include "rollout/scheduler.h"

#include <algorithm>

#include "base/error.h"
#include "tensor/kv_cache.h"

namespace quadrille::rollout {

using tensor::kPageTokens;

Scheduler::Scheduler(const Limits& limits) : limits_(limits), pool_(limits.pages) {
  QD_CHECK(limits.max_running > 0 && limits.prefill_chunk > 0, "max_running {}, prefill_chunk {}",
           limits.max_running, limits.prefill_chunk);
}

int64_t Scheduler::pages_for(int64_t positions) {
  return (positions + kPageTokens - 1) / kPageTokens;
}

int64_t Scheduler::pages_at_most(const Request& request) {
  // The last token drawn is never an input, so it has no place in the cache.
  return pages_for(static_cast<int64_t>(request.prompt.size()) + request.max_new_tokens - 1);
}

void Scheduler::add(Group& group) {
  Sequence& first = group.samples.front();
  first.state = SequenceState::kWaiting;
  waiting_.insert(&first);
  unfinished_ += group.unfinished;
}

void Scheduler::plan(StepPlan& plan) {
  plan.chunks.clear();
  plan.tokens = 0;
  const int64_t preemptions_before = counts_.preemptions;

  // Those that draw in this step need room for one more position; the oldest ask first. reclaim()
  // may put back the youngest, which is the last in the list and perhaps the one that asks.
  for (size_t i = 0; i < running_.size(); ++i) {
    Sequence& sequence = *running_[i];
    if (sequence.length() - sequence.computed != 1 || !sequence.wants_draws()) continue;
    if (grow(sequence, sequence.length()))
      plan.chunks.push_back({&sequence, sequence.computed, 1, true});
  }
  plan.singles = static_cast<int64_t>(plan.chunks.size());

  int64_t budget = limits_.prefill_chunk;
  const auto take = [&](Sequence& sequence) {
    const int64_t left = sequence.length() - sequence.computed;
    const int64_t count = std::min(left, budget);
    plan.chunks.push_back({&sequence, sequence.computed, count, count == left});
    budget -= count;
    counts_.prefill_tokens += count;
  };
  for (size_t i = 0; i < running_.size() && budget > 0; ++i) {
    if (running_[i]->length() - running_[i]->computed > 1) take(*running_[i]);
  }
  // Whoever was put back a moment ago must not return in the same step: its pages went to somebody
  // else.
  const bool pressed = counts_.preemptions != preemptions_before;
  while (!pressed && budget > 0 && !waiting_.empty()) {
    Sequence& next = **waiting_.begin();
    if (next.unread > 0 || slots_taken() >= limits_.max_running || !start(next)) break;
    take(next);
  }

  // A chunk may stand first although it has one position (a prompt of one token): the parts are
  // only an order.
  for (const Chunk& chunk : plan.chunks) {
    chunk.sequence->computed += chunk.count;
    plan.tokens += chunk.count;
  }
}

void Scheduler::fork(Group& group, std::vector<PageCopy>& copies) {
  Sequence& first = group.samples.front();
  const int64_t prompt = group.prompt_tokens();
  const int64_t full = prompt / kPageTokens;
  const bool partial = prompt % kPageTokens != 0;
  QD_CHECK(!group.drawn && first.state == SequenceState::kRunning && first.computed == prompt,
           "fork of request {} at {} of {} prompt tokens", group.request.id, first.computed,
           prompt);
  group.drawn = true;
  if (group.samples.size() == 1 || !first.wants_draws()) return;
  if (full > 0) {
    pool_.share(first.pages, full, group.prefix);
    prefixed_.emplace(first.order, &group);
  }
  bool room = true;
  for (size_t i = 1; i < group.samples.size(); ++i) {
    Sequence& sequence = group.samples[i];
    // One page each at once or soon: for the copy, or for the first position behind a full page.
    room = room && running() < limits_.max_running && pool_.available() > spare();
    if (!room) {
      sequence.state = SequenceState::kWaiting;
      waiting_.insert(&sequence);
      continue;
    }
    pool_.share(first.pages, full, sequence.pages);
    if (partial) {
      QD_CHECK(pool_.allocate(1, sequence.pages));
      copies.push_back({first.pages[static_cast<size_t>(full)], sequence.pages.back()});
    }
    sequence.computed = prompt;
    run(sequence);
    counts_.prefix_tokens += prompt;
    ++counts_.prefix_hits;
  }
}

void Scheduler::finish(Sequence& sequence) {
  QD_CHECK(sequence.state != SequenceState::kDone, "sample {} of request {} finishes twice",
           sequence.index, sequence.group->request.id);
  if (sequence.state == SequenceState::kRunning) stop_running(sequence);
  if (sequence.state == SequenceState::kWaiting) waiting_.erase(&sequence);
  sequence.state = SequenceState::kDone;
  --unfinished_;
  Group& group = *sequence.group;
  if (--group.unfinished == 0) {
    pool_.release(group.prefix);
    prefixed_.erase(group.samples.front().order);
  }
}

void Scheduler::forget_pages() {
  while (!running_.empty()) put_back(*running_.back());
  for (auto& [order, group] : prefixed_) pool_.release(group->prefix);
  prefixed_.clear();
  QD_CHECK(pool_.used() == 0, "{} pages are held by nobody", pool_.used());
}

void Scheduler::resize(int64_t pages) {
  QD_CHECK(pool_.used() == 0, "{} pages are held", pool_.used());
  limits_.pages = pages;
  pool_ = PagePool(pages);
}

bool Scheduler::grow(Sequence& sequence, int64_t positions) {
  const int64_t missing = pages_for(positions) - static_cast<int64_t>(sequence.pages.size());
  while (missing > 0 && !pool_.allocate(missing, sequence.pages)) {
    if (reclaim()) continue;
    Sequence& youngest = *running_.back();
    ++counts_.preemptions;
    put_back(youngest);
    if (&youngest == &sequence) return false;
  }
  return true;
}

// Frees the prefix of the youngest group that nobody runs on.
bool Scheduler::reclaim() {
  for (auto it = prefixed_.rbegin(); it != prefixed_.rend(); ++it) {
    if (it->second->running > 0) continue;
    pool_.release(it->second->prefix);
    prefixed_.erase(it->first);
    return true;
  }
  return false;
}

bool Scheduler::start(Sequence& sequence) {
  Group& group = *sequence.group;
  const auto shared = static_cast<int64_t>(group.prefix.size());
  const int64_t fresh = pages_for(sequence.length()) - shared;
  while (pool_.available() < fresh + spare()) {
    if (!running_.empty()) return false;
    // Alone, everything that others left behind may go; its own prefix saves more than it costs.
    ++group.running;
    const bool freed = reclaim();
    --group.running;
    QD_CHECK(freed, "request {} needs {} pages of {}, {} are free", group.request.id, fresh,
             pool_.pages(), pool_.available());
  }
  pool_.share(group.prefix, shared, sequence.pages);
  QD_CHECK(pool_.allocate(fresh, sequence.pages));
  sequence.computed = shared * kPageTokens;
  if (shared > 0) {
    counts_.prefix_tokens += sequence.computed;
    ++counts_.prefix_hits;
  }
  waiting_.erase(&sequence);
  run(sequence);
  return true;
}

void Scheduler::run(Sequence& sequence) {
  sequence.state = SequenceState::kRunning;
  ++sequence.group->running;
  running_.insert(std::upper_bound(running_.begin(), running_.end(), &sequence, Older()),
                  &sequence);
}

void Scheduler::put_back(Sequence& sequence) {
  stop_running(sequence);
  sequence.computed = 0;
  sequence.state = SequenceState::kWaiting;
  waiting_.insert(&sequence);
}

void Scheduler::stop_running(Sequence& sequence) {
  const auto at = std::lower_bound(running_.begin(), running_.end(), &sequence, Older());
  QD_CHECK(at != running_.end() && *at == &sequence);
  running_.erase(at);
  --sequence.group->running;
  pool_.release(sequence.pages);
}

// A prompt that is still being computed will want a place for each of its samples.
int64_t Scheduler::slots_taken() const {
  int64_t slots = running();
  for (const Sequence* sequence : running_) {
    if (!sequence->group->drawn) slots += static_cast<int64_t>(sequence->group->samples.size()) - 1;
  }
  return slots;
}

// Some air for those who run already, so that a start does not put somebody back in the next step.
int64_t Scheduler::spare() const {
  return running_.empty() ? 0 : std::max<int64_t>(1, pool_.pages() / 64);
}

}  // namespace quadrille::rollout
