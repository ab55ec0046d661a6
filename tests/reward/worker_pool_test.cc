// Workers that misbehave in every way a user's program does. Each is a few lines of Python.
#include "reward/worker_pool.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/log.h"

namespace quadrille::reward {
namespace {

RewardPart worker(const std::string& body, int64_t workers = 2, double timeout_s = 5) {
  const std::string head =
      "import sys, json, os, time\n"
      "def put(i, r): print(json.dumps({'id': i, 'reward': r}), flush=True)\n";
  return {.kind = "worker",
          .command = {"python3", "-c", head + body},
          .timeout_s = timeout_s,
          .workers = workers};
}

std::vector<RewardItem> make_items(size_t count) {
  std::vector<RewardItem> items;
  for (size_t i = 0; i < count; ++i) {
    items.push_back({std::to_string(i), "p", "answer " + std::to_string(i),
                     std::make_shared<const nlohmann::ordered_json>(
                         nlohmann::ordered_json{{"value", i}, {"id", "own"}})});
  }
  return items;
}

const char* kHonest =
    "for line in sys.stdin:\n  o = json.loads(line); put(o['id'], o['value'] * 2)\n";

TEST(WorkerPool, AnswersInOrderWithTheRowsFields) {
  WorkerPool pool(worker(kHonest));
  for (int round = 0; round < 3; ++round) {
    const auto results = pool.score(make_items(25));
    for (size_t i = 0; i < 25; ++i) EXPECT_EQ(results[i].reward, 2.0F * static_cast<float>(i));
  }
  EXPECT_TRUE(pool.score({}).empty());
}

TEST(WorkerPool, TakesAnswersOutOfOrderAndParts) {
  WorkerPool pool(
      worker("a = []\n"
             "for line in sys.stdin:\n"
             "  a.append(json.loads(line)['id'])\n"
             "  if len(a) == 4:\n"
             "    for i in reversed(a): print(json.dumps({'id': i, 'rewards': {'x': 1, 'y': "
             "int(i)}}), flush=True)\n"
             "    a = []\n",
             1));
  const auto results = pool.score(make_items(8));
  for (size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(results[i].reward, 1.0F + static_cast<float>(i));
    EXPECT_EQ(results[i].parts.at("y"), static_cast<float>(i));
  }
}

TEST(WorkerPool, ACrashCostsThatAnswerOnly) {
  WorkerPool pool(
      worker("for line in sys.stdin:\n"
             "  o = json.loads(line)\n"
             "  if o['value'] == 5: os._exit(3)\n"
             "  put(o['id'], 1)\n"));
  const auto results = pool.score(make_items(12));
  for (size_t i = 0; i < 12; ++i) {
    EXPECT_EQ(std::isnan(results[i].reward), i == 5) << i << ": " << results[i].error;
  }
  EXPECT_NE(results[5].error.find("ended"), std::string::npos);
}

TEST(WorkerPool, AHangCostsThatAnswerOnly) {
  WorkerPool pool(
      worker("import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
             "for line in sys.stdin:\n"
             "  o = json.loads(line)\n"
             "  if o['value'] == 2: time.sleep(60)\n"
             "  put(o['id'], 1)\n",
             2, 1));
  const auto begin = std::chrono::steady_clock::now();
  const auto results = pool.score(make_items(6));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(8));
  for (size_t i = 0; i < 6; ++i)
    EXPECT_EQ(std::isnan(results[i].reward), i == 2) << i << ": " << results[i].error;
  EXPECT_NE(results[2].error.find("within 1 s"), std::string::npos) << results[2].error;
}

TEST(WorkerPool, GarbageIsNamed) {
  WorkerPool pool(worker(
      "for line in sys.stdin:\n"
      "  o = json.loads(line)\n"
      "  if o['value'] == 1: print('Traceback: oh no', flush=True)\n"
      "  elif o['value'] == 2: print(json.dumps({'id': o['id'], 'reward': 'high'}), flush=True)\n"
      "  else: put(o['id'], 1)\n",
      1, 1));
  const auto results = pool.score(make_items(4));
  EXPECT_EQ(results[0].reward, 1);
  EXPECT_TRUE(std::isnan(results[1].reward));
  EXPECT_NE(results[1].error.find("oh no"), std::string::npos) << results[1].error;
  EXPECT_TRUE(std::isnan(results[2].reward));
  EXPECT_NE(results[2].error.find("high"), std::string::npos) << results[2].error;
  EXPECT_EQ(results[3].reward, 1);
}

// Each writes as fast as it can, and for ever.
TEST(WorkerPool, FloodsEndWithTheirAnswer) {
  const std::vector<std::pair<const char*, const char*>> floods = {
      {"while True: sys.stdout.write('x' * 65536)\n", "a line of more than"},
      {"while True: sys.stdout.write('no answer\\n' * 6000)\n", "lines that are no answers"},
      {"while True: sys.stdout.write('\\n' * 65536)\n", "within 1 s"},
      {"while True: sys.stderr.write('x' * 65536)\n", "within 1 s"}};
  set_log_level(LogLevel::kError);
  for (const auto& [flood, why] : floods) {
    WorkerPool pool(worker(std::string("for line in sys.stdin:\n"
                                       "  o = json.loads(line)\n"
                                       "  if o['value'] == 2:\n    ") +
                               flood + "  put(o['id'], 1)\n",
                           1, 1));
    const auto begin = std::chrono::steady_clock::now();
    const auto results = pool.score(make_items(4));
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
    for (size_t i = 0; i < 4; ++i)
      EXPECT_EQ(std::isnan(results[i].reward), i == 2) << i << ": " << results[i].error;
    EXPECT_NE(results[2].error.find(why), std::string::npos) << results[2].error;
  }
  set_log_level(LogLevel::kInfo);
}

TEST(WorkerPool, ADeepAnswerIsGarbage) {
  WorkerPool pool(worker(
      "for line in sys.stdin:\n"
      "  o = json.loads(line)\n"
      "  if o['value'] == 1: print('{\"id\":' + '[' * 200000 + ']' * 200000 + '}', flush=True)\n"
      "  put(o['id'], 1)\n",
      1));
  for (const RewardResult& result : pool.score(make_items(3))) EXPECT_EQ(result.reward, 1);
}

TEST(WorkerPool, WorkersThatNeverWorkEndTheWaiting) {
  WorkerPool pool(worker("sys.exit(1)\n"));
  for (const RewardResult& result : pool.score(make_items(5)))
    EXPECT_TRUE(std::isnan(result.reward));
  EXPECT_THROW(WorkerPool({.kind = "worker", .command = {"/nowhere/program"}}), ConfigError);
}

TEST(WorkerPool, LargeObjectsDoNotJam) {
  WorkerPool pool(worker(
      "for line in sys.stdin:\n  o = json.loads(line); put(o['id'], len(o['completion']))\n", 1));
  auto items = make_items(6);
  for (RewardItem& item : items) item.completion = std::string(400000, 'x');
  for (const RewardResult& result : pool.score(items)) EXPECT_EQ(result.reward, 400000.0F);
}

}  // namespace
}  // namespace quadrille::reward
