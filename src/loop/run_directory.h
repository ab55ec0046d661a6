// RUN_DIR: what a run leaves behind, and how it is taken up again.
//
//   config.toml      the resolved configuration       metrics.jsonl    one line a step
//   samples.jsonl    a sample of answers              events.out.*     for TensorBoard
//   curves.svg       the curves, redrawn at each save checkpoints/     what --resume continues from
//   model/           the final weights as a Hugging Face folder
#pragma once

#include <cstdint>
#include <filesystem>

namespace quadrille::loop {

class RunDirectory {
 public:
  // Makes the folder. Without `resume` a folder that is not empty is refused (ConfigError).
  RunDirectory(std::filesystem::path root, bool resume);

  const std::filesystem::path& root() const { return root_; }
  std::filesystem::path config() const { return root_ / "config.toml"; }
  std::filesystem::path metrics() const { return root_ / "metrics.jsonl"; }
  std::filesystem::path samples() const { return root_ / "samples.jsonl"; }
  std::filesystem::path curves() const { return root_ / "curves.svg"; }
  std::filesystem::path checkpoints() const { return root_ / "checkpoints"; }
  std::filesystem::path model() const { return root_ / "model"; }

  // Drops what metrics.jsonl and samples.jsonl say after the step that is resumed from.
  void cut_after(int64_t step) const;

 private:
  std::filesystem::path root_;
};

}  // namespace quadrille::loop
