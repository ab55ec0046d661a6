#include "checkpoint/checkpoint.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <functional>
#include <thread>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/rng.h"

namespace quadrille::checkpoint {
namespace {

namespace fs = std::filesystem;

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (fs::temp_directory_path() / "quadrille-checkpoint-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) throw IoError("mkdtemp {}", pattern);
    path_ = pattern;
  }
  ~TemporaryFolder() { fs::remove_all(path_); }
  operator const fs::path&() const { return path_; }
  fs::path operator/(const std::string& name) const { return path_ / name; }

 private:
  fs::path path_;
};

// Everything in it is a function of the step.
Content content(int64_t step, int64_t size = 1000) {
  Content c;
  c.step = step;
  const at::Tensor base = at::arange(size, at::kFloat);
  const auto s = static_cast<double>(step);
  c.weights = {{"embed", base + s}, {"layers.0.norm", base * s}};
  c.moments = {{"m.embed", base - s}, {"v.embed", base * 0.5 + s}};
  c.state_json = fmt::format("{{\"step\":{},\"note\":\"{}\"}}", step, std::string(50, 'x'));
  c.model_files = {{"config.json", "{\"model_type\": \"tiny\"}\n"},
                   {"additional_chat_templates/a.jinja", "{{ x }}"}};
  return c;
}

void expect_is(const Checkpoint& checkpoint, int64_t step, int64_t size = 1000) {
  const Content expected = content(step, size);
  EXPECT_EQ(checkpoint.step(), step);
  EXPECT_EQ(checkpoint.state_json(), expected.state_json);
  for (const auto& list : {expected.weights, expected.moments}) {
    for (const auto& [name, value] : list)
      EXPECT_TRUE(at::equal(checkpoint.tensor(name), value)) << name;
  }
  for (const StoredText& file : expected.model_files) {
    EXPECT_EQ(read_file(checkpoint.model_folder() / file.name), file.text);
  }
}

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

std::vector<fs::path> files_of(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

void write_raw(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

TEST(Checkpoint, GivesBackWhatWasSaved) {
  const TemporaryFolder dir;
  const fs::path folder = save(dir / "checkpoints", content(50), {});
  EXPECT_EQ(folder.filename(), "step-000050");
  const auto newest = load_newest(dir / "checkpoints");
  ASSERT_TRUE(newest.has_value());
  expect_is(*newest, 50);
  EXPECT_FALSE(newest->has("head"));
  EXPECT_NE(error_of([&] { (void)newest->tensor("head"); }).find("step-000050: has no tensor head"),
            std::string::npos);
  EXPECT_EQ(files_of(folder).size(), 6U);
  EXPECT_FALSE(fs::exists(dir / "checkpoints/step-000050.tmp"));
}

TEST(Checkpoint, KeepsDtypes) {
  const TemporaryFolder dir;
  Content c = content(1);
  c.weights.emplace_back("half", at::arange(7, at::kFloat).to(at::kBFloat16));
  c.weights.emplace_back("count", at::arange(3, at::kLong));
  save(dir, c, {});
  const auto newest = load_newest(dir);
  EXPECT_EQ(newest->tensor("half").scalar_type(), at::kBFloat16);
  EXPECT_TRUE(at::equal(newest->tensor("half"), c.weights[2].second));
  EXPECT_TRUE(at::equal(newest->tensor("count"), c.weights[3].second));
}

TEST(Checkpoint, NothingThereIsNoError) {
  const TemporaryFolder dir;
  EXPECT_FALSE(load_newest(dir / "none").has_value());
  EXPECT_FALSE(load_newest(dir).has_value());
  fs::create_directory(dir / "step-50");          // Not a name of ours.
  fs::create_directory(dir / "step-000050.tmp");  // A save that never finished.
  EXPECT_FALSE(load_newest(dir).has_value());
}

TEST(Checkpoint, SavingAStepAgainReplacesIt) {
  const TemporaryFolder dir;
  save(dir, content(3), {});
  Content other = content(3);
  other.state_json = "{}";
  save(dir, other, {});
  EXPECT_EQ(load_newest(dir)->state_json(), "{}");
  save(dir, content(3), {});
  expect_is(*load_newest(dir), 3);
  EXPECT_EQ(list_steps(dir), (std::vector<int64_t>{3}));
  EXPECT_FALSE(fs::exists(dir / "step-000003.tmp"));
}

TEST(Checkpoint, EachRankWritesItsShardAndOneManifestNamesAll) {
  const TemporaryFolder dir;
  const Draft first = Draft::create(dir, 8);
  const Draft second = Draft::join(dir, 8);
  const at::Tensor a = at::arange(5, at::kFloat);
  std::vector<FileEntry> files;
  files.push_back(second.write_shard("weights", 1, 2, {{"b", a * 2}}));
  files.push_back(first.write_shard("weights", 0, 2, {{"a", a}}));
  files.push_back(first.write_text("state.json", "{}"));
  EXPECT_FALSE(load_newest(dir).has_value());
  first.commit(files, 0.5);
  const auto newest = load_newest(dir);
  EXPECT_TRUE(at::equal(newest->tensor("a"), a));
  EXPECT_TRUE(at::equal(newest->tensor("b"), a * 2));
  EXPECT_EQ(newest->manifest().metric, 0.5);
  EXPECT_EQ(files[0].name, "weights-00001-of-00002.safetensors");
}

TEST(Checkpoint, TheSameTensorInTwoShardsIsRefused) {
  const TemporaryFolder dir;
  const Draft draft = Draft::create(dir, 8);
  const at::Tensor a = at::arange(5, at::kFloat);
  const std::vector<FileEntry> files = {draft.write_shard("weights", 0, 2, {{"a", a}}),
                                        draft.write_shard("weights", 1, 2, {{"a", a}}),
                                        draft.write_text("state.json", "{}")};
  const fs::path folder = draft.commit(files, std::nullopt);
  EXPECT_NE(error_of([&] { Checkpoint c(folder); }).find("tensor a stands in another shard"),
            std::string::npos);
}

// ---- Which are kept ----

TEST(Prune, KeepsTheNewestAndTheBest) {
  const TemporaryFolder dir;
  CheckpointConfig config;
  const std::optional<double> metrics[] = {0.1, 0.9, std::nullopt, 0.3, 0.9, 0.2, 0.1};
  for (int64_t step = 1; step <= 4; ++step) {
    Content c = content(step);
    c.metric = metrics[step - 1];
    save(dir, c, config);
  }
  EXPECT_EQ(list_steps(dir), (std::vector<int64_t>{2, 3, 4}));
  for (int64_t step = 5; step <= 7; ++step) {
    Content c = content(step);
    c.metric = metrics[step - 1];
    save(dir, c, config);
  }
  EXPECT_EQ(list_steps(dir), (std::vector<int64_t>{5, 6, 7}));  // Of equals the newer.
  config.keep_best = false;
  config.keep_last = 1;
  prune(dir, config);
  EXPECT_EQ(list_steps(dir), (std::vector<int64_t>{7}));
  EXPECT_EQ(fs::exists(dir / "step-000006.trash"), false);
}

TEST(Prune, NeitherCountsNorRemovesWhatIsDamaged) {
  const TemporaryFolder dir;
  CheckpointConfig config;
  config.keep_last = 10;
  for (int64_t step = 1; step <= 4; ++step) save(dir, content(step), config);
  fs::remove(dir / "step-000004/manifest.json");
  config.keep_last = 2;
  prune(dir, config);
  EXPECT_EQ(list_steps(dir), (std::vector<int64_t>{2, 3, 4}));
  expect_is(*load_newest(dir), 3);
}

// ---- Damage ----

TEST(Damage, EveryFileIsCheckedAndNamedAndTheOneBeforeIsUsed) {
  const TemporaryFolder dir;
  save(dir, content(10), {});
  const fs::path folder = save(dir, content(20), {});
  Rng rng(11);
  const std::vector<fs::path> files = files_of(folder);
  ASSERT_EQ(files.size(), 6U);
  set_log_level(LogLevel::kError);
  for (const fs::path& file : files) {
    const std::string good = read_file(file);
    const auto check = [&](const std::string& what) {
      const std::string error = error_of([&] { Checkpoint c(folder); });
      EXPECT_NE(error.find(file.filename().string()), std::string::npos)
          << what << " in " << file << ": " << error;
      expect_is(*load_newest(dir), 10);
    };
    for (int flip = 0; flip < 20; ++flip) {
      std::string bad = good;
      const size_t at = rng.below(bad.size());
      bad[at] = static_cast<char>(bad[at] ^ (1 << rng.below(8)));
      write_raw(file, bad);
      check(fmt::format("a flipped bit in byte {}", at));
    }
    for (const size_t size : {size_t{0}, good.size() / 2, good.size() - 1}) {
      write_raw(file, good.substr(0, size));
      check(fmt::format("{} bytes of {}", size, good.size()));
    }
    write_raw(file, good + "x");
    check("one byte more");
    fs::remove(file);
    check("removal");
    write_raw(file, good);
  }
  set_log_level(LogLevel::kInfo);
  expect_is(*load_newest(dir), 20);
}

TEST(Damage, EveryBitOfTheManifestCounts) {
  Manifest manifest;
  manifest.step = 50;
  manifest.metric = 0.75;
  manifest.files = {{"a.safetensors", 123, 0x1234}, {"model/b", 0, ~uint64_t{0}}};
  const std::string text = manifest_text(manifest);
  const Manifest back = parse_manifest(text, "m");
  EXPECT_EQ(back.step, 50);
  EXPECT_EQ(back.metric, 0.75);
  EXPECT_EQ(back.files, manifest.files);
  for (size_t i = 0; i < text.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string bad = text;
      bad[i] = static_cast<char>(bad[i] ^ (1 << bit));
      EXPECT_THROW((void)parse_manifest(bad, "m"), FormatError) << i << " " << bit;
    }
    EXPECT_THROW((void)parse_manifest(text.substr(0, i), "m"), FormatError) << i;
  }
}

TEST(Damage, AManifestCannotPointOutOfItsFolder) {
  for (const char* name : {"../x", "/etc/passwd", "a/../../b", ""}) {
    Manifest manifest;
    manifest.files = {{name, 1, 1}};
    EXPECT_THROW((void)parse_manifest(manifest_text(manifest), "m"), FormatError) << name;
  }
}

TEST(Damage, AManifestOfAnotherStepIsRefused) {
  const TemporaryFolder dir;
  fs::rename(save(dir, content(10), {}), dir / "step-000011");
  EXPECT_NE(error_of([&] { Checkpoint c(dir / "step-000011"); }).find("is of step 10"),
            std::string::npos);
}

TEST(Damage, IfNoneIsWholeTheRunMustNotStartAfresh) {
  const TemporaryFolder dir;
  fs::remove(save(dir, content(10), {}) / "state.json");
  set_log_level(LogLevel::kError);
  const std::string error = error_of([&] { (void)load_newest(dir); });
  set_log_level(LogLevel::kInfo);
  EXPECT_NE(error.find("none of its 1 checkpoints can be used"), std::string::npos) << error;
  EXPECT_NE(error.find("state.json: is missing"), std::string::npos) << error;
}

// ---- Failing writes ----

// Runs `call` in a child process and gives back its exit status.
int in_child(const std::function<int()>& call) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(call());
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

TEST(FailingWrites, AFullDiskLeavesTheCheckpointBeforeAndSaysWhatToDo) {
  const TemporaryFolder dir;
  save(dir, content(1), {});
  // A limit on the size of files stands in for the disk: the weights pass, the moments do not.
  const int status = in_child([&] {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit = {6000, 6000};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    Content c = content(2);
    c.weights.pop_back();
    const std::string error = error_of([&] { save(dir, c, {}); });
    const bool good = error.find("optimizer-00000-of-00001.safetensors") != std::string::npos &&
                      error.find("checkpoint of step 2 was not written, older ones are intact") !=
                          std::string::npos &&
                      error.find("free space there") != std::string::npos;
    if (!good) log_error("{}", error);
    return good ? 0 : 1;
  });
  EXPECT_EQ(status, 0);
  EXPECT_FALSE(fs::exists(dir / "step-000002.tmp"));
  EXPECT_EQ(list_steps(dir), (std::vector<int64_t>{1}));
  expect_is(*load_newest(dir), 1);
}

TEST(FailingWrites, AFolderThatCannotBeMadeIsNamed) {
  const TemporaryFolder dir;
  write_raw(dir / "file", "x");
  const std::string error = error_of([&] { save(dir / "file/checkpoints", content(1), {}); });
  EXPECT_NE(error.find("file/checkpoints: Not a directory"), std::string::npos) << error;
  EXPECT_NE(error.find("make the folder writable"), std::string::npos) << error;
}

TEST(FailingWrites, AFolderWithoutPermissionIsNamed) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may write anywhere";
  const TemporaryFolder dir;
  fs::permissions(dir, fs::perms::owner_read | fs::perms::owner_exec);
  const std::string error = error_of([&] { save(dir, content(1), {}); });
  fs::permissions(dir, fs::perms::owner_all);
  EXPECT_NE(error.find("Permission denied"), std::string::npos) << error;
  EXPECT_NE(error.find("make the folder writable"), std::string::npos) << error;
}

// A child saves step after step and reports each through a pipe, until it is killed at a random
// moment. What was reported must be there, whole and equal to its step; one more may be.
TEST(Kill, AtAnyMomentAGoodCheckpointIsThere) {
  // Below the size at which libtorch starts threads, which a fork does not have.
  constexpr int64_t kSize = 20000;
  const TemporaryFolder dir;
  Rng rng(static_cast<uint64_t>(2024));
  int64_t last = 0;
  const auto begin = std::chrono::steady_clock::now();
  save(dir, content(0, kSize), {});
  std::chrono::duration<double> longest = 3 * (std::chrono::steady_clock::now() - begin);
  set_log_level(LogLevel::kError);
  int interrupted = 0;
  for (int round = 0; round < 30; ++round) {
    int ends[2];
    ASSERT_EQ(::pipe(ends), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      // From the step that is there already: replacing it must be as safe.
      for (int64_t step = last;; ++step) {
        save(dir, content(step, kSize), {});
        if (::write(ends[1], &step, sizeof(step)) != sizeof(step)) ::_exit(1);
      }
    }
    ::close(ends[1]);
    std::this_thread::sleep_for(longest * rng.uniform());
    ::kill(child, SIGKILL);
    int status = 0;
    ::waitpid(child, &status, 0);
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    int64_t reported = last;
    for (int64_t step = 0; ::read(ends[0], &step, sizeof(step)) == sizeof(step);) reported = step;
    ::close(ends[0]);
    for (const auto& entry : fs::directory_iterator(dir)) {
      interrupted += entry.path().extension() == ".tmp" ? 1 : 0;
    }
    const auto newest = load_newest(dir);
    ASSERT_TRUE(newest.has_value());
    EXPECT_TRUE(newest->step() == reported || newest->step() == reported + 1)
        << newest->step() << " after " << reported << " in round " << round;
    expect_is(*newest, newest->step(), kSize);
    // How long a sync takes varies: long enough for a few saves, too short for many.
    if (newest->step() == last) longest *= 1.2;
    if (newest->step() > last + 3) longest /= 1.2;
    last = newest->step();
  }
  set_log_level(LogLevel::kInfo);
  EXPECT_GT(last, 0) << "no save was ever finished: the test shows nothing";
  EXPECT_GT(interrupted, 0) << "no save was ever interrupted: the test shows nothing";
}

}  // namespace
}  // namespace quadrille::checkpoint
