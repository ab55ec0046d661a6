#include "text/tokenizer.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "base/error.h"
#include "text/tokenizer_testing.h"

namespace quadrille::text {
namespace {

using testing::added_token;
using testing::make;
using testing::plain_tokenizer;
using testing::streamed;
using Ids = std::vector<int32_t>;
using nlohmann::json;

json byte_level_tokenizer() {
  json out = plain_tokenizer({});
  json& vocab = out["model"]["vocab"];
  // The 256 letters in GPT-2's order: printable bytes first.
  int next = 256;
  for (int b = 0; b < 256; ++b) {
    const bool printable = (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
    const int c = printable ? b : next++;
    std::string letter;
    if (c < 0x80) {
      letter = static_cast<char>(c);
    } else {
      letter = {static_cast<char>(0xC0 | c >> 6), static_cast<char>(0x80 | (c & 0x3F))};
    }
    vocab[letter] = b;
  }
  out["pre_tokenizer"] = {{"type", "ByteLevel"},
                          {"add_prefix_space", false},
                          {"trim_offsets", true},
                          {"use_regex", true}};
  out["decoder"] = {{"type", "ByteLevel"}};
  return out;
}

TEST(Tokenizer, CharactersWithoutMerges) {
  const Tokenizer tokenizer = make(plain_tokenizer({"0", "1", "+", "=", "é"}));
  EXPECT_EQ(tokenizer.encode("1+0=é1"), (Ids{1, 2, 0, 3, 4, 1}));
  EXPECT_EQ(tokenizer.decode(Ids{1, 2, 0, 3, 4, 1}, false), "1+0=é1");
  EXPECT_EQ(tokenizer.encode(""), Ids{});
  EXPECT_EQ(tokenizer.decode(Ids{}, false), "");
  EXPECT_EQ(tokenizer.vocabulary_size(), 5);
  // No unknown token: the library drops what it does not know.
  EXPECT_EQ(tokenizer.encode("1x0"), (Ids{1, 0}));
}

TEST(Tokenizer, MergesByRankThenLeftmost) {
  const Tokenizer tokenizer = make(plain_tokenizer(
      {"a", "b", "c", "bc", "ab", "abc", "aa"}, {{"b", "c"}, {"a", "b"}, {"a", "bc"}, {"a", "a"}}));
  EXPECT_EQ(tokenizer.encode("abc"), Ids{5});
  EXPECT_EQ(tokenizer.encode("ab"), Ids{4});
  EXPECT_EQ(tokenizer.encode("aaa"), (Ids{6, 0}));
  EXPECT_EQ(tokenizer.encode("aaab"), (Ids{6, 4}));
  EXPECT_EQ(tokenizer.encode("aabc"), (Ids{0, 5}));
}

TEST(Tokenizer, LongPiecesMergeAsShortOnesDo) {
  // The heap (pieces of more than 64 symbols) against the plain scan, on text whose merges cannot
  // cross "c".
  const Tokenizer tokenizer =
      make(plain_tokenizer({"a", "b", "c", "aa", "ab", "aab", "bb", "abbb"},
                           {{"a", "b"}, {"a", "a"}, {"b", "b"}, {"a", "ab"}, {"ab", "bb"}}));
  uint32_t state = 1;
  for (int round = 0; round < 50; ++round) {
    std::string text;
    Ids pieces;
    for (int word = 0; word < 40; ++word) {
      std::string part;
      for (int i = 0; i < 12; ++i) {
        state = state * 1664525 + 1013904223;
        part += (state >> 24) % 3 == 0 ? 'b' : 'a';
      }
      part += 'c';
      const Ids ids = tokenizer.encode(part);
      pieces.insert(pieces.end(), ids.begin(), ids.end());
      text += part;
    }
    ASSERT_EQ(tokenizer.encode(text), pieces) << text;
  }
}

TEST(Tokenizer, AddedTokensAreFoundInsideText) {
  json file = plain_tokenizer({"a", "b", "<", "|", ">"});
  file["added_tokens"] = {added_token(5, "<|"), added_token(6, "<|b|>"),
                          added_token(7, "aa", false)};
  const Tokenizer tokenizer = make(file);
  EXPECT_EQ(tokenizer.encode("a<|b|>a<|b"), (Ids{0, 6, 0, 5, 1}));  // The longest wins.
  EXPECT_EQ(tokenizer.encode("aaa"), (Ids{7, 0}));                  // The leftmost wins.
  EXPECT_EQ(tokenizer.vocabulary_size(), 8);
  EXPECT_TRUE(tokenizer.is_special(6));
  EXPECT_FALSE(tokenizer.is_special(7));
  EXPECT_FALSE(tokenizer.is_special(0));
  EXPECT_EQ(tokenizer.decode(Ids{0, 6, 7}, true), "aaa");
  EXPECT_EQ(tokenizer.decode(Ids{0, 6, 7}, false), "a<|b|>aa");
  EXPECT_EQ(tokenizer.token_to_id("<|b|>"), 6);
  EXPECT_EQ(tokenizer.token_to_id("<|b"), std::nullopt);
  EXPECT_EQ(tokenizer.id_to_token(6), "<|b|>");
}

TEST(Tokenizer, IdsWithoutATokenAreKnown) {
  json file = plain_tokenizer({"a"});
  file["model"]["vocab"]["b"] = 9;
  const Tokenizer tokenizer = make(file);
  EXPECT_EQ(tokenizer.vocabulary_size(), 10);
  EXPECT_TRUE(tokenizer.contains(9));
  for (const int32_t id : {-1, 1, 8, 10, INT32_MAX, INT32_MIN}) {
    EXPECT_FALSE(tokenizer.contains(id));
    EXPECT_FALSE(tokenizer.is_special(id));
    EXPECT_THROW(tokenizer.id_to_token(id), Error);
  }
  EXPECT_EQ(tokenizer.decode(Ids{0, 5, -7, 9, 1000}, false), "ab");
}

TEST(Tokenizer, BytesThatAreNoTextBecomeReplacementCharacters) {
  const Tokenizer tokenizer = make(byte_level_tokenizer());
  const auto as_read = [&](std::string_view bytes) {
    return tokenizer.decode(tokenizer.encode(bytes), false);
  };
  EXPECT_EQ(as_read("a\xFF"
                    "b"),
            "a\uFFFDb");
  EXPECT_EQ(as_read("\xF0\x9F\x98"), "\uFFFD");  // One cut character.
  EXPECT_EQ(as_read("\xE4\xBD\xE4\xBD\xA0"), "\uFFFD你");
  EXPECT_EQ(as_read("\xC0\xAF"), "\uFFFD\uFFFD");            // Overlong.
  EXPECT_EQ(as_read("\xED\xA0\x80"), "\uFFFD\uFFFD\uFFFD");  // A surrogate.
  EXPECT_EQ(as_read("\xF4\x90\x80\x80"), "\uFFFD\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(as_read(std::string_view("a\0b", 3)), std::string_view("a\0b", 3));
}

TEST(Tokenizer, StreamingNeverEmitsHalfACharacter) {
  const Tokenizer tokenizer = make(byte_level_tokenizer());
  StreamDecoder decoder(tokenizer, false);
  EXPECT_EQ(decoder.push('a'), "a");
  EXPECT_EQ(decoder.push(0xF0), "");
  EXPECT_EQ(decoder.push(0x9F), "");
  EXPECT_EQ(decoder.push(0x98), "");
  EXPECT_EQ(decoder.push(0x80), "😀");
  EXPECT_EQ(decoder.push(0xE4), "");
  EXPECT_EQ(decoder.push(0xBD), "");
  EXPECT_EQ(decoder.push('b'), "\uFFFDb");  // What was cut is known to be damaged now.
  EXPECT_EQ(decoder.push(0xC3), "");
  EXPECT_EQ(decoder.finish(), "\uFFFD");
  uint32_t state = 5;
  for (int round = 0; round < 2000; ++round) {
    Ids ids;
    for (int i = 0; i < 8; ++i) {
      state = state * 1664525 + 1013904223;
      ids.push_back((state >> 30) == 0 ? 'x' : static_cast<int32_t>(0x80 + (state >> 25)));
    }
    ASSERT_EQ(streamed(tokenizer, ids, false), tokenizer.decode(ids, false));
  }
}

TEST(Tokenizer, LongInputsTakeTimeInProportion) {
  json file = byte_level_tokenizer();
  json& vocab = file["model"]["vocab"];
  std::string run = "a";
  for (int i = 0; i < 5; ++i) {
    file["model"]["merges"].push_back({run, run});
    run += run;
    vocab[run] = 256 + i;
  }
  const Tokenizer tokenizer = make(file);
  // A quadratic algorithm would take minutes here.
  const Ids ids = tokenizer.encode(std::string(1 << 20, 'a'));
  EXPECT_EQ(ids, Ids(1 << 15, 260));
  EXPECT_EQ(tokenizer.encode(std::string(1 << 20, ' ')).size(), size_t{1} << 20);
  EXPECT_EQ(tokenizer.encode(std::string(1 << 20, '\xFF')).size(), size_t{3} << 20);
}

TEST(Tokenizer, MatchesThatNeedDeepStacksAreNotCutShort) {
  json file = plain_tokenizer({"a", "b", "x"});
  // Each repetition of the group leaves a backtracking point.
  file["pre_tokenizer"] = {{"type", "Split"},
                           {"pattern", {{"Regex", "(?:a|b)+x"}}},
                           {"behavior", "Removed"},
                           {"invert", false}};
  const Tokenizer tokenizer = make(file);
  std::string text;
  for (int i = 0; i < 500000; ++i) text += i % 3 == 0 ? "b" : "a";
  EXPECT_EQ(tokenizer.encode(text + "xb"), Ids{1});
}

TEST(Tokenizer, ThreadsShareOneTokenizer) {
  json file = byte_level_tokenizer();
  file["model"]["vocab"]["th"] = 256;
  file["model"]["vocab"]["the"] = 257;
  file["model"]["merges"] = {"t h", "th e"};
  const Tokenizer tokenizer = make(file);
  const auto text_of = [](int thread, int i) {
    return "the thing " + std::to_string(i * thread) + " theme\n" +
           std::string(static_cast<size_t>(i % 90), 't') + "h";
  };
  std::vector<std::vector<Ids>> wanted(4);
  for (int t = 0; t < 4; ++t) {
    for (int i = 0; i < 200; ++i)
      wanted[static_cast<size_t>(t)].push_back(make(file).encode(text_of(t, i)));
  }
  std::vector<std::vector<Ids>> got(4);
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        for (int i = 0; i < 200; ++i)
          got[static_cast<size_t>(t)].push_back(tokenizer.encode(text_of(t, i)));
      });
    }
  }
  EXPECT_EQ(got, wanted);
}

TEST(Tokenizer, LoadsAFileOrItsFolder) {
  const auto folder =
      std::filesystem::temp_directory_path() / ("qd_tokenizer_" + std::to_string(::getpid()));
  std::filesystem::create_directory(folder);
  std::ofstream(folder / "tokenizer.json") << plain_tokenizer({"a"}).dump();
  EXPECT_EQ(Tokenizer::load(folder).encode("aa"), (Ids{0, 0}));
  EXPECT_EQ(Tokenizer::load(folder / "tokenizer.json").encode("a"), Ids{0});
  std::filesystem::remove_all(folder);
  EXPECT_THROW(Tokenizer::load(folder), IoError);
}

}  // namespace
}  // namespace quadrille::text
