#include "reward/worker_pool.h"

#include <poll.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "base/error.h"
#include "base/json_text.h"
#include "base/log.h"
#include "reward/child_process.h"

namespace quadrille::reward {
namespace {

constexpr size_t kWindow = 4;
constexpr int kAttempts = 2;
// A worker that ends this many times in a row without having answered anything will not answer the
// next object either.
constexpr int kBarrenStarts = 3;
constexpr auto kGrace = std::chrono::milliseconds(1000);
// A worker in a loop that writes without end costs neither all memory nor a full disk.
constexpr size_t kLongestLine = 16 << 20;
constexpr int kMostComplaints = 1000;  // In a row, with no answer between.
constexpr int kErrorLinesAtOnce = 100;
constexpr size_t kErrorLineShown = 2000;

TimePoint now() {
  return std::chrono::steady_clock::now();
}

// Hands over each whole line until `take` says false; the rest stays in the buffer.
template <class Take>
void take_lines(std::string& buffer, const Take& take) {
  size_t begin = 0;
  for (size_t end = 0; (end = buffer.find('\n', begin)) != std::string::npos;) {
    const std::string line = buffer.substr(begin, end - begin);
    begin = end + 1;
    if (!take(line)) break;
  }
  buffer.erase(0, begin);
}

}  // namespace

struct WorkerPool::Job {
  size_t item = 0;
  std::string line;
  int attempts = 0;
};

struct WorkerPool::Worker {
  struct Sent {
    size_t job = 0;
    TimePoint due;
  };

  explicit Worker(int number) : number(number) {}

  int number;
  std::unique_ptr<ChildProcess> child;
  std::string to_write, read_buffer, error_buffer;
  std::deque<Sent> sent;
  std::string complaint;  // The last line that was no answer.
  int complaints = 0;     // Since the last answer.
  int barren_starts = 0;

  void start(const std::vector<std::string>& command) {
    child = std::make_unique<ChildProcess>(command);
    to_write.clear();
    read_buffer.clear();
    complaint.clear();
    complaints = 0;
  }
  void drain_errors() {
    if (!child) return;
    ChildProcess::read(child->errors(), error_buffer);
    int lines = 0;
    take_lines(error_buffer, [&](const std::string& line) {
      log_warn("reward worker {}: {}", number, line.substr(0, kErrorLineShown));
      return ++lines < kErrorLinesAtOnce;
    });
    if (lines == kErrorLinesAtOnce && !error_buffer.empty()) {
      log_warn("reward worker {}: (more, left out)", number);
      error_buffer.clear();
    }
    if (error_buffer.size() > kLongestLine) error_buffer.clear();
  }
};

// One call of score().
struct WorkerPool::Round {
  WorkerPool& pool;
  std::span<const RewardItem> items;
  std::vector<RewardResult> results;
  std::vector<Job> jobs;
  std::deque<size_t> waiting;
  std::unordered_map<std::string, size_t> by_id;
  size_t open = 0;

  explicit Round(WorkerPool& pool, std::span<const RewardItem> items) : pool(pool), items(items) {
    results.resize(items.size());
    for (size_t i = 0; i < items.size(); ++i) {
      nlohmann::ordered_json object;
      if (items[i].row != nullptr) object = *items[i].row;
      object["id"] = items[i].id;
      object["prompt"] = items[i].prompt;
      object["completion"] = items[i].completion;
      jobs.push_back(
          {i, object.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n",
           0});
      const bool fresh = by_id.emplace(items[i].id, i).second;
      QD_CHECK(fresh, "id {} twice", items[i].id);
      waiting.push_back(i);
    }
    open = jobs.size();
  }

  void settle(size_t job, RewardResult result) {
    results[jobs[job].item] = std::move(result);
    --open;
  }
  void give_up(size_t job, const std::string& why) {
    settle(job, {std::numeric_limits<float>::quiet_NaN(), {}, why});
  }

  // The worker failed while it had these jobs: each is tried once more, alone.
  void restart(Worker& worker, const std::string& why) {
    worker.drain_errors();
    log_warn("reward worker {}: {}; starting it anew", worker.number, why);
    for (const Worker::Sent& sent : worker.sent) {
      Job& job = jobs[sent.job];
      if (++job.attempts >= kAttempts) {
        give_up(sent.job, worker.complaint.empty()
                              ? why
                              : fmt::format("{}; it wrote: {}", why, worker.complaint));
      } else {
        waiting.push_back(sent.job);
      }
    }
    worker.sent.clear();
    ++worker.barren_starts;
    worker.child.reset();
    worker.start(pool.command_);
  }

  void feed(Worker& worker) {
    while (!waiting.empty() && worker.sent.size() < kWindow) {
      const size_t next = waiting.front();
      const bool alone = jobs[next].attempts > 0;
      const bool has_retry = !worker.sent.empty() && jobs[worker.sent.front().job].attempts > 0;
      if (has_retry || (alone && !worker.sent.empty())) return;
      waiting.pop_front();
      const TimePoint begin = worker.sent.empty() ? now() : std::max(now(), worker.sent.back().due);
      worker.sent.push_back({next, begin + pool.timeout_});
      worker.to_write += jobs[next].line;
    }
  }

  void answer(Worker& worker, const std::string& line) {
    const auto json = json_text_danger(line)
                          ? nlohmann::json(nlohmann::json::value_t::discarded)
                          : nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    const auto reject = [&](const char* what) {
      worker.complaint = line.substr(0, 200);
      ++worker.complaints;
      log_warn("reward worker {}: {}: {}", worker.number, what, worker.complaint);
    };
    if (!json.is_object() || !json.contains("id")) return reject("wrote a line that is no answer");
    const std::string id =
        json["id"].is_string() ? json["id"].get<std::string>() : json["id"].dump();
    const auto job = by_id.find(id);
    const auto sent =
        job == by_id.end()
            ? worker.sent.end()
            : std::find_if(worker.sent.begin(), worker.sent.end(),
                           [&](const Worker::Sent& s) { return s.job == job->second; });
    if (sent == worker.sent.end()) return reject("answered an id that it was not asked about");
    RewardResult result;
    if (const auto parts = json.find("rewards"); parts != json.end() && parts->is_object()) {
      for (const auto& [name, value] : parts->items()) {
        const float part =
            value.is_number() ? value.get<float>() : std::numeric_limits<float>::quiet_NaN();
        result.parts[name] = part;
        result.reward += part;
      }
    } else if (const auto reward = json.find("reward");
               reward != json.end() && reward->is_number()) {
      result.reward = reward->get<float>();
    } else {
      result.reward = std::numeric_limits<float>::quiet_NaN();
    }
    if (!std::isfinite(result.reward)) {
      result.reward = std::numeric_limits<float>::quiet_NaN();
      result.error = fmt::format("the worker gave no finite number: {}", line.substr(0, 200));
    }
    worker.sent.erase(sent);
    worker.barren_starts = 0;
    worker.complaints = 0;
    settle(job->second, std::move(result));
  }

  // False: its output has ended.
  bool read_answers(Worker& worker) {
    const bool alive = ChildProcess::read(worker.child->output(), worker.read_buffer);
    take_lines(worker.read_buffer, [&](const std::string& line) {
      if (line.find_first_not_of(" \t\r") != std::string::npos) answer(worker, line);
      return worker.complaints < kMostComplaints;
    });
    return alive;
  }

  int wait_ms() const {
    auto due = TimePoint::max();
    for (const auto& worker : pool.workers_) {
      for (const Worker::Sent& sent : worker->sent) due = std::min(due, sent.due);
    }
    if (due == TimePoint::max()) return 100;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(due - now()).count();
    return static_cast<int>(std::clamp<int64_t>(left, 0, 1000));
  }

  void turn() {
    std::vector<pollfd> watched;
    for (const auto& worker : pool.workers_) {
      feed(*worker);
      watched.push_back({worker->child->output(), POLLIN, 0});
      watched.push_back({worker->child->errors(), POLLIN, 0});
      // poll() leaves negative descriptors alone.
      watched.push_back({worker->to_write.empty() ? -1 : worker->child->input(), POLLOUT, 0});
    }
    ::poll(watched.data(), watched.size(), wait_ms());
    for (size_t w = 0; w < pool.workers_.size(); ++w) {
      Worker& worker = *pool.workers_[w];
      bool alive = true;
      if (watched[3 * w + 1].revents != 0) worker.drain_errors();
      if (watched[3 * w + 2].revents != 0) {
        const ssize_t written = worker.child->write(worker.to_write);
        if (written > 0) worker.to_write.erase(0, static_cast<size_t>(written));
        alive = written >= 0;
      }
      if (watched[3 * w].revents != 0 || !alive) alive = read_answers(worker) && alive;
      const bool late = std::any_of(worker.sent.begin(), worker.sent.end(),
                                    [](const Worker::Sent& sent) { return sent.due <= now(); });
      if (worker.complaints >= kMostComplaints) {
        restart(worker, fmt::format("the reward worker wrote {} lines that are no answers",
                                    kMostComplaints));
      } else if (worker.read_buffer.size() > kLongestLine) {
        restart(worker,
                fmt::format("the reward worker wrote a line of more than {} bytes", kLongestLine));
      } else if (!alive) {
        restart(worker, "the reward worker ended without an answer");
      } else if (late) {
        restart(worker, fmt::format("the reward worker gave no answer within {:g} s",
                                    std::chrono::duration<double>(pool.timeout_).count()));
      }
    }
  }

  void run() {
    while (open > 0) {
      const bool hopeless =
          std::all_of(pool.workers_.begin(), pool.workers_.end(),
                      [](const auto& worker) { return worker->barren_starts >= kBarrenStarts; });
      if (hopeless) {
        abandon();
        return;
      }
      turn();
    }
  }

  void abandon() {
    const std::string why =
        fmt::format("every reward worker ended {} times without an answer", kBarrenStarts);
    log_warn("{}; {} answers get no reward", why, open);
    for (const auto& worker : pool.workers_) {
      for (const Worker::Sent& sent : worker->sent) give_up(sent.job, why);
      worker->sent.clear();
      worker->to_write.clear();
      worker->barren_starts = 0;
    }
    for (const size_t job : waiting) give_up(job, why);
    waiting.clear();
  }
};

WorkerPool::WorkerPool(const RewardPart& part)
    : command_(part.command),
      timeout_(std::chrono::duration_cast<std::chrono::nanoseconds>(
          std::chrono::duration<double>(part.timeout_s))) {
  for (int64_t i = 0; i < part.workers; ++i) {
    workers_.push_back(std::make_unique<Worker>(static_cast<int>(i)));
    workers_.back()->start(command_);
  }
}

WorkerPool::~WorkerPool() {
  for (const auto& worker : workers_) {
    if (worker->child) worker->child->finish(kGrace);
  }
}

std::vector<RewardResult> WorkerPool::score(std::span<const RewardItem> items) {
  Round round(*this, items);
  round.run();
  return std::move(round.results);
}

}  // namespace quadrille::reward
