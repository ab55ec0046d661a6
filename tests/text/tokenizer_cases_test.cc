// Every supported part of tokenizer.json against the Python library, on small random tokenizers
// (make_tokenizer_cases.py). QD_TOKENIZER_CASES names another file: a fuzzer run.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <optional>

#include "base/error.h"
#include "base/file.h"
#include "text/tokenizer_testing.h"

namespace quadrille::text {
namespace {

using Ids = std::vector<int32_t>;

TEST(TokenizerCases, EveryPartAgreesWithTheLibrary) {
  const char* other = std::getenv("QD_TOKENIZER_CASES");
  const std::filesystem::path path =
      other != nullptr ? other : QD_SOURCE_DIR "/tests/text/tokenizer_cases.jsonl";
  int64_t compared = 0;
  int64_t refused = 0;
  for_each_line(path, [&](std::string_view line, int64_t number) {
    const auto row = nlohmann::json::parse(line);
    const std::string origin = path.filename().string() + ":" + std::to_string(number);
    SCOPED_TRACE(origin);
    std::optional<Tokenizer> made;
    try {
      made = Tokenizer::from_json(row["tokenizer"].dump(), origin);
    } catch (const FormatError&) {
      // A random file may ask for what is refused by name: nothing wrong is said, but not too often
      // either.
      ++refused;
      return;
    }
    const Tokenizer& tokenizer = *made;
    const auto check_decoding = [&](const Ids& ids, const nlohmann::json& all,
                                    const nlohmann::json& skipped) {
      EXPECT_EQ(tokenizer.decode(ids, false), all);
      EXPECT_EQ(tokenizer.decode(ids, true), skipped);
      EXPECT_EQ(testing::streamed(tokenizer, ids, false), all);
      EXPECT_EQ(testing::streamed(tokenizer, ids, true), skipped);
      ++compared;
    };
    for (const auto& text : row["texts"]) {
      EXPECT_EQ(tokenizer.encode(text[0].get<std::string>()), text[1].get<Ids>()) << text[0];
      check_decoding(text[1].get<Ids>(), text[2], text[3]);
    }
    for (const auto& ids : row["ids"]) check_decoding(ids[0].get<Ids>(), ids[1], ids[2]);
  });
  EXPECT_GT(compared, 900);
  EXPECT_LE(refused, 3);
}

}  // namespace
}  // namespace quadrille::text
