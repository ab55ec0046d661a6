#include "observe/metrics_jsonl.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"

namespace quadrille::observe {

JsonlWriter::JsonlWriter(const std::filesystem::path& path)
    : path_(path), out_(path, std::ios::app | std::ios::binary) {
  if (!out_) throw IoError("{}: cannot be opened for writing", path.string());
}

void JsonlWriter::write_line(const std::string& json) {
  out_ << json << '\n' << std::flush;
  if (!out_) throw IoError("{}: write failed (is the disk full?)", path_.string());
}

void MetricsJsonl::write(int64_t step, const Metrics& metrics) {
  nlohmann::ordered_json line;
  line["step"] = step;
  for (const auto& [name, value] : metrics) {
    line[name] = std::isfinite(value) ? nlohmann::ordered_json(value) : nlohmann::ordered_json();
  }
  lines_.write_line(line.dump());
}

void cut_jsonl_after(const std::filesystem::path& path, int64_t last_step) {
  if (!std::filesystem::exists(path)) return;
  std::string kept;
  for_each_line(path, [&](std::string_view line, int64_t) {
    const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object() || !json.contains("step") || !json["step"].is_number_integer()) return;
    if (json["step"].get<int64_t>() > last_step) return;
    kept.append(line);
    kept += '\n';
  });
  write_file_atomic(path, kept);
}

}  // namespace quadrille::observe
