// Tokenizers small enough to read, for the tests of this room.
#pragma once

#include <nlohmann/json.hpp>

#include <string>
#include <utility>
#include <vector>

#include "text/tokenizer.h"

namespace quadrille::text::testing {

// A tokenizer.json with nothing but a model: the characters and merges given.
inline nlohmann::json plain_tokenizer(
    const std::vector<std::string>& tokens,
    const std::vector<std::pair<std::string, std::string>>& merges = {}) {
  nlohmann::json vocab = nlohmann::json::object();
  for (const std::string& token : tokens) vocab[token] = vocab.size();
  nlohmann::json list = nlohmann::json::array();
  for (const auto& [left, right] : merges) list.push_back({left, right});
  return {{"version", "1.0"},
          {"added_tokens", nlohmann::json::array()},
          {"normalizer", nullptr},
          {"pre_tokenizer", nullptr},
          {"post_processor", nullptr},
          {"decoder", {{"type", "Fuse"}}},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", list}}}};
}

inline nlohmann::json added_token(int id, const std::string& content, bool special = true) {
  return {{"id", id},        {"content", content}, {"special", special}, {"single_word", false},
          {"lstrip", false}, {"rstrip", false},    {"normalized", false}};
}

inline Tokenizer make(const nlohmann::json& json) {
  return Tokenizer::from_json(json.dump(), "test.json");
}

// What StreamDecoder gives in all, to be compared with decode().
inline std::string streamed(const Tokenizer& tokenizer, const std::vector<int32_t>& ids,
                            bool skip_special) {
  StreamDecoder decoder(tokenizer, skip_special);
  std::string out;
  for (const int32_t id : ids) out += decoder.push(id);
  return out + decoder.finish();
}

}  // namespace quadrille::text::testing
