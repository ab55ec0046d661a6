#include <ATen/core/Tensor.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "base/error.h"
#include "tensor/safetensors.h"
#include "tensor/safetensors_format.h"

namespace quadrille::tensor {
namespace {

// A file that is renamed into place when it is whole, and removed when it is not.
class FileInProgress {
 public:
  explicit FileInProgress(std::filesystem::path path) : path_(std::move(path)), beside_(path_) {
    beside_ += ".tmp";
    out_.open(beside_, std::ios::binary | std::ios::trunc);
    if (!out_) throw IoError("{}: cannot be created", beside_.string());
  }
  ~FileInProgress() {
    if (done_) return;
    out_.close();
    std::error_code ignored;
    std::filesystem::remove(beside_, ignored);
  }
  FileInProgress(const FileInProgress&) = delete;
  FileInProgress& operator=(const FileInProgress&) = delete;

  void write(const void* data, size_t size) {
    out_.write(static_cast<const char*>(data), static_cast<std::streamsize>(size));
    if (!out_) throw IoError("{}: write failed (disk full?)", beside_.string());
  }
  void finish() {
    out_.close();
    if (!out_) throw IoError("{}: write failed (disk full?)", beside_.string());
    sync_file(beside_);
    std::filesystem::rename(beside_, path_);
    done_ = true;
    sync_directory(path_.has_parent_path() ? path_.parent_path() : std::filesystem::path("."));
  }

 private:
  std::filesystem::path path_;
  std::filesystem::path beside_;
  std::ofstream out_;
  bool done_ = false;
};

}  // namespace

void write_safetensors(const std::filesystem::path& path, std::vector<TensorToWrite> tensors,
                       const std::map<std::string, std::string>& metadata,
                       const TensorSource& value) {
  std::sort(tensors.begin(), tensors.end(), [](const TensorToWrite& a, const TensorToWrite& b) {
    const size_t left = c10::elementSize(a.dtype);
    const size_t right = c10::elementSize(b.dtype);
    return left != right ? left > right : a.name < b.name;
  });
  // Built by hand: nlohmann would order the keys, and readers are faster when the order is that of
  // the data.
  std::string header = "{\"__metadata__\":" + nlohmann::json(metadata).dump();
  uint64_t at = 0;
  std::set<std::string_view> names;
  for (const auto& tensor : tensors) {
    QD_CHECK(names.insert(tensor.name).second && tensor.name != "__metadata__",
             "{}: tensor '{}' given twice", path.string(), tensor.name);
    const uint64_t size = static_cast<uint64_t>(c10::multiply_integers(tensor.shape)) *
                          c10::elementSize(tensor.dtype);
    header += fmt::format(",{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}",
                          nlohmann::json(tensor.name).dump(), safetensors_dtype_name(tensor.dtype),
                          fmt::join(tensor.shape, ","), at, at + size);
    at += size;
  }
  header += "}";
  header.append((8 - header.size() % 8) % 8, ' ');
  if (header.size() > kMaxHeader) throw IoError("{}: too many tensors for one file", path.string());

  FileInProgress out(path);
  const uint64_t length = header.size();
  out.write(&length, 8);
  out.write(header.data(), header.size());
  for (const auto& tensor : tensors) {
    const at::Tensor given = value(tensor);
    QD_CHECK(given.sizes() == at::IntArrayRef(tensor.shape),
             "{}: tensor '{}' has another shape than announced", path.string(), tensor.name);
    const at::Tensor stored = given.detach().to(at::kCPU, tensor.dtype).contiguous();
    out.write(stored.data_ptr(), stored.nbytes());
  }
  out.finish();
}

void write_safetensors_folder(const std::filesystem::path& folder,
                              const std::vector<TensorToWrite>& tensors, int64_t max_shard_bytes,
                              const TensorSource& value) {
  const std::map<std::string, std::string> metadata = {{"format", "pt"}};
  std::vector<std::vector<TensorToWrite>> shards(1);
  uint64_t in_shard = 0;
  uint64_t total_bytes = 0;
  int64_t total_elements = 0;
  for (const auto& tensor : tensors) {
    const int64_t elements = c10::multiply_integers(tensor.shape);
    const uint64_t size = static_cast<uint64_t>(elements) * c10::elementSize(tensor.dtype);
    if (!shards.back().empty() && in_shard + size > static_cast<uint64_t>(max_shard_bytes)) {
      shards.emplace_back();
      in_shard = 0;
    }
    shards.back().push_back(tensor);
    in_shard += size;
    total_bytes += size;
    total_elements += elements;
  }

  std::set<std::string> written;
  if (shards.size() == 1) {
    write_safetensors(folder / kSingleFile, shards[0], metadata, value);
    written.insert(kSingleFile);
    // Until it is gone an old index would win over the new file.
    if (std::filesystem::remove(folder / kIndexFile)) sync_directory(folder);
  } else {
    nlohmann::json index;
    index["metadata"] = {{"total_parameters", total_elements}, {"total_size", total_bytes}};
    for (size_t i = 0; i < shards.size(); ++i) {
      const std::string file =
          fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
      write_safetensors(folder / file, shards[i], metadata, value);
      for (const auto& tensor : shards[i]) index["weight_map"][tensor.name] = file;
      written.insert(file);
    }
    write_file_atomic(folder / kIndexFile, index.dump(2) + "\n");
  }
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    const std::string name = file.path().filename().string();
    const bool weights =
        name == kSingleFile || (name.starts_with("model-") && name.ends_with(".safetensors"));
    if (weights && !written.contains(name)) std::filesystem::remove(file.path());
  }
}

}  // namespace quadrille::tensor
