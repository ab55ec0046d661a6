// A training checkpoint: a folder that is either whole or not there.
//
//   checkpoints/step-000050/
//     weights-00000-of-00001.safetensors     fp32 values; one file a rank
//     optimizer-00000-of-00001.safetensors   moments, likewise
//     state.json                             all else that a run needs, in the caller's own words
//     model/config.json, tokenizer.json, …   so that the checkpoint stands alone
//     manifest.json                          written last: size and xxh64 of every other file
//
// Files are written into step-000050.tmp, each synced; then the folder is renamed and its parent
// synced. A kill at any moment leaves the checkpoints that were there, and perhaps a .tmp that the
// next save removes.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/config.h"
#include "checkpoint/manifest.h"

namespace quadrille::checkpoint {

struct CheckpointConfig {
  int64_t every = 50;
  int64_t keep_last = 2;
  bool keep_best = true;

  void validate() const;
};
void bind(CheckpointConfig& config, ConfigBinder& binder);

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

// "step-000050".
std::string step_name(int64_t step);

// ---- Writing ------------------------------------------------------------------------------------

// A checkpoint while it is written. With several ranks: rank 0 creates it, all ranks (on a shared
// file system) open the same draft after that and write their shards, rank 0 gathers the entries
// and commits.
//
// Failures throw IoError naming the file and what to do; older checkpoints are never touched before
// commit is done.
class Draft {
 public:
  // Creates step-N.tmp, in place of one left behind.
  static Draft create(const std::filesystem::path& dir, int64_t step);
  // Another rank's view of a draft that rank 0 created.
  static Draft join(const std::filesystem::path& dir, int64_t step);

  // KIND-0000R-of-0000W.safetensors, in the tensors' own dtypes.
  FileEntry write_shard(std::string_view kind, int64_t rank, int64_t ranks,
                        const NamedTensors& tensors) const;
  FileEntry write_text(const std::string& name, std::string_view text) const;

  // Writes the manifest and makes the checkpoint appear; replaces one of the same step. Gives back
  // its folder.
  std::filesystem::path commit(const std::vector<FileEntry>& files,
                               std::optional<double> metric) const;
  // Removes the draft, freeing its space; never throws.
  void abandon() const noexcept;

 private:
  Draft(std::filesystem::path dir, int64_t step);

  std::filesystem::path dir_;
  std::filesystem::path folder_;
  int64_t step_;
};

struct StoredText {
  std::string name;
  std::string text;
};

struct Content {
  int64_t step = 0;
  NamedTensors weights;
  NamedTensors moments;
  std::string state_json;  // A JSON object.
  std::vector<StoredText>
      model_files;               // Of model/: config.json, tokenizer files (checkpoint/export.h).
  std::optional<double> metric;  // Larger is better; for keep_best.
};

// The whole of it for a run of one rank: draft, commit, prune.
std::filesystem::path save(const std::filesystem::path& dir, const Content& content,
                           const CheckpointConfig& config);

// Removes all but the newest keep_last and, with keep_best, the one of the largest metric (the
// newest of equals). What is damaged is neither counted nor removed.
void prune(const std::filesystem::path& dir, const CheckpointConfig& config);

// ---- Reading ------------------------------------------------------------------------------------

class Checkpoint {
 public:
  // Checks the manifest, and the size and checksum of every file. Throws FormatError or IoError
  // naming the file that is damaged.
  explicit Checkpoint(const std::filesystem::path& folder);
  Checkpoint(Checkpoint&&) noexcept;
  Checkpoint& operator=(Checkpoint&&) noexcept;
  ~Checkpoint();

  const std::filesystem::path& folder() const;
  const Manifest& manifest() const;
  int64_t step() const;
  const std::string& state_json() const;
  std::filesystem::path model_folder() const;

  bool has(const std::string& name) const;
  // A copy on the CPU. Throws FormatError naming the checkpoint if there is none of this name.
  at::Tensor tensor(const std::string& name) const;
  std::vector<std::string> tensor_names() const;
  std::vector<int64_t> shape(const std::string& name) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Steps that have a folder, rising.
std::vector<int64_t> list_steps(const std::filesystem::path& dir);

// The newest checkpoint that is whole. Damaged ones are passed over with a warning that names file
// and reason. None at all: nullopt. Some, but none whole: throws FormatError, for starting afresh
// would hide the loss.
std::optional<Checkpoint> load_newest(const std::filesystem::path& dir);

}  // namespace quadrille::checkpoint
