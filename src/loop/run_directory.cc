#include "loop/run_directory.h"

#include <utility>

#include "base/error.h"
#include "observe/metrics_jsonl.h"

namespace quadrille::loop {

RunDirectory::RunDirectory(std::filesystem::path root, bool resume) : root_(std::move(root)) {
  std::error_code error;
  if (!resume && std::filesystem::exists(root_) && !std::filesystem::is_empty(root_, error)) {
    throw ConfigError(
        "{} is not empty: continue that run with --resume, or choose another folder (run.dir)",
        root_.string());
  }
  std::filesystem::create_directories(checkpoints(), error);
  if (error) throw IoError("{}: {}", checkpoints().string(), error.message());
}

void RunDirectory::cut_after(int64_t step) const {
  observe::cut_jsonl_after(metrics(), step);
  observe::cut_jsonl_after(samples(), step);
}

}  // namespace quadrille::loop
