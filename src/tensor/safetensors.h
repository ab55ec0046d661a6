// The safetensors container: named tensors in one file, or in shards that an index lists.
//
//   8 bytes  N, unsigned little-endian
//   N bytes  UTF-8 JSON: name -> {dtype, shape, data_offsets [begin, end)}, and "__metadata__"
//   string -> string the rest data; offsets count from here, row-major, little-endian
//
// A file is judged by its header alone, before anything is allocated: the tensors must tile the
// data without hole or overlap, and each must have exactly the bytes its shape and dtype say.
// Whatever passes can be read safely. Stricter than the reference library in one point: a name that
// stands twice is an error.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"

namespace quadrille::tensor {

struct StoredTensor {
  std::string name;
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> shape;
  uint64_t begin = 0, end = 0;  // Bytes, from the start of the data.

  int64_t numel() const;
  uint64_t num_bytes() const { return end - begin; }
};

// Name of a dtype as the format spells it ("BF16"); throws FormatError for one it cannot hold.
std::string_view safetensors_dtype_name(at::ScalarType dtype);

struct SafetensorsHeader {
  std::vector<StoredTensor> tensors;  // In name order.
  std::map<std::string, std::string> metadata;
  uint64_t data_begin = 0;  // In the file.
};
// Parses and checks the start of a whole file in memory; `origin` names it in errors.
SafetensorsHeader parse_safetensors(std::span<const std::byte> file, const std::string& origin);

// One file, mapped.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return file_.path(); }
  const std::vector<StoredTensor>& tensors() const { return header_.tensors; }
  const std::map<std::string, std::string>& metadata() const { return header_.metadata; }
  const StoredTensor* find(std::string_view name) const;  // Null: absent.

  std::span<const std::byte> bytes(const StoredTensor& tensor) const;
  // A copy with the stored dtype and shape.
  at::Tensor read(const StoredTensor& tensor) const;
  // Copies destination.numel() elements from element `first` on, converting the dtype. The
  // destination is contiguous, of any shape and on any device.
  void read_into(const StoredTensor& tensor, int64_t first, const at::Tensor& destination) const;

 private:
  MappedFile file_;
  SafetensorsHeader header_;
};

// All tensors of a Hugging Face folder: model.safetensors, or the shards of
// model.safetensors.index.json (which wins, with a warning, where both exist). Every mapped tensor
// must be in its file, no file may hold an unmapped one, and the sum of bytes must be the index's
// total_size.
class SafetensorsFolder {
 public:
  struct Entry {
    const SafetensorsFile* file = nullptr;
    const StoredTensor* tensor = nullptr;
  };

  explicit SafetensorsFolder(const std::filesystem::path& folder);
  // True if the folder has one of the two files.
  static bool present(const std::filesystem::path& folder);

  const std::map<std::string, Entry, std::less<>>& entries() const { return entries_; }
  const Entry* find(std::string_view name) const;
  const std::filesystem::path& path() const { return folder_; }
  size_t num_files() const { return files_.size(); }
  uint64_t num_bytes() const;

 private:
  void add(const std::filesystem::path& path);

  std::filesystem::path folder_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, Entry, std::less<>> entries_;
};

// What to write: values are asked for one at a time, in file order, so that a model is never held
// twice.
struct TensorToWrite {
  std::string name;
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> shape;
};
// Values may be of another dtype and on a device; they are converted.
using TensorSource = std::function<at::Tensor(const TensorToWrite&)>;

// Writes beside `path`, syncs, renames over it. Order inside the file: falling element size, then
// name.
void write_safetensors(const std::filesystem::path& path, std::vector<TensorToWrite> tensors,
                       const std::map<std::string, std::string>& metadata,
                       const TensorSource& value);

// model.safetensors, or shards of at most max_shard_bytes (a larger tensor gets its own) in the
// order given and, last, their index. Weight files of an earlier save in the same folder are
// removed afterwards.
void write_safetensors_folder(const std::filesystem::path& folder,
                              const std::vector<TensorToWrite>& tensors, int64_t max_shard_bytes,
                              const TensorSource& value);

}  // namespace quadrille::tensor
