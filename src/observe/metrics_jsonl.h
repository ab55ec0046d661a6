// metrics.jsonl and samples.jsonl: one JSON object a line, appended as the run goes, cut back on
// resume.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/metrics.h"

namespace quadrille::observe {

// Appends lines; each is flushed, so that a killed run has lost at most the line it was writing.
class JsonlWriter {
 public:
  explicit JsonlWriter(const std::filesystem::path& path);
  void write_line(const std::string& json);

 private:
  std::filesystem::path path_;
  std::ofstream out_;
};

// {"step": 3, "policy/loss": -0.01, ...}; a number that is not finite is written null.
class MetricsJsonl final : public MetricsSink {
 public:
  explicit MetricsJsonl(const std::filesystem::path& path) : lines_(path) {}
  void write(int64_t step, const Metrics& metrics) override;

 private:
  JsonlWriter lines_;
};

// Keeps the lines of a .jsonl file whose "step" is at most `last_step`; a torn last line goes too.
// A missing file is left missing. Used on resume, so that the steps to come are not in the file
// twice.
void cut_jsonl_after(const std::filesystem::path& path, int64_t last_step);

}  // namespace quadrille::observe
