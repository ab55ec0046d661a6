// Reward workers: processes of the user's, in any language, that read one JSON object a line and
// write one a line.
//
//   to the worker     {"id": "7", "prompt": …, "completion": …, and all fields of the data set's
//   row} from the worker   {"id": "7", "reward": 0.5}  or  {"id": "7", "rewards": {"format": 1,
//   "right": 0}}
//
// Answers may come in any order. At most kWindow objects are with a worker at a time, and each has
// timeout_s from the moment the ones before it are due. A worker that crashes or lets an answer's
// time run out is killed and started anew; the answer is tried once more, alone, so that it costs
// no other; then it gets NaN. What a worker writes to standard error goes to the log. All of it
// runs on the caller's thread, in one poll() loop.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "reward/reward.h"

namespace quadrille::reward {

class WorkerPool {
 public:
  // Starts the workers. Throws ConfigError if the command cannot be run.
  explicit WorkerPool(const RewardPart& part);
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  // reward: the number, or the sum of a "rewards" object, whose members are the parts.
  std::vector<RewardResult> score(std::span<const RewardItem> items);

 private:
  struct Worker;
  struct Job;
  struct Round;

  std::vector<std::string> command_;
  std::chrono::nanoseconds timeout_;
  std::vector<std::unique_ptr<Worker>> workers_;
};

}  // namespace quadrille::reward
