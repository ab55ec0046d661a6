// Real tokenizers against what the Python library made of hard texts. The goldens are in the tree
// (tests/goldens/README.md), the tokenizers too large for it: tools/fetch_tokenizers.py gets them.
#include <gtest/gtest.h>

#include <filesystem>

#include "base/file.h"
#include "text/tokenizer_testing.h"

namespace quadrille::text {
namespace {

using Ids = std::vector<int32_t>;
using nlohmann::json;
namespace fs = std::filesystem;

class TokenizerGolden : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const fs::path root = QD_SOURCE_DIR;
    folder_ = root / ".cache/tokenizers" / GetParam();
    goldens_ = root / "tests/goldens/text";
    if (!fs::exists(goldens_)) GTEST_SKIP() << goldens_ << " is not there";
    if (!fs::exists(folder_ / "tokenizer.json")) {
      GTEST_SKIP() << folder_ << " is not there: run tools/fetch_tokenizers.py " << GetParam();
    }
  }

  void check_decoding(const Tokenizer& tokenizer, const Ids& ids, const std::string& all,
                      const std::string& skipped) {
    EXPECT_EQ(tokenizer.decode(ids, false), all);
    EXPECT_EQ(tokenizer.decode(ids, true), skipped);
    EXPECT_EQ(testing::streamed(tokenizer, ids, false), all);
    EXPECT_EQ(testing::streamed(tokenizer, ids, true), skipped);
  }

  fs::path folder_;
  fs::path goldens_;
};

TEST_P(TokenizerGolden, TextsAndIdsAgree) {
  const Tokenizer tokenizer = Tokenizer::load(folder_);
  int64_t texts = 0;
  const std::string name = GetParam();
  for_each_line(goldens_ / ("tokenize." + name + ".jsonl"),
                [&](std::string_view line, int64_t number) {
                  SCOPED_TRACE(number);
                  const json row = json::parse(line);
                  const std::string text = row["text"];
                  const Ids ids = row["ids"];
                  EXPECT_EQ(tokenizer.encode(text), ids) << row["text"];
                  const std::string all = row.value("decoded", text);
                  check_decoding(tokenizer, ids, all, row.value("decoded_skip", all));
                  ++texts;
                });
  EXPECT_GT(texts, 300);
  for_each_line(goldens_ / ("decode." + name + ".jsonl"),
                [&](std::string_view line, int64_t number) {
                  SCOPED_TRACE(number);
                  const json row = json::parse(line);
                  const std::string all = row["decoded"];
                  check_decoding(tokenizer, row["ids"], all, row.value("decoded_skip", all));
                });
}

TEST_P(TokenizerGolden, TokensAndIdsAreOneToOne) {
  const Tokenizer tokenizer = Tokenizer::load(folder_);
  for (int32_t id = 0; id < tokenizer.vocabulary_size(); ++id) {
    if (!tokenizer.contains(id)) continue;
    ASSERT_EQ(tokenizer.token_to_id(tokenizer.id_to_token(id)), id);
  }
  EXPECT_TRUE(tokenizer.contains(static_cast<int32_t>(tokenizer.vocabulary_size() - 1)));
  EXPECT_FALSE(tokenizer.contains(static_cast<int32_t>(tokenizer.vocabulary_size())));
}

INSTANTIATE_TEST_SUITE_P(Families, TokenizerGolden,
                         ::testing::Values("qwen3", "llama3_1", "deepseek_v3", "gptoss", "smollm2"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace quadrille::text
