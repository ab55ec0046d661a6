#include "tensor/safetensors.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <unordered_set>
#include <utility>

#include "base/error.h"
#include "base/json_text.h"
#include "base/log.h"
#include "tensor/safetensors_format.h"
#include "tensor/strict_json.h"

namespace quadrille::tensor {
namespace {

static_assert(std::endian::native == std::endian::little,
              "tensors are copied as they lie in the file");

struct DtypeName {
  std::string_view name;
  at::ScalarType dtype;
};
constexpr std::array kDtypes = {
    DtypeName{"F64", at::kDouble},
    DtypeName{"F32", at::kFloat},
    DtypeName{"F16", at::kHalf},
    DtypeName{"BF16", at::kBFloat16},
    DtypeName{"I64", at::kLong},
    DtypeName{"I32", at::kInt},
    DtypeName{"I16", at::kShort},
    DtypeName{"I8", at::kChar},
    DtypeName{"U64", at::kUInt64},
    DtypeName{"U32", at::kUInt32},
    DtypeName{"U16", at::kUInt16},
    DtypeName{"U8", at::kByte},
    DtypeName{"BOOL", at::kBool},
    DtypeName{"F8_E4M3", at::kFloat8_e4m3fn},
    DtypeName{"F8_E5M2", at::kFloat8_e5m2},
};

std::optional<at::ScalarType> find_dtype(std::string_view name) {
  for (const auto& known : kDtypes) {
    if (known.name == name) return known.dtype;
  }
  return std::nullopt;
}

// Reads the header without building a document: it may be 100 MB, and each value has exactly one
// allowed type.
class HeaderReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  HeaderReader(SafetensorsHeader& header, std::string origin)
      : header_(header), origin_(std::move(origin)) {}

  bool null() override { return other("null"); }
  bool boolean(bool) override { return other("a boolean"); }
  bool number_integer(number_integer_t value) override {
    return other(fmt::format("the negative number {}", value));
  }
  bool number_float(number_float_t, const string_t& text) override {
    return other(fmt::format("the number {}", text));
  }
  bool binary(binary_t&) override { return other("binary data"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (skip_depth_ > 0 || state_ == State::kSkip) return scalar_done();
    if (state_ != State::kShapeItems && state_ != State::kOffsetItems) {
      return other(fmt::format("the number {}", value));
    }
    if (state_ == State::kShapeItems) {
      if (value > INT64_MAX) fail(fmt::format("dimension {} is too large", value));
      entry_.shape.push_back(static_cast<int64_t>(value));
    } else {
      offsets_.push_back(value);
    }
    return true;
  }
  bool string(string_t& value) override {
    if (skip_depth_ > 0 || state_ == State::kSkip) return scalar_done();
    if (state_ == State::kMetadataValue) {
      header_.metadata[key_] = value;
      state_ = State::kMetadata;
      return true;
    }
    if (state_ != State::kDtype) return other("a string");
    const auto dtype = find_dtype(value);
    if (!dtype) fail(fmt::format("dtype '{}' is not supported", value));
    entry_.dtype = *dtype;
    state_ = State::kEntry;
    return true;
  }

  bool start_object(std::size_t) override {
    if (skip()) return true;
    switch (state_) {
      case State::kStart:
        state_ = State::kTop;
        break;
      case State::kTopValue:
        state_ = key_ == "__metadata__" ? State::kMetadata : State::kEntry;
        break;
      default:
        return other("an object");
    }
    return true;
  }
  bool key(string_t& value) override {
    if (skip_depth_ > 0) return true;
    key_ = value;
    switch (state_) {
      case State::kTop:
        if (!names_.insert(value).second) fail_plain(fmt::format("'{}' stands twice", value));
        entry_ = {};
        entry_.name = value;
        fields_.clear();
        offsets_.clear();
        state_ = State::kTopValue;
        break;
      case State::kMetadata:
        if (header_.metadata.contains(value))
          fail_plain(fmt::format("metadata '{}' stands twice", value));
        state_ = State::kMetadataValue;
        break;
      case State::kEntry:
        if (!fields_.insert(value).second) fail(fmt::format("field '{}' stands twice", value));
        state_ = value == "dtype"          ? State::kDtype
                 : value == "shape"        ? State::kShape
                 : value == "data_offsets" ? State::kOffsets
                                           : State::kSkip;
        break;
      default:
        QD_CHECK(false, "key '{}' in state {}", value, static_cast<int>(state_));
    }
    return true;
  }
  bool end_object() override {
    if (skip_depth_ > 0) return leave_skipped();
    switch (state_) {
      case State::kMetadata:
        state_ = State::kTop;
        break;
      case State::kEntry:
        for (const char* field : {"dtype", "shape", "data_offsets"}) {
          if (!fields_.contains(field)) fail(fmt::format("field '{}' is missing", field));
        }
        if (offsets_.size() != 2)
          fail(fmt::format("data_offsets has {} numbers, not 2", offsets_.size()));
        entry_.begin = offsets_[0];
        entry_.end = offsets_[1];
        header_.tensors.push_back(std::move(entry_));
        state_ = State::kTop;
        break;
      default:
        state_ = State::kEnd;
    }
    return true;
  }
  bool start_array(std::size_t) override {
    if (skip()) return true;
    switch (state_) {
      case State::kShape:
        state_ = State::kShapeItems;
        break;
      case State::kOffsets:
        state_ = State::kOffsetItems;
        break;
      default:
        return other("an array");
    }
    return true;
  }
  bool end_array() override {
    if (skip_depth_ > 0) return leave_skipped();
    state_ = State::kEntry;
    return true;
  }
  bool parse_error(std::size_t, const std::string&,
                   const nlohmann::detail::exception& error) override {
    throw FormatError("{}: the header is not JSON: {}", origin_, json_reason(error.what()));
  }

 private:
  enum class State {
    kStart,
    kTop,
    kTopValue,
    kMetadata,
    kMetadataValue,
    kEntry,
    kDtype,
    kShape,
    kShapeItems,
    kOffsets,
    kOffsetItems,
    kSkip,
    kEnd
  };

  // Unknown fields of an entry may hold anything; they are walked over.
  bool skip() {
    if (skip_depth_ == 0 && state_ != State::kSkip) return false;
    ++skip_depth_;
    return true;
  }
  bool leave_skipped() {
    if (--skip_depth_ == 0) state_ = State::kEntry;
    return true;
  }
  bool scalar_done() {
    if (skip_depth_ == 0) state_ = State::kEntry;
    return true;
  }
  bool other(const std::string& what) {
    if (skip_depth_ > 0 || state_ == State::kSkip) return scalar_done();
    switch (state_) {
      case State::kMetadataValue:
        fail_plain(fmt::format("metadata '{}' is {}, not a string", key_, what));
      case State::kTopValue:
        fail(fmt::format("described by {}, not an object", what));
      case State::kDtype:
        fail(fmt::format("dtype is {}, not a string", what));
      case State::kShape:
      case State::kShapeItems:
        fail(fmt::format("shape holds {}", what));
      case State::kOffsets:
      case State::kOffsetItems:
        fail(fmt::format("data_offsets holds {}", what));
      default:
        fail_plain(fmt::format("the header is {}, not an object", what));
    }
  }
  [[noreturn]] void fail(const std::string& what) const {
    throw FormatError("{}: tensor '{}': {}", origin_, entry_.name, what);
  }
  [[noreturn]] void fail_plain(const std::string& what) const {
    throw FormatError("{}: {}", origin_, what);
  }

  SafetensorsHeader& header_;
  std::string origin_;
  State state_ = State::kStart;
  int64_t skip_depth_ = 0;
  std::string key_;
  StoredTensor entry_;
  std::set<std::string> fields_;
  std::vector<uint64_t> offsets_;
  std::unordered_set<std::string> names_;
};

uint64_t size_in_bytes(const StoredTensor& tensor, const std::string& origin) {
  uint64_t size = c10::elementSize(tensor.dtype);
  for (const int64_t dimension : tensor.shape) {
    if (__builtin_mul_overflow(size, static_cast<uint64_t>(dimension), &size)) {
      throw FormatError("{}: tensor '{}': the size of shape [{}] overflows", origin, tensor.name,
                        fmt::join(tensor.shape, ", "));
    }
  }
  return size;
}

void check_tiling(const SafetensorsHeader& header, uint64_t data_size, const std::string& origin) {
  std::vector<const StoredTensor*> by_offset;
  by_offset.reserve(header.tensors.size());
  for (const auto& tensor : header.tensors) by_offset.push_back(&tensor);
  std::sort(by_offset.begin(), by_offset.end(), [](const StoredTensor* a, const StoredTensor* b) {
    return std::pair(a->begin, a->end) < std::pair(b->begin, b->end);
  });
  uint64_t at = 0;
  for (const StoredTensor* tensor : by_offset) {
    if (tensor->end < tensor->begin) {
      throw FormatError("{}: tensor '{}': ends at {} before it begins at {}", origin, tensor->name,
                        tensor->end, tensor->begin);
    }
    if (tensor->begin != at) {
      throw FormatError("{}: tensor '{}': begins at {}, but the data up to there ends at {} ({})",
                        origin, tensor->name, tensor->begin, at,
                        tensor->begin > at ? "hole" : "overlap");
    }
    if (const uint64_t size = size_in_bytes(*tensor, origin); size != tensor->num_bytes()) {
      throw FormatError("{}: tensor '{}': {} bytes of data, but {} [{}] takes {}", origin,
                        tensor->name, tensor->num_bytes(), safetensors_dtype_name(tensor->dtype),
                        fmt::join(tensor->shape, ", "), size);
    }
    at = tensor->end;
  }
  if (at != data_size) {
    throw FormatError("{}: {} bytes of data, but the tensors take {}{}", origin, data_size, at,
                      at > data_size ? " (file cut short)" : "");
  }
}

std::string describe(const StoredTensor& tensor) {
  return fmt::format("{} [{}]", safetensors_dtype_name(tensor.dtype),
                     fmt::join(tensor.shape, ", "));
}

// Files of an index, in name order; name -> file as the index maps it.
struct Index {
  std::map<std::string, std::string> file_of;
  std::set<std::string> files;
  std::optional<uint64_t> total_size;
};

Index read_index(const std::filesystem::path& path) {
  const auto json = read_strict_json(path);
  const std::string origin = path.string();
  if (!json.is_object() || !json.contains("weight_map") || !json["weight_map"].is_object()) {
    throw FormatError("{}: no weight_map", origin);
  }
  Index index;
  for (const auto& [name, file] : json["weight_map"].items()) {
    if (!file.is_string())
      throw FormatError("{}: tensor '{}' is mapped to no file name", origin, name);
    const std::string text = file.get<std::string>();
    // The index says where to read; a path would let it read anywhere.
    if (text.empty() || text == "." || text == ".." ||
        text.find_first_of("/\\") != std::string::npos) {
      throw FormatError("{}: tensor '{}': '{}' is not a plain file name", origin, name, text);
    }
    index.file_of[name] = text;
    index.files.insert(text);
  }
  if (json.contains("metadata") && json["metadata"].is_object() &&
      json["metadata"].contains("total_size")) {
    const auto& total = json["metadata"]["total_size"];
    if (!total.is_number() || total.get<double>() < 0)
      throw FormatError("{}: total_size is not a size", origin);
    index.total_size = total.is_number_float() ? static_cast<uint64_t>(total.get<double>())
                                               : total.get<uint64_t>();
  }
  return index;
}

}  // namespace

int64_t StoredTensor::numel() const {
  return c10::multiply_integers(shape);
}

std::string_view safetensors_dtype_name(at::ScalarType dtype) {
  for (const auto& known : kDtypes) {
    if (known.dtype == dtype) return known.name;
  }
  throw FormatError("dtype {} has no name in safetensors", c10::toString(dtype));
}

SafetensorsHeader parse_safetensors(std::span<const std::byte> file, const std::string& origin) {
  if (file.size() < 8)
    throw FormatError("{}: {} bytes, too short for safetensors", origin, file.size());
  uint64_t length = 0;
  std::memcpy(&length, file.data(), 8);
  if (length > kMaxHeader) {
    throw FormatError("{}: a header of {} bytes, more than the {} allowed (not safetensors?)",
                      origin, length, kMaxHeader);
  }
  if (length > file.size() - 8) {
    throw FormatError("{}: a header of {} bytes, but the file has {}", origin, length, file.size());
  }
  const std::string_view text(reinterpret_cast<const char*>(file.data()) + 8, length);
  // What the JSON reader would forgive: a byte order mark, and a NUL, at which it stops reading.
  if (text.starts_with("\xEF\xBB\xBF") || text.find('\0') != std::string_view::npos) {
    throw FormatError("{}: the header is not JSON: it holds a byte order mark or a zero byte",
                      origin);
  }
  SafetensorsHeader header;
  HeaderReader reader(header, origin);
  nlohmann::json::sax_parse(text.begin(), text.end(), &reader);
  header.data_begin = 8 + length;
  std::sort(header.tensors.begin(), header.tensors.end(),
            [](const StoredTensor& a, const StoredTensor& b) { return a.name < b.name; });
  check_tiling(header, file.size() - header.data_begin, origin);
  return header;
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : file_(path), header_(parse_safetensors(file_.bytes(), path.string())) {}

const StoredTensor* SafetensorsFile::find(std::string_view name) const {
  const auto found = std::lower_bound(
      header_.tensors.begin(), header_.tensors.end(), name,
      [](const StoredTensor& tensor, std::string_view wanted) { return tensor.name < wanted; });
  return found != header_.tensors.end() && found->name == name ? &*found : nullptr;
}

std::span<const std::byte> SafetensorsFile::bytes(const StoredTensor& tensor) const {
  return file_.bytes().subspan(header_.data_begin + tensor.begin, tensor.num_bytes());
}

at::Tensor SafetensorsFile::read(const StoredTensor& tensor) const {
  const auto from = bytes(tensor);
  auto result = at::empty(tensor.shape, at::TensorOptions().dtype(tensor.dtype));
  if (!from.empty()) std::memcpy(result.data_ptr(), from.data(), from.size());
  return result;
}

void SafetensorsFile::read_into(const StoredTensor& tensor, int64_t first,
                                const at::Tensor& destination) const {
  const int64_t count = destination.numel();
  QD_CHECK(destination.is_contiguous() && first >= 0 && first + count <= tensor.numel(),
           "{}: '{}' {}: elements {}+{}", path().string(), tensor.name, describe(tensor), first,
           count);
  if (count == 0) return;
  const size_t element = c10::elementSize(tensor.dtype);
  const auto from = bytes(tensor).subspan(static_cast<size_t>(first) * element,
                                          static_cast<size_t>(count) * element);
  if (tensor.dtype == destination.scalar_type() && destination.is_cpu()) {
    std::memcpy(destination.data_ptr(), from.data(), from.size());
    return;
  }
  const auto options = at::TensorOptions().dtype(tensor.dtype);
  at::Tensor source;
  if (reinterpret_cast<uintptr_t>(from.data()) % element == 0) {
    source = at::from_blob(const_cast<std::byte*>(from.data()), {count}, options);
  } else {
    // The header may have any length, so the mapped data need not be aligned.
    source = at::empty({count}, options);
    std::memcpy(source.data_ptr(), from.data(), from.size());
  }
  destination.view({count}).copy_(source);
}

bool SafetensorsFolder::present(const std::filesystem::path& folder) {
  return std::filesystem::exists(folder / kSingleFile) ||
         std::filesystem::exists(folder / kIndexFile);
}

void SafetensorsFolder::add(const std::filesystem::path& path) {
  files_.push_back(std::make_unique<SafetensorsFile>(path));
  const SafetensorsFile* file = files_.back().get();
  for (const auto& tensor : file->tensors()) {
    const auto [at, added] = entries_.try_emplace(tensor.name, Entry{file, &tensor});
    if (!added) {
      throw FormatError("{}: tensor '{}' is also in {}", path.string(), tensor.name,
                        at->second.file->path().filename().string());
    }
  }
}

SafetensorsFolder::SafetensorsFolder(const std::filesystem::path& folder) : folder_(folder) {
  const auto index_path = folder / kIndexFile;
  const auto single_path = folder / kSingleFile;
  const bool single = std::filesystem::exists(single_path);
  if (!std::filesystem::exists(index_path)) {
    if (!single) throw IoError("{}: no {} and no {}", folder.string(), kSingleFile, kIndexFile);
    add(single_path);
    return;
  }
  const Index index = read_index(index_path);
  if (single && !index.files.contains(kSingleFile)) {
    log_warn("{}: both {} and {} exist; the index is used", folder.string(), kSingleFile,
             kIndexFile);
  }
  for (const auto& file : index.files) {
    if (!std::filesystem::exists(folder / file)) {
      throw IoError("{}: missing, though {} names it", (folder / file).string(), kIndexFile);
    }
    add(folder / file);
  }
  for (const auto& [name, file] : index.file_of) {
    const Entry* entry = find(name);
    if (entry == nullptr || entry->file->path().filename() != file) {
      throw FormatError("{}: tensor '{}' is missing, though {} places it there",
                        (folder / file).string(), name, kIndexFile);
    }
  }
  for (const auto& [name, entry] : entries_) {
    if (!index.file_of.contains(name)) {
      throw FormatError("{}: tensor '{}' is not in {}", entry.file->path().string(), name,
                        kIndexFile);
    }
  }
  if (index.total_size && *index.total_size != num_bytes()) {
    throw FormatError("{}: total_size {}, but the tensors take {} bytes", index_path.string(),
                      *index.total_size, num_bytes());
  }
}

const SafetensorsFolder::Entry* SafetensorsFolder::find(std::string_view name) const {
  const auto found = entries_.find(name);
  return found == entries_.end() ? nullptr : &found->second;
}

uint64_t SafetensorsFolder::num_bytes() const {
  uint64_t sum = 0;
  for (const auto& [name, entry] : entries_) sum += entry.tensor->num_bytes();
  return sum;
}

}  // namespace quadrille::tensor
