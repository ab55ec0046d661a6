// Damaged and unsupported files: always a FormatError that names the file and the place, never a
// crash and never a tokenizer that quietly differs.
#include <gtest/gtest.h>

#include <functional>

#include "base/error.h"
#include "text/tokenizer_testing.h"

namespace quadrille::text {
namespace {

using nlohmann::json;
using testing::added_token;
using testing::plain_tokenizer;

// A file that has everything, and is whole.
json whole() {
  json file = plain_tokenizer({"a", "b", "ab", "<unk>", "▁"}, {{"a", "b"}});
  file["added_tokens"] = {added_token(3, "<unk>"), added_token(5, "<s>")};
  file["normalizer"] = {{"type", "Sequence"},
                        {"normalizers",
                         {{{"type", "NFC"}},
                          {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "▁"}},
                          {{"type", "Prepend"}, {"prepend", "▁"}}}}};
  file["pre_tokenizer"] = {{"type", "Sequence"},
                           {"pretokenizers",
                            {{{"type", "Split"},
                              {"pattern", {{"Regex", "\\p{N}{1,3}"}}},
                              {"behavior", "Isolated"},
                              {"invert", false}},
                             {{"type", "Digits"}, {"individual_digits", true}},
                             {{"type", "Metaspace"},
                              {"replacement", "▁"},
                              {"prepend_scheme", "always"},
                              {"split", true}}}}};
  file["decoder"] = {{"type", "Sequence"},
                     {"decoders",
                      {{{"type", "Replace"}, {"pattern", {{"String", "▁"}}}, {"content", " "}},
                       {{"type", "ByteFallback"}},
                       {{"type", "Fuse"}},
                       {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}}}};
  file["model"]["unk_token"] = "<unk>";
  return file;
}

// The message of the FormatError, which must name the file.
std::string refusal_of_text(const std::string& text) {
  try {
    Tokenizer::from_json(text, "bad.json");
  } catch (const FormatError& error) {
    EXPECT_TRUE(std::string(error.what()).starts_with("bad.json: ")) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "accepted: " << text.substr(0, 500);
  return {};
}

std::string refusal(const json& file) {
  return refusal_of_text(file.dump());
}

TEST(TokenizerDamage, TheWholeFileLoads) {
  EXPECT_NO_THROW(testing::make(whole()));
}

TEST(TokenizerDamage, EveryTruncationIsRefused) {
  const std::string text = whole().dump();
  for (size_t size = 0; size < text.size(); ++size) refusal_of_text(text.substr(0, size));
}

TEST(TokenizerDamage, EveryByteMayBeDamaged) {
  // Some damage leaves a valid file; none may crash. All that is thrown is a FormatError.
  const std::string text = whole().dump();
  uint32_t state = 3;
  for (size_t at = 0; at < text.size(); ++at) {
    for (int round = 0; round < 3; ++round) {
      state = state * 1664525 + 1013904223;
      std::string damaged = text;
      damaged[at] = round == 0   ? '"'
                    : round == 1 ? static_cast<char>(state >> 24)
                                 : "09{}[],:ntf-e\\"[(state >> 24) % 14];
      try {
        const Tokenizer tokenizer = Tokenizer::from_json(damaged, "bad.json");
        tokenizer.decode(tokenizer.encode("ab <s> a1 <unk>\xFF"), true);
      } catch (const FormatError&) {
      }
    }
  }
}

// Calls visit(value, path) for each value of a tree.
void each_value(json& value, const std::string& path,
                const std::function<void(json&, const std::string&)>& visit) {
  visit(value, path);
  if (!value.is_structured()) return;
  for (auto& [key, child] : value.items()) each_value(child, path + "/" + key, visit);
}

TEST(TokenizerDamage, EveryValueMayHaveAnotherType) {
  std::vector<std::string> paths;
  json file = whole();
  each_value(file, "", [&](json&, const std::string& path) { paths.push_back(path); });
  const std::vector<json> others = {nullptr,
                                    true,
                                    -1,
                                    1.5,
                                    1e300,
                                    18446744073709551615ULL,
                                    4000000000U,
                                    "",
                                    "x",
                                    json::array(),
                                    json::object(),
                                    json::array({1}),
                                    {{"type", "Nonsense"}}};
  for (const std::string& path : paths) {
    for (const json& other : others) {
      json damaged = whole();
      damaged[json::json_pointer(path)] = other;
      try {
        const Tokenizer tokenizer = testing::make(damaged);
        tokenizer.decode(tokenizer.encode("ab <s> a1 <unk>"), true);
      } catch (const FormatError&) {
      }
    }
  }
}

TEST(TokenizerDamage, VocabularyAndMerges) {
  const auto with = [](const std::function<void(json&)>& change) {
    json file = whole();
    change(file);
    return refusal(file);
  };
  EXPECT_NE(with([](json& f) {
              f["model"]["merges"] = json::array({json::array({"a", "z"})});
            }).find("model.merges[0]: \"z\" is not in model.vocab"),
            std::string::npos);
  EXPECT_NE(with([](json& f) {
              f["model"]["merges"] = json::array({json::array({"b", "a"})});
            }).find("\"ba\""),
            std::string::npos);
  with([](json& f) { f["model"]["merges"] = {"a b c"}; });
  with([](json& f) { f["model"]["merges"] = {"ab"}; });
  with([](json& f) { f["model"]["merges"] = {{"a"}}; });
  with([](json& f) { f["model"]["merges"] = {{"a", "b", "c"}}; });
  with([](json& f) { f["model"]["merges"] = {{"a", "b"}, "a b"}; });
  with([](json& f) { f["model"]["merges"] = {"a b", {"a", "b"}}; });
  with([](json& f) { f["model"]["merges"] = {{"a", 1}}; });
  with([](json& f) { f["model"]["merges"] = {{"a", {"b"}}}; });
  with([](json& f) { f["model"]["merges"] = {{{"a", "b"}}}; });
  with([](json& f) { f["model"]["merges"] = {7}; });
  with([](json& f) { f["model"]["merges"] = 7; });
  with([](json& f) { f["model"].erase("merges"); });
  with([](json& f) { f["model"].erase("vocab"); });
  with([](json& f) { f.erase("model"); });
  EXPECT_NE(with([](json& f) { f["model"]["vocab"]["c"] = 1; }), "");
  for (const json& id :
       {json(-1), json(1.0), json("1"), json(nullptr), json(true), json::array({1}), json::object(),
        json(2000000000), json(4294967296), json(18446744073709551615ULL), json(1e30)}) {
    with([&](json& f) { f["model"]["vocab"]["c"] = id; });
  }
  with([](json& f) { f["model"]["unk_token"] = "<other>"; });
  std::string twice = whole().dump();
  twice.replace(twice.find("\"b\":1"), 5, "\"b\":1,\"b\":9");
  refusal_of_text(twice);
  refusal_of_text(R"({"model":{"vocab":{},"merges":[],"vocab":{}}})");
  refusal_of_text(R"({"model":{"vocab":{},"merges":[],"merges":[]}})");
}

TEST(TokenizerDamage, AddedTokens) {
  const auto with = [](json tokens) {
    json file = whole();
    file["added_tokens"] = std::move(tokens);
    return refusal(file);
  };
  EXPECT_NE(with({added_token(9, "<s>")})
                .find("added_tokens[0]: \"<s>\" has the id 9, but by its place it is 5"),
            std::string::npos);
  with({added_token(4, "<s>")});
  with({added_token(-1, "<s>")});
  with({added_token(0, "b")});
  with({added_token(5, "")});
  with({added_token(5, "<s>"), added_token(5, "<s>")});
  with({added_token(5, "<s>"), added_token(5, "<t>")});
  with({added_token(2000000000, "<s>")});
  with({{{"id", 5}}});
  with({7});
  with(7);
  // Both are looked for as "▁<s>" after the normalizer.
  json one = added_token(5, "<s>");
  json other = added_token(6, " <s>");
  one["normalized"] = other["normalized"] = true;
  json file = whole();
  file["normalizer"] = {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", ""}};
  file["pre_tokenizer"] = nullptr;
  file["added_tokens"] = {one, other};
  refusal(file);
  // The vocabulary has a gap, so the next free number is taken.
  file = plain_tokenizer({"a"});
  file["model"]["vocab"]["b"] = 2;
  file["added_tokens"] = {added_token(2, "<s>")};
  refusal(file);
}

TEST(TokenizerDamage, UnsupportedPartsAreNamed) {
  const auto with = [](const char* path, const json& value) {
    json file = whole();
    file[json::json_pointer(path)] = value;
    return refusal(file);
  };
  const auto names = [](const std::string& message, const std::string& what) {
    EXPECT_NE(message.find(what), std::string::npos) << message;
  };
  names(with("/model/type", "Unigram"), "model.type: \"Unigram\"");
  names(with("/model/dropout", 0.1), "model.dropout");
  names(with("/model/continuing_subword_prefix", "##"), "model.continuing_subword_prefix");
  names(with("/model/end_of_word_suffix", "</w>"), "model.end_of_word_suffix");
  names(with("/version", "2.0"), "version");
  names(with("/normalizer", {{"type", "Lowercase"}}), "normalizer: the normalizer \"Lowercase\"");
  names(with("/normalizer/normalizers/0", {{"type", "NFKC"}}), "normalizer.normalizers[0]");
  names(with("/normalizer/normalizers/0", {{"type", "Prepend"}, {"prepend", ""}}), "prepend");
  names(with("/normalizer/normalizers/1/pattern", {{"Regex", "x*"}}), "normalizer.normalizers[1]");
  names(with("/pre_tokenizer", {{"type", "BertPreTokenizer"}}), "\"BertPreTokenizer\"");
  names(with("/pre_tokenizer/pretokenizers/0/behavior", "Sideways"),
        "pre_tokenizer.pretokenizers[0].behavior");
  names(with("/pre_tokenizer/pretokenizers/0/pattern", {{"Regex", "(a"}}),
        "pre_tokenizer.pretokenizers[0].pattern");
  names(with("/pre_tokenizer/pretokenizers/0/pattern", {{"Regex", "(a)\\1"}}), "\\1");
  names(with("/pre_tokenizer/pretokenizers/2/prepend_scheme", "first"), "first");
  names(with("/decoder", {{"type", "WordPiece"}}), "decoder: the decoder \"WordPiece\"");
  names(with("/decoder/decoders/3/start", -1), "decoder.decoders[3]");
  names(with("/decoder/decoders/3/content", "ab"), "decoder.decoders[3].content");
}

TEST(TokenizerDamage, DeepNestingIsRefused) {
  refusal_of_text(std::string(100000, '['));
  refusal_of_text(std::string(100000, '{'));
  for (const auto& [part, list] : {std::pair{"normalizer", "normalizers"},
                                   {"pre_tokenizer", "pretokenizers"},
                                   {"decoder", "decoders"}}) {
    json sequence = {{"type", "Sequence"}, {list, json::array()}};
    for (int i = 0; i < 12; ++i) sequence = {{"type", "Sequence"}, {list, json::array({sequence})}};
    json file = plain_tokenizer({"a"});
    file[part] = sequence;
    refusal(file);
  }
  json file = plain_tokenizer({"a"});
  file["pre_tokenizer"] = {{"type", "Sequence"},
                           {"pretokenizers", json(100, {{"type", "WhitespaceSplit"}})}};
  refusal(file);
  file["pre_tokenizer"] = {
      {"type", "Split"},
      {"pattern", {{"Regex", std::string(5000, '(') + std::string(5000, ')')}}},
      {"behavior", "Isolated"},
      {"invert", false}};
  refusal(file);
}

}  // namespace
}  // namespace quadrille::text
