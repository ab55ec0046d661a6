// One pass of a SAX parser: a document tree of half a million merges takes a second and a quarter
// of a gigabyte, the tables a tenth of both.
#include "text/tokenizer_file.h"

#include <optional>

#include "text/tokenizer_unicode.h"

namespace quadrille::text {
namespace {

using nlohmann::json;

// Deep enough for any component; a file nested deeper is an attack on the stack.
constexpr size_t kMaxDepth = 64;

class Reader final : public nlohmann::json_sax<json> {
 public:
  explicit Reader(TokenizerFile& file) : file_(file) {}

  bool null() override { return scalar(json()); }
  bool boolean(bool value) override { return scalar(json(value)); }
  bool number_float(double value, const std::string&) override { return scalar(json(value)); }
  bool binary(json::binary_t&) override { return false; }
  bool number_integer(int64_t value) override {
    if (table_ == Table::kVocabulary) return token_id(value);
    return scalar(json(value));
  }
  bool number_unsigned(uint64_t value) override {
    if (table_ == Table::kVocabulary) {
      return token_id(value > static_cast<uint64_t>(INT64_MAX) ? INT64_MAX
                                                               : static_cast<int64_t>(value));
    }
    return scalar(json(value));
  }
  bool string(std::string& value) override {
    if (table_ == Table::kMerges) return merge_text(value);
    if (table_ == Table::kPair) return merge_part(value);
    return scalar(json(std::move(value)));
  }

  bool key(std::string& value) override {
    (table_ == Table::kVocabulary ? token_ : key_) = std::move(value);
    return true;
  }
  bool start_object(size_t) override {
    if (table_ != Table::kNone) wrong_kind();
    if (is_table("vocab")) {
      if (file_.has_vocabulary) fail("model.vocab is there twice");
      file_.has_vocabulary = true;
      table_ = Table::kVocabulary;
      return true;
    }
    return open(json::object());
  }
  bool end_object() override {
    if (table_ == Table::kVocabulary) {
      table_ = Table::kNone;
      return true;
    }
    open_.pop_back();
    return true;
  }
  bool start_array(size_t) override {
    if (table_ == Table::kMerges) {
      if (merge_kind_ == MergeKind::kText)
        fail("model.merges[{}]: pairs and strings are mixed", file_.merges.size());
      merge_kind_ = MergeKind::kPair;
      table_ = Table::kPair;
      parts_ = 0;
      file_.merges.emplace_back();
      return true;
    }
    if (table_ != Table::kNone) wrong_kind();
    if (is_table("merges")) {
      if (file_.has_merges) fail("model.merges is there twice");
      file_.has_merges = true;
      table_ = Table::kMerges;
      return true;
    }
    return open(json::array());
  }
  bool end_array() override {
    if (table_ == Table::kPair) {
      if (parts_ != 2)
        fail("model.merges[{}]: a merge has two parts, this one {}", file_.merges.size() - 1,
             parts_);
      table_ = Table::kMerges;
      return true;
    }
    if (table_ == Table::kMerges) {
      table_ = Table::kNone;
      return true;
    }
    open_.pop_back();
    return true;
  }
  bool parse_error(size_t position, const std::string&, const json::exception& error) override {
    fail("not JSON at byte {}: {}", position, error.what());
  }

 private:
  enum class Table { kNone, kVocabulary, kMerges, kPair };
  enum class MergeKind { kUnknown, kText, kPair };

  template <class... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    throw FormatError("{}: {}", file_.origin, fmt::format(format, std::forward<Args>(args)...));
  }
  [[noreturn]] void wrong_kind() const {
    if (table_ == Table::kVocabulary)
      fail("model.vocab[\"{}\"]: the id must be a whole number from 0", token_);
    if (table_ == Table::kPair)
      fail("model.merges[{}]: must hold two strings", file_.merges.size() - 1);
    fail("model.merges[{}]: must be \"a b\" or [\"a\", \"b\"]", file_.merges.size());
  }
  bool is_table(const char* name) const {
    return open_.size() == 2 && in_model_ && open_.back()->is_object() && key_ == name;
  }

  // Where the next value goes: a new element or the member named by the last key.
  json* place(json value) {
    if (open_.empty()) {
      file_.rest = std::move(value);
      return &file_.rest;
    }
    json& parent = *open_.back();
    if (parent.is_array()) {
      parent.push_back(std::move(value));
      return &parent.back();
    }
    return &(parent[key_] = std::move(value));
  }
  bool scalar(json value) {
    if (table_ != Table::kNone) wrong_kind();
    place(std::move(value));
    return true;
  }
  bool open(json container) {
    if (open_.size() >= kMaxDepth) fail("nested deeper than {} levels", kMaxDepth);
    if (open_.size() == 1) in_model_ = key_ == "model" && file_.rest.is_object();
    open_.push_back(place(std::move(container)));
    return true;
  }

  bool token_id(int64_t id) {
    if (id < 0) wrong_kind();
    file_.vocabulary.emplace_back(std::move(token_), id);
    return true;
  }
  bool merge_part(std::string& part) {
    auto& merge = file_.merges.back();
    if (++parts_ > 2) fail("model.merges[{}]: a merge has two parts", file_.merges.size() - 1);
    (parts_ == 1 ? merge.first : merge.second) = std::move(part);
    return true;
  }
  bool merge_text(const std::string& text) {
    if (merge_kind_ == MergeKind::kPair)
      fail("model.merges[{}]: pairs and strings are mixed", file_.merges.size());
    merge_kind_ = MergeKind::kText;
    if (text.starts_with("#version")) return true;  // The first line of an old merges.txt.
    const size_t space = text.find(' ');
    if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos) {
      fail("model.merges[{}]: \"{}\" is not two tokens with one space between", file_.merges.size(),
           text);
    }
    file_.merges.emplace_back(text.substr(0, space), text.substr(space + 1));
    return true;
  }

  TokenizerFile& file_;
  Table table_ = Table::kNone;
  MergeKind merge_kind_ = MergeKind::kUnknown;
  int parts_ = 0;
  bool in_model_ = false;
  std::string key_;
  std::string token_;
  std::vector<json*> open_;  // The objects and arrays that have begun, outermost first.
};

const json& absent_value() {
  static const json* null = new json();
  return *null;
}

}  // namespace

TokenizerFile read_tokenizer_file(std::string_view text, const std::string& origin) {
  TokenizerFile file;
  file.origin = origin;
  Reader reader(file);
  json::sax_parse(text.begin(), text.end(), &reader);
  if (!file.rest.is_object()) throw FormatError("{}: a tokenizer is a JSON object", origin);
  return file;
}

JsonPlace JsonPlace::member(const std::string& key) const {
  if (!value_->is_object()) fail("must be an object, is {}", value_->type_name());
  const auto found = value_->find(key);
  return {*file_, found == value_->end() ? absent_value() : *found,
          path_.empty() ? key : path_ + "." + key};
}

std::vector<JsonPlace> JsonPlace::elements() const {
  if (!value_->is_array()) fail("must be an array, is {}", value_->type_name());
  std::vector<JsonPlace> out;
  out.reserve(value_->size());
  for (size_t i = 0; i < value_->size(); ++i)
    out.emplace_back(*file_, (*value_)[i], fmt::format("{}[{}]", path_, i));
  return out;
}

std::string JsonPlace::string() const {
  if (!value_->is_string()) fail("must be a string, is {}", value_->type_name());
  return value_->get<std::string>();
}

bool JsonPlace::boolean() const {
  if (!value_->is_boolean()) fail("must be true or false, is {}", value_->type_name());
  return value_->get<bool>();
}

std::string JsonPlace::string_or(const std::string& key, const std::string& absent) const {
  const JsonPlace place = member(key);
  return place.is_null() ? absent : place.string();
}

bool JsonPlace::boolean_or(const std::string& key, bool absent) const {
  const JsonPlace place = member(key);
  return place.is_null() ? absent : place.boolean();
}

int64_t JsonPlace::integer_or(const std::string& key, int64_t absent) const {
  const JsonPlace place = member(key);
  if (place.is_null()) return absent;
  if (!place.value().is_number_integer() ||
      (place.value().is_number_unsigned() &&
       place.value().get<uint64_t>() > static_cast<uint64_t>(INT64_MAX))) {
    place.fail("must be a whole number");
  }
  return place.value().get<int64_t>();
}

std::string JsonPlace::character(const std::string& key) const {
  const JsonPlace place = member(key);
  std::string text = place.string();
  if (text.empty() || static_cast<size_t>(code_point_at(text, 0).bytes) != text.size()) {
    place.fail("\"{}\" is not one character", text);
  }
  return text;
}

std::string JsonPlace::type() const {
  const JsonPlace place = member("type");
  if (place.is_null()) fail("has no \"type\"");
  return place.string();
}

PatternText read_pattern(const JsonPlace& component) {
  const JsonPlace pattern = component.member("pattern");
  const JsonPlace text = pattern.member("String");
  const JsonPlace regex = pattern.member("Regex");
  if (text.is_null() == regex.is_null()) pattern.fail("must hold either \"String\" or \"Regex\"");
  return text.is_null() ? PatternText{true, regex.string()} : PatternText{false, text.string()};
}

}  // namespace quadrille::text
