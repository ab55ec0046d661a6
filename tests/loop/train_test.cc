// A whole run in this process, on a clock that the test owns.
#include "loop/train.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <time.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "checkpoint/manifest.h"
#include "loop/evaluate.h"
#include "loop/run_checkpoint.h"

namespace quadrille::loop {
namespace {

namespace fs = std::filesystem;

constexpr double kNoon = 1764590400;  // 2025-12-01, 12:00 UTC.
constexpr double kDay = 86400;

constexpr const char* kConfig = R"(
[run]
seed = 3
threads = 1
[model]
init = "random"
family = "qwen3_moe"
layers = 1
hidden = 16
heads = 2
kv_heads = 1
head_dim = 8
experts = 3
top_k = 2
expert_width = 8
[eval]
every = 2
[rollout]
max_new_tokens = 4
[reward]
kind = "regex"
pattern = "[0-3]"
[algorithm]
preset = "grpo"
group_size = 4
prompts_per_step = 2
[optimizer]
lr = 1e-2
[observe]
tensorboard = false
)";

class TrainOverDays : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "quadrille-train-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    dir_ = pattern;
    ::setenv("TZ", "UTC", 1);
    ::tzset();
    const fs::path demo = fs::path(QD_SOURCE_DIR) / "configs/demo/tokenizer";
    fs::copy(demo, dir_ / "tokenizer");
    write("tokenizer/chat_template.jinja", "{{ strftime_now('%d') }}={{ messages[0].content }}=");
    std::string rows;
    for (int i = 0; i < 5; ++i) {
      rows += R"({"messages": [{"role": "user", "content": ")" + std::to_string(i) + "\"}]}\n";
    }
    write("rows.jsonl", rows);
    write("run.toml", kConfig);
  }
  void TearDown() override { fs::remove_all(dir_); }

  void write(const std::string& name, std::string_view text) const {
    std::ofstream(dir_ / name) << text;
  }

  RunConfig config(const std::string& run, int steps) const {
    return read_run_config(dir_ / "run.toml", {"run.dir=" + (dir_ / run).string(),
                                               "run.steps=" + std::to_string(steps),
                                               "model.tokenizer=" + (dir_ / "tokenizer").string(),
                                               "data.train=" + (dir_ / "rows.jsonl").string(),
                                               "eval.data=" + (dir_ / "rows.jsonl").string()});
  }

  void run(const std::string& name, int steps, double wall_seconds) const {
    const FakeClock clock(wall_seconds);
    const StopFlag stop;
    ASSERT_EQ(train(config(name, steps), {.resume = true}, clock, stop), Outcome::kDone);
  }

  // All but times.
  std::vector<nlohmann::json> metrics(const std::string& run) const {
    std::vector<nlohmann::json> lines;
    for_each_line(dir_ / run / "metrics.jsonl", [&](std::string_view line, int64_t) {
      nlohmann::json json = nlohmann::json::parse(line);
      for (auto it = json.begin(); it != json.end();) {
        const bool time = it.key().starts_with("time/") || it.key().starts_with("throughput/");
        it = time ? json.erase(it) : std::next(it);
      }
      lines.push_back(std::move(json));
    });
    return lines;
  }

  fs::path checkpoint(const std::string& run, int64_t step) const {
    return dir_ / run / "checkpoints" / checkpoint::step_name(step);
  }

  // As if another program had written the run's state.
  void edit_state(const fs::path& folder, const std::function<void(nlohmann::json&)>& edit) const {
    nlohmann::json state = nlohmann::json::parse(read_file(folder / "state.json"));
    edit(state);
    write_file_atomic(folder / "state.json", state.dump());
    const fs::path path = folder / checkpoint::kManifestFile;
    checkpoint::Manifest manifest = checkpoint::parse_manifest(read_file(path), "manifest");
    for (auto& file : manifest.files) file = checkpoint::describe_file(folder, file.name);
    write_file_atomic(path, checkpoint::manifest_text(manifest));
  }

  fs::path dir_;
};

TEST_F(TrainOverDays, TheDateInPromptsIsTheDayTheRunBegan) {
  run("whole", 4, kNoon);
  run("cut", 2, kNoon);
  run("cut", 3, kNoon + kDay);
  run("cut", 4, kNoon + 40 * kDay);
  std::vector<nlohmann::json> cut = metrics("cut");
  const std::vector<nlohmann::json> whole = metrics("whole");
  ASSERT_EQ(cut.size(), 5U);
  // A run's last step is evaluated besides.
  std::erase_if(cut[3].get_ref<nlohmann::json::object_t&>(),
                [](const auto& entry) { return entry.first.starts_with("eval/"); });
  EXPECT_EQ(cut, whole);

  run("later", 4, kNoon + kDay);
  EXPECT_NE(metrics("later"), whole);  // Else the template's date would decide nothing.
}

TEST_F(TrainOverDays, ACheckpointIsEvaluatedWithItsRunsDate) {
  run("whole", 2, kNoon);
  const FakeClock clock(kNoon + 9 * kDay);
  Session session(config("whole", 2), clock, Purpose::kEvaluate);
  load_for_evaluation(checkpoint("whole", 2), session);
  const Evaluation evaluation = evaluate(
      session, [] { return false; }, [](int64_t, int64_t) {});
  for (const char* name : {"eval/accuracy", "eval/reward", "eval/length_mean_tokens"}) {
    EXPECT_EQ(nlohmann::json(evaluation.metrics.at(name)), metrics("whole").back().at(name))
        << name;
  }
  EXPECT_EQ(session.date.tm_mday, 1);
  EXPECT_EQ(session.date.tm_wday, 1);
}

TEST_F(TrainOverDays, ACheckpointWithoutADateGoesOnWithTodays) {
  run("old", 2, kNoon);
  edit_state(checkpoint("old", 2), [](nlohmann::json& state) { state.erase("date"); });
  run("old", 4, kNoon + kDay);
  EXPECT_EQ(metrics("old").size(), 5U);
  const auto state = nlohmann::json::parse(read_file(checkpoint("old", 4) / "state.json"));
  EXPECT_TRUE(state.at("date").get<std::string>().starts_with("2025-12-02T"));
}

TEST_F(TrainOverDays, ADateThatIsNoneIsRefused) {
  run("bad", 2, kNoon);
  const FakeClock clock(kNoon);
  const StopFlag stop;
  for (const nlohmann::json& date : {nlohmann::json("2025-13-01T00:00:00"),
                                     nlohmann::json("2025-12-01T00:00:00+1"), nlohmann::json(7)}) {
    edit_state(checkpoint("bad", 2), [&](nlohmann::json& state) { state["date"] = date; });
    EXPECT_THROW(train(config("bad", 4), {.resume = true}, clock, stop), FormatError) << date;
  }
}

}  // namespace
}  // namespace quadrille::loop
