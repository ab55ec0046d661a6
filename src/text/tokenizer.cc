// Puts the parts together: added tokens, normalizer, splitter, merges; and the decoder.
#include "text/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <unordered_map>

#include "base/error.h"
#include "base/file.h"
#include "text/tokenizer_added.h"
#include "text/tokenizer_bpe.h"
#include "text/tokenizer_decoder.h"
#include "text/tokenizer_file.h"
#include "text/tokenizer_normalizer.h"
#include "text/tokenizer_splitter.h"
#include "text/tokenizer_unicode.h"
#include "text/tokenizer_vocabulary.h"

namespace quadrille::text {
namespace {

// What one encode() call works with. Kept and handed to the next call, since the cache grows
// valuable.
struct EncodeScratch {
  RegexScratch regex;
  BpeModel::Scratch bpe;
  std::string normal[2];
  std::vector<AddedTokenMatcher::Part> parts;
  std::vector<AddedTokenMatcher::Part> normal_parts;
};

class ScratchPool {
 public:
  std::unique_ptr<EncodeScratch> take() {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) return std::make_unique<EncodeScratch>();
    auto scratch = std::move(free_.back());
    free_.pop_back();
    return scratch;
  }
  void give_back(std::unique_ptr<EncodeScratch> scratch) {
    const std::lock_guard lock(mutex_);
    free_.push_back(std::move(scratch));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<EncodeScratch>> free_;  // The last one is the warmest.
};

// Ids beyond this many times the tokens there are would only waste memory: the file is damaged.
int64_t id_limit(const TokenizerFile& file) {
  return 4 * static_cast<int64_t>(file.vocabulary.size()) + (1 << 20);
}

struct FileToken {
  AddedToken token;
  JsonPlace place;
};

// The list in the file, with the ids that the library gives. It goes by content and order and never
// looks at the "id" written there; a file in which the two differ says two things at once and is
// refused.
std::vector<FileToken> read_added_tokens(const TokenizerFile& file) {
  const JsonPlace list = JsonPlace(file, file.rest, "").member("added_tokens");
  std::unordered_map<std::string_view, int64_t> model_ids;
  if (!list.is_null()) {
    for (const auto& [token, id] : file.vocabulary) model_ids[token] = id;
  }
  std::vector<FileToken> out;
  std::unordered_map<std::string, size_t> seen;
  auto next_id = static_cast<int64_t>(file.vocabulary.size());
  for (const JsonPlace& place : list.is_null() ? std::vector<JsonPlace>() : list.elements()) {
    FileToken entry{{}, place};
    AddedToken& token = entry.token;
    token.content = place.member("content").string();
    token.special = place.member("special").boolean();
    token.single_word = place.member("single_word").boolean();
    token.lstrip = place.member("lstrip").boolean();
    token.rstrip = place.member("rstrip").boolean();
    token.normalized = place.member("normalized").boolean();
    if (token.content.empty()) place.fail("an added token without content");
    if (!seen.emplace(token.content, out.size()).second)
      place.fail("\"{}\" is there twice", token.content);
    const auto known = model_ids.find(token.content);
    const int64_t id = known != model_ids.end() ? known->second : next_id++;
    const int64_t written = place.integer_or("id", -1);
    if (written != id)
      place.fail("\"{}\" has the id {}, but by its place it is {}", token.content, written, id);
    token.id = static_cast<int32_t>(id);
    out.push_back(std::move(entry));
  }
  return out;
}

Vocabulary model_vocabulary(const TokenizerFile& file, const std::vector<FileToken>& added) {
  const int64_t limit = id_limit(file);
  int64_t ids = 0;
  for (const auto& [token, id] : file.vocabulary) {
    if (id >= limit)
      throw FormatError("{}: model.vocab[\"{}\"]: the id {} is out of range", file.origin, token,
                        id);
    ids = std::max(ids, id + 1);
  }
  for (const FileToken& entry : added) ids = std::max<int64_t>(ids, int64_t{entry.token.id} + 1);
  Vocabulary vocabulary(ids, file.vocabulary.size());
  for (const auto& [token, id] : file.vocabulary) {
    if (!vocabulary.add(token, static_cast<int32_t>(id))) {
      throw FormatError("{}: model.vocab[\"{}\"]: the token or its id {} is there twice",
                        file.origin, token, id);
    }
  }
  return vocabulary;
}

}  // namespace

struct TokenizerTables {
  TokenizerTables(const TokenizerFile& file, const std::vector<FileToken>& tokens);

  void encode_text(std::string_view text, EncodeScratch& scratch, std::vector<int32_t>& ids) const;
  void encode_part(std::string_view text, bool at_start, EncodeScratch& scratch,
                   std::vector<int32_t>& ids) const;
  // What decoding works on, or nullopt for an id that leaves no trace.
  std::optional<std::string_view> decodable(int32_t id, bool skip_special_tokens) const;

  bool contains(int64_t id) const { return model_tokens.contains(id) || added_tokens.contains(id); }
  std::string_view token(int64_t id) const {
    return added_tokens.contains(id) ? added_tokens.token(id) : model_tokens.token(id);
  }

  Vocabulary model_tokens;  // model.vocab: all that merging may see.
  Vocabulary added_tokens;  // Those that are not in model.vocab. The same number of ids.
  Normalizer normalizer;
  Splitter splitter;
  BpeModel model;
  Decoder decoder;
  AddedTokenMatcher before_normalizing;
  AddedTokenMatcher after_normalizing;
  std::vector<bool> special;    // [ids]
  std::vector<bool> skippable;  // [ids]: left out when special tokens are.
  std::unordered_map<int32_t, std::string>
      normalized;  // Added tokens that the normalizer respells.
  mutable ScratchPool scratch;
};

TokenizerTables::TokenizerTables(const TokenizerFile& file, const std::vector<FileToken>& tokens)
    : model_tokens(model_vocabulary(file, tokens)),
      added_tokens(model_tokens.ids(), tokens.size()),
      normalizer(JsonPlace(file, file.rest, "").member("normalizer")),
      splitter(JsonPlace(file, file.rest, "").member("pre_tokenizer")),
      model(file, model_tokens, splitter.leave_bytes()),
      decoder(JsonPlace(file, file.rest, "").member("decoder")),
      special(static_cast<size_t>(model_tokens.ids())) {
  if (splitter.asks_for_start() && !normalizer.keeps_start()) {
    JsonPlace(file, file.rest, "")
        .member("pre_tokenizer")
        .fail("prepend_scheme \"first\" is not supported with this normalizer");
  }
  RegexScratch regex;
  for (const auto& [token, place] : tokens) {
    if (!model_tokens.find(token.content)) {
      if (contains(token.id))
        place.fail("the id {} belongs to \"{}\"", token.id, this->token(token.id));
      added_tokens.add(token.content, token.id);
    }
    std::string written = token.content;
    if (token.normalized) {
      std::string buffers[2];
      written = normalizer.apply(token.content, regex, buffers);
      if (written != token.content) normalized[token.id] = written;
    }
    AddedTokenMatcher& matcher = token.normalized ? after_normalizing : before_normalizing;
    if (!matcher.add(written, token))
      place.fail("\"{}\" cannot be told from another added token", written);
  }
  // The library goes by spelling: it skips what reads like the content of a special token.
  for (const auto& [token, place] : tokens) special[static_cast<size_t>(token.id)] = token.special;
  skippable = special;
  for (const auto& [id, written] : normalized) {
    const auto same = std::find_if(tokens.begin(), tokens.end(), [&](const FileToken& other) {
      return other.token.special && other.token.content == written;
    });
    skippable[static_cast<size_t>(id)] = same != tokens.end();
  }
}

void TokenizerTables::encode_text(std::string_view text, EncodeScratch& s,
                                  std::vector<int32_t>& ids) const {
  s.parts.clear();
  before_normalizing.find(text, s.parts);
  for (const AddedTokenMatcher::Part& part : s.parts) {
    if (part.id >= 0) {
      ids.push_back(part.id);
      continue;
    }
    const bool at_start = part.text.data() == text.data();
    const std::string_view normal = normalizer.apply(part.text, s.regex, s.normal);
    if (after_normalizing.empty()) {
      encode_part(normal, at_start, s, ids);
      continue;
    }
    s.normal_parts.clear();
    after_normalizing.find(normal, s.normal_parts);
    for (const AddedTokenMatcher::Part& inner : s.normal_parts) {
      if (inner.id >= 0) {
        ids.push_back(inner.id);
      } else {
        encode_part(inner.text, at_start && inner.text.data() == normal.data(), s, ids);
      }
    }
  }
}

void TokenizerTables::encode_part(std::string_view text, bool at_start, EncodeScratch& s,
                                  std::vector<int32_t>& ids) const {
  splitter.split(text, at_start, s.regex,
                 [&](std::string_view piece) { model.encode(piece, s.bpe, ids); });
}

std::optional<std::string_view> TokenizerTables::decodable(int32_t id,
                                                           bool skip_special_tokens) const {
  if (!contains(id)) return std::nullopt;
  if (skip_special_tokens && skippable[static_cast<size_t>(id)]) return std::nullopt;
  const auto respelt = normalized.find(id);
  return respelt != normalized.end() ? respelt->second : token(id);
}

Tokenizer::Tokenizer(std::shared_ptr<const TokenizerTables> tables) : tables_(std::move(tables)) {}

Tokenizer Tokenizer::load(const std::filesystem::path& folder_or_file) {
  const bool folder = std::filesystem::is_directory(folder_or_file);
  const std::filesystem::path file = folder ? folder_or_file / "tokenizer.json" : folder_or_file;
  return from_json(read_file(file), file.string());
}

Tokenizer Tokenizer::from_json(std::string_view json, const std::string& origin) {
  const TokenizerFile file = read_tokenizer_file(json, origin);
  const JsonPlace root(file, file.rest, "");
  const JsonPlace version = root.member("version");
  if (!version.is_null() && version.string() != "1.0")
    version.fail("\"{}\" is not supported, \"1.0\" is", version.string());
  const JsonPlace model = root.member("model");
  if (model.is_null()) throw FormatError("{}: there is no model", origin);
  if (const std::string type = model.string_or("type", "BPE"); type != "BPE") {
    model.member("type").fail("\"{}\" is not supported, \"BPE\" is", type);
  }
  if (!file.has_vocabulary) model.member("vocab").fail("must be an object of token to id");
  if (!file.has_merges) model.member("merges").fail("must be an array");
  return Tokenizer(std::make_shared<TokenizerTables>(file, read_added_tokens(file)));
}

std::vector<int32_t> Tokenizer::encode(std::string_view text) const {
  const std::optional<std::string> repaired = repaired_utf8(text);
  std::vector<int32_t> ids;
  std::unique_ptr<EncodeScratch> scratch = tables_->scratch.take();
  // When this throws the scratch is thrown away with it.
  tables_->encode_text(repaired ? *repaired : text, *scratch, ids);
  tables_->scratch.give_back(std::move(scratch));
  return ids;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special_tokens) const {
  DecodeStages stages(tables_->decoder);
  std::string out;
  for (const int32_t id : ids) {
    if (const auto token = tables_->decodable(id, skip_special_tokens)) stages.push(*token, out);
  }
  stages.finish(out);
  return out;
}

int64_t Tokenizer::vocabulary_size() const {
  return tables_->model_tokens.ids();
}
bool Tokenizer::contains(int32_t id) const {
  return tables_->contains(id);
}
bool Tokenizer::is_special(int32_t id) const {
  return contains(id) && tables_->special[static_cast<size_t>(id)];
}

std::optional<int32_t> Tokenizer::token_to_id(std::string_view token) const {
  const auto id = tables_->added_tokens.find(token);
  return id ? id : tables_->model_tokens.find(token);
}

std::string Tokenizer::id_to_token(int32_t id) const {
  if (!contains(id)) throw Error("no token has the id {}", id);
  return std::string(tables_->token(id));
}

StreamDecoder::StreamDecoder(const Tokenizer& tokenizer, bool skip_special_tokens)
    : tables_(tokenizer.tables_),
      stages_(std::make_unique<DecodeStages>(tables_->decoder)),
      skip_special_tokens_(skip_special_tokens) {}
StreamDecoder::~StreamDecoder() = default;
StreamDecoder::StreamDecoder(StreamDecoder&&) noexcept = default;
StreamDecoder& StreamDecoder::operator=(StreamDecoder&&) noexcept = default;

std::string StreamDecoder::push(int32_t id) {
  std::string out;
  if (const auto token = tables_->decodable(id, skip_special_tokens_)) stages_->push(*token, out);
  return out;
}

std::string StreamDecoder::finish() {
  std::string out;
  stages_->finish(out);
  return out;
}

}  // namespace quadrille::text
