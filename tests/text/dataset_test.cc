#include "text/dataset.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"

namespace quadrille::text {
namespace {

namespace fs = std::filesystem;
constexpr auto kRl = DatasetKind::kReinforcement;
constexpr auto kSft = DatasetKind::kSupervised;

class DatasetFile : public ::testing::Test {
 protected:
  fs::path path_ = fs::temp_directory_path() / ("qd_data_" + std::to_string(::getpid()) + ".jsonl");

  void TearDown() override { fs::remove(path_); }
  Dataset load(const std::string& text, DatasetKind kind) const {
    std::ofstream(path_, std::ios::binary) << text;
    return Dataset(path_, kind);
  }
  // The complaint, with the folder cut off.
  std::string complaint(const std::string& text, DatasetKind kind) const {
    try {
      load(text, kind);
      return "no error";
    } catch (const FormatError& error) {
      const std::string all = error.what();
      const std::string file = path_.string();
      return all.starts_with(file) ? "F" + all.substr(file.size()) : all;
    }
  }
};

TEST_F(DatasetFile, ReadsPromptsMessagesAndFurtherFields) {
  const Dataset data = load(
      "{\"prompt\": \"1+1?\", \"answer\": 2, \"level\": {\"b\": 1, \"a\": 2}}\r\n\n   \n"
      "{\"messages\": [{\"role\": \"system\", \"content\": \"s\"}, {\"role\": \"user\", "
      "\"content\": \"é?\"}], "
      "\"prompt\": null}",
      kRl);
  ASSERT_EQ(data.size(), 2);
  const DatasetRow first = data.row(0);
  EXPECT_EQ(first.line, 1);
  EXPECT_EQ(first.prompt, "1+1?");
  EXPECT_EQ(first.messages(), nullptr);
  EXPECT_EQ(first.question(), "1+1?");
  EXPECT_EQ(first.fields->dump(), R"({"prompt":"1+1?","answer":2,"level":{"b":1,"a":2}})");
  const DatasetRow second = data.row(1);
  EXPECT_EQ(second.line, 4);
  EXPECT_EQ(second.prompt, "");
  EXPECT_EQ(second.messages()->size(), 2U);
  EXPECT_EQ(second.question(), "é?");
  EXPECT_EQ(data.where(1), path_.string() + ":4");
}

TEST_F(DatasetFile, ReadsSupervisedRows) {
  const Dataset data = load(
      R"({"prompt": "a", "completion": "b"})"
      "\n"
      R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "r"}]})"
      "\n",
      kSft);
  EXPECT_EQ(data.row(0).completion, "b");
  EXPECT_EQ(data.row(1).completion, "");
  EXPECT_EQ(data.row(1).question(), "q");
}

TEST_F(DatasetFile, QuestionIsTheLastUserText) {
  const Dataset data = load(
      R"({"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": [{"type": "text", "text": "b"},)"
      R"( {"type": "image"}, {"type": "text", "text": "c"}]}, {"role": "tool", "content": "t"}]})"
      "\n"
      R"({"messages": [{"role": "system", "content": "a"}]})",
      kRl);
  EXPECT_EQ(data.row(0).question(), "bc");
  EXPECT_EQ(data.row(1).question(), "");
}

TEST_F(DatasetFile, ComplaintsNameFileLineAndRemedy) {
  const std::string good = "{\"prompt\": \"p\"}\n";
  EXPECT_EQ(complaint("", kRl), "F: has no rows; a data set is one JSON object a line");
  EXPECT_EQ(complaint(" \n\n", kRl), "F: has no rows; a data set is one JSON object a line");
  EXPECT_EQ(complaint(good + "\n[1]\n", kRl),
            "F:3: a row must be one JSON object on one line, found an array");
  EXPECT_EQ(complaint(good + "{}", kRl),
            "F:2: has neither \"prompt\" nor \"messages\"; one of them is needed");
  EXPECT_EQ(
      complaint("{}", kSft),
      "F:1: has neither \"messages\" nor \"prompt\" with \"completion\"; one of them is needed");
  EXPECT_EQ(complaint(R"({"prompt": "a", "messages": []})", kRl),
            "F:1: has both \"prompt\" and \"messages\"; keep one of them");
  EXPECT_EQ(complaint(R"({"prompt": 3})", kRl), "F:1: \"prompt\" must be a string, found a number");
  EXPECT_EQ(complaint(R"({"prompt": ""})", kRl), "F:1: \"prompt\" is empty");
  EXPECT_EQ(complaint(R"({"prompt": [{"role": "user"}]})", kRl),
            "F:1: \"prompt\" must be a string; a list of messages goes into \"messages\"");
  EXPECT_EQ(complaint(good, kSft), "F:1: has \"prompt\" but no \"completion\" to train on");
  EXPECT_EQ(complaint(R"({"messages": []})", kRl), "F:1: \"messages\" is empty");
  EXPECT_EQ(complaint(R"({"messages": {}})", kRl),
            "F:1: \"messages\" must be a list, found an object");
  EXPECT_EQ(complaint(R"({"messages": ["hi"]})", kRl),
            "F:1: messages[0] must be an object, found a string");
  EXPECT_EQ(complaint(R"({"messages": [{"content": "x"}]})", kRl),
            "F:1: messages[0] needs a \"role\" that is a string");
  EXPECT_EQ(complaint(R"({"messages": [{"role": "user", "content": 1}]})", kRl),
            "F:1: messages[0]: \"content\" must be a string, found a number");
  EXPECT_EQ(complaint(R"({"messages": [{"role": "user", "content": "x"}]})", kSft),
            "F:1: \"messages\" has no message of the role \"assistant\" to train on");
  EXPECT_TRUE(complaint(R"({"messages": [{"role": "assistant", "content": "x"}]})", kRl)
                  .starts_with("F:1: \"messages\" ends with the assistant's answer"));
}

TEST_F(DatasetFile, RefusesBrokenJsonAndBytesThatAreNotText) {
  EXPECT_TRUE(complaint("{\"prompt\": \"p\"}\n{\"prompt\": \n", kRl)
                  .starts_with("F:2: not valid JSON: parse error"));
  EXPECT_TRUE(
      complaint("{\"prompt\": \"\xFF\"}", kRl).starts_with("F:1: not valid JSON: parse error"));
  EXPECT_TRUE(
      complaint("{\"prompt\": \"a\"} {\"prompt\": \"b\"}", kRl).starts_with("F:1: not valid JSON"));
  EXPECT_TRUE(
      complaint(std::string("{\"prompt\": \"a\0b\"}", 17), kRl).starts_with("F:1: not valid JSON"));
  EXPECT_THROW(Dataset("/nonexistent/x.jsonl", kRl), IoError);
}

TEST_F(DatasetFile, FingerprintFollowsTheBytes) {
  const uint64_t one = load("{\"prompt\": \"a\"}", kRl).fingerprint();
  EXPECT_EQ(one, load("{\"prompt\": \"a\"}", kRl).fingerprint());
  EXPECT_NE(one, load("{\"prompt\": \"b\"}", kRl).fingerprint());
}

TEST(Sampler, DealsEachRowOnceAnEpoch) {
  Sampler sampler(10, 7, true);
  const std::vector<int64_t> first = sampler.next(10);
  const std::vector<int64_t> second = sampler.next(10);
  EXPECT_EQ(std::set<int64_t>(first.begin(), first.end()).size(), 10U);
  EXPECT_EQ(std::set<int64_t>(second.begin(), second.end()).size(), 10U);
  EXPECT_NE(first, second);
  EXPECT_EQ(Sampler(10, 7, true).next(10), first);
  EXPECT_NE(Sampler(10, 8, true).next(10), first);
  EXPECT_EQ(Sampler(4, 7, false).next(6), (std::vector<int64_t>{0, 1, 2, 3, 0, 1}));
}

TEST(Sampler, ResumesAnywhere) {
  Sampler whole(7, 3, true);
  const std::vector<int64_t> expected = whole.next(100);
  for (int64_t cut = 0; cut <= 22; ++cut) {
    Sampler before(7, 3, true);
    std::vector<int64_t> rows = before.next(cut);
    Sampler after(7, 3, true, before.state());
    const std::vector<int64_t> rest = after.next(100 - cut);
    rows.insert(rows.end(), rest.begin(), rest.end());
    EXPECT_EQ(rows, expected) << "cut at " << cut;
    EXPECT_EQ(after.state(), whole.state());
  }
  // The end of an epoch and the beginning of the next are the same place.
  EXPECT_EQ(Sampler(7, 3, true, {0, 7}).next(3), Sampler(7, 3, true, {1, 0}).next(3));
}

TEST(Sampler, GivesMoreRowsThanThereAre) {
  Sampler sampler(3, 1, true);
  EXPECT_EQ(sampler.next(10).size(), 10U);
  EXPECT_EQ(sampler.state(), (Sampler::State{3, 1}));
  EXPECT_TRUE(sampler.next(0).empty());
}

TEST(Sampler, RefusesAStateOfOtherData) {
  EXPECT_THROW(Sampler(0, 1, true), ConfigError);
  EXPECT_THROW(Sampler(5, 1, true, {0, 6}), ConfigError);
  EXPECT_THROW(Sampler(5, 1, true, {-1, 0}), ConfigError);
}

}  // namespace
}  // namespace quadrille::text
