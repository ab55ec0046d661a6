#include "checkpoint/checkpoint.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <stdio.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "tensor/safetensors.h"
#include "tensor/strict_json.h"

namespace quadrille::checkpoint {

namespace fs = std::filesystem;

namespace {

constexpr const char* kStateFile = "state.json";
constexpr const char* kModelFolder = "model";
constexpr std::string_view kPrefix = "step-";
constexpr const char* kDraftSuffix = ".tmp";
constexpr const char* kTrashSuffix = ".trash";

// What a person can do about a failed write, by what the system said.
std::string advice(const std::string& reason) {
  const auto says = [&](const char* text) { return reason.find(text) != std::string::npos; };
  if (says(std::strerror(ENOSPC)) || says(std::strerror(EDQUOT)) || says(std::strerror(EFBIG)) ||
      says("disk full")) {
    return "free space there, or lower checkpoint.keep_last";
  }
  if (says(std::strerror(EACCES)) || says(std::strerror(EPERM)) || says(std::strerror(EROFS)) ||
      says(std::strerror(ENOTDIR))) {
    return "make the folder writable for this user, or choose another run.dir";
  }
  return "check that disk";
}

// Runs a piece of a save; whatever the file system says becomes one IoError.
template <class Call>
auto writing(int64_t step, Call call) {
  std::string reason;
  try {
    return call();
  } catch (const IoError& error) {
    reason = error.what();
  } catch (const fs::filesystem_error& error) {
    reason = fmt::format("{}: {}", error.path1().string(), error.code().message());
  }
  throw IoError("{}; checkpoint of step {} was not written, older ones are intact: {}", reason,
                step, advice(reason));
}

void remove_quietly(const fs::path& path) noexcept {
  std::error_code ignored;
  fs::remove_all(path, ignored);
}

// A folder that is half removed must not look like a damaged checkpoint: it changes its name first.
void discard(const fs::path& folder) {
  fs::path trash = folder;
  trash += kTrashSuffix;
  remove_quietly(trash);
  fs::rename(folder, trash);
  remove_quietly(trash);
}

// Makes `from` appear as `to`, whether or not there is a folder of that name, without a moment with
// neither.
void replace_folder(const fs::path& from, const fs::path& to) {
  if (!fs::exists(to)) {
    fs::rename(from, to);
    return;
  }
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) == 0) {
    remove_quietly(from);
    return;
  }
  // A file system without exchange: the older copy goes first, then the new one comes.
  discard(to);
  fs::rename(from, to);
}

std::optional<int64_t> step_of(const std::string& name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  int64_t step = 0;
  const char* begin = name.data() + kPrefix.size();
  const auto [end, error] = std::from_chars(begin, name.data() + name.size(), step);
  if (error != std::errc() || step < 0 || step_name(step) != name) return std::nullopt;
  return step;
}

}  // namespace

void CheckpointConfig::validate() const {
  if (every < 0)
    throw ConfigError("checkpoint.every = {} must not be negative (0: only at the end)", every);
  if (keep_last < 1) throw ConfigError("checkpoint.keep_last = {} must be at least 1", keep_last);
}

void bind(CheckpointConfig& c, ConfigBinder& b) {
  b.field("every", c.every,
          "Steps between two checkpoints; one is also written at the end and when interrupted. 0: "
          "only then.");
  b.field("keep_last", c.keep_last, "Newest checkpoints that are kept.");
  b.field("keep_best", c.keep_best, "Keep the one with the best evaluation as well.");
}

std::string step_name(int64_t step) {
  return fmt::format("{}{:06}", kPrefix, step);
}

// ---- Writing ------------------------------------------------------------------------------------

Draft::Draft(fs::path dir, int64_t step)
    : dir_(std::move(dir)), folder_(dir_ / step_name(step)), step_(step) {
  folder_ += kDraftSuffix;
}

Draft Draft::create(const fs::path& dir, int64_t step) {
  QD_CHECK(step >= 0, "step {}", step);
  Draft draft(dir, step);
  writing(step, [&] {
    if (fs::create_directories(dir) && dir.has_parent_path()) sync_directory(dir.parent_path());
    // Whatever a killed save or removal left behind: only one save is under way at a time.
    for (const auto& entry : fs::directory_iterator(dir)) {
      const fs::path name = entry.path().filename();
      if ((name.extension() == kDraftSuffix || name.extension() == kTrashSuffix) &&
          step_of(name.stem().string())) {
        fs::remove_all(entry.path());
      }
    }
    fs::create_directory(draft.folder_);
    return 0;
  });
  return draft;
}

Draft Draft::join(const fs::path& dir, int64_t step) {
  return Draft(dir, step);
}

FileEntry Draft::write_shard(std::string_view kind, int64_t rank, int64_t ranks,
                             const NamedTensors& tensors) const {
  const std::string name = fmt::format("{}-{:05}-of-{:05}.safetensors", kind, rank, ranks);
  return writing(step_, [&] {
    std::vector<tensor::TensorToWrite> wanted;
    std::unordered_map<std::string_view, const at::Tensor*> by_name;
    for (const auto& [tensor_name, value] : tensors) {
      wanted.push_back({tensor_name, value.scalar_type(), value.sizes().vec()});
      by_name[tensor_name] = &value;
    }
    tensor::write_safetensors(folder_ / name, wanted, {},
                              [&](const tensor::TensorToWrite& t) { return *by_name.at(t.name); });
    return describe_file(folder_, name);
  });
}

FileEntry Draft::write_text(const std::string& name, std::string_view text) const {
  return writing(step_, [&] {
    const fs::path path = folder_ / name;
    if (fs::create_directories(path.parent_path()))
      sync_directory(path.parent_path().parent_path());
    write_file_atomic(path, text);
    return describe_file(folder_, name);
  });
}

fs::path Draft::commit(const std::vector<FileEntry>& files, std::optional<double> metric) const {
  const fs::path final_folder = dir_ / step_name(step_);
  writing(step_, [&] {
    write_file_atomic(folder_ / kManifestFile, manifest_text({step_, metric, files}));
    replace_folder(folder_, final_folder);
    sync_directory(dir_);
    return 0;
  });
  return final_folder;
}

void Draft::abandon() const noexcept {
  remove_quietly(folder_);
}

fs::path save(const fs::path& dir, const Content& content, const CheckpointConfig& config) {
  const Draft draft = Draft::create(dir, content.step);
  fs::path folder;
  try {
    std::vector<FileEntry> files;
    files.push_back(draft.write_shard("weights", 0, 1, content.weights));
    files.push_back(draft.write_shard("optimizer", 0, 1, content.moments));
    for (const StoredText& file : content.model_files) {
      files.push_back(draft.write_text((fs::path(kModelFolder) / file.name).string(), file.text));
    }
    files.push_back(draft.write_text(kStateFile, content.state_json));
    folder = draft.commit(files, content.metric);
  } catch (...) {
    // The half-written files may be what fills the disk.
    draft.abandon();
    throw;
  }
  prune(dir, config);
  return folder;
}

void prune(const fs::path& dir, const CheckpointConfig& config) {
  struct Whole {
    int64_t step;
    std::optional<double> metric;
  };
  std::vector<Whole> whole;  // Rising steps.
  for (const int64_t step : list_steps(dir)) {
    const fs::path manifest = dir / step_name(step) / kManifestFile;
    try {
      whole.push_back({step, parse_manifest(read_file(manifest), manifest.string()).metric});
    } catch (const Error&) {
      continue;  // load_newest tells of it when it matters.
    }
  }
  int64_t best = -1;
  if (config.keep_best) {
    std::optional<double> largest;
    for (const Whole& w : whole) {
      if (w.metric && (!largest || *w.metric >= *largest)) {
        largest = w.metric;
        best = w.step;
      }
    }
  }
  const auto last = static_cast<size_t>(config.keep_last);
  for (size_t i = 0; i + last < whole.size(); ++i) {
    if (whole[i].step == best) continue;
    writing(whole[i].step, [&] {
      discard(dir / step_name(whole[i].step));
      return 0;
    });
  }
}

// ---- Reading ------------------------------------------------------------------------------------

struct Checkpoint::Impl {
  fs::path folder;
  Manifest manifest;
  std::string state;
  using Place = std::pair<const tensor::SafetensorsFile*, const tensor::StoredTensor*>;
  std::vector<std::unique_ptr<tensor::SafetensorsFile>> shards;
  std::map<std::string, Place> tensors;

  const Place& find(const std::string& name) const {
    const auto found = tensors.find(name);
    if (found == tensors.end()) throw FormatError("{}: has no tensor {}", folder.string(), name);
    return found->second;
  }
};

Checkpoint::Checkpoint(const fs::path& folder) : impl_(std::make_unique<Impl>()) {
  impl_->folder = folder;
  const fs::path manifest = folder / kManifestFile;
  if (!fs::exists(manifest)) {
    throw FormatError("{}: is missing: the checkpoint was not finished, or is none",
                      manifest.string());
  }
  impl_->manifest = parse_manifest(read_file(manifest), manifest.string());
  if (const auto step = step_of(folder.filename().string());
      step && *step != impl_->manifest.step) {
    throw FormatError("{}: is of step {}", manifest.string(), impl_->manifest.step);
  }
  bool has_state = false;
  for (const FileEntry& file : impl_->manifest.files) {
    verify_file(folder, file);
    if (file.name == kStateFile) {
      has_state = true;
      impl_->state = read_file(folder / file.name);
    }
    if (!file.name.ends_with(".safetensors")) continue;
    impl_->shards.push_back(std::make_unique<tensor::SafetensorsFile>(folder / file.name));
    const tensor::SafetensorsFile* shard = impl_->shards.back().get();
    for (const tensor::StoredTensor& tensor : shard->tensors()) {
      if (!impl_->tensors.emplace(tensor.name, std::make_pair(shard, &tensor)).second) {
        throw FormatError("{}: tensor {} stands in another shard too", shard->path().string(),
                          tensor.name);
      }
    }
  }
  if (!has_state) throw FormatError("{}: lists no {}", manifest.string(), kStateFile);
}

Checkpoint::Checkpoint(Checkpoint&&) noexcept = default;
Checkpoint& Checkpoint::operator=(Checkpoint&&) noexcept = default;
Checkpoint::~Checkpoint() = default;

const fs::path& Checkpoint::folder() const {
  return impl_->folder;
}
const Manifest& Checkpoint::manifest() const {
  return impl_->manifest;
}
int64_t Checkpoint::step() const {
  return impl_->manifest.step;
}
const std::string& Checkpoint::state_json() const {
  return impl_->state;
}
fs::path Checkpoint::model_folder() const {
  return impl_->folder / kModelFolder;
}
bool Checkpoint::has(const std::string& name) const {
  return impl_->tensors.contains(name);
}

at::Tensor Checkpoint::tensor(const std::string& name) const {
  const auto& [shard, stored] = impl_->find(name);
  return shard->read(*stored);
}

std::vector<int64_t> Checkpoint::shape(const std::string& name) const {
  return impl_->find(name).second->shape;
}

std::vector<std::string> Checkpoint::tensor_names() const {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : impl_->tensors) names.push_back(name);
  return names;
}

std::vector<int64_t> list_steps(const fs::path& dir) {
  std::vector<int64_t> steps;
  if (!fs::is_directory(dir)) return steps;
  for (const auto& entry : fs::directory_iterator(dir)) {
    const auto step = step_of(entry.path().filename().string());
    if (step && entry.is_directory()) steps.push_back(*step);
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

std::optional<Checkpoint> load_newest(const fs::path& dir) {
  if (fs::is_directory(dir)) {
    for (const auto& entry : fs::directory_iterator(dir)) {
      const fs::path name = entry.path().filename();
      if (name.extension() == kDraftSuffix && step_of(name.stem().string())) {
        log_warn("{}: a save was interrupted here; it is passed over", entry.path().string());
      }
    }
  }
  const std::vector<int64_t> steps = list_steps(dir);
  std::string last_reason;
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    try {
      return Checkpoint(dir / step_name(*step));
    } catch (const Error& error) {
      last_reason = error.what();
      log_warn("checkpoint of step {} cannot be used: {}", *step, last_reason);
    }
  }
  if (steps.empty()) return std::nullopt;
  throw FormatError("{}: none of its {} checkpoints can be used; the oldest: {}", dir.string(),
                    steps.size(), last_reason);
}

}  // namespace quadrille::checkpoint
