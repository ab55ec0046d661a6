// TensorBoard event files, written without TensorFlow: TFRecord framing (length, masked CRC-32C of
// the length, payload, masked CRC-32C of the payload) around Event protocol buffers, of which only
// the few fields below are needed. Source of the format: tensorflow/core/lib/io/record_writer.h and
// tensorflow/core/util/event.proto.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/clock.h"
#include "base/metrics.h"

namespace quadrille::observe {

class TensorBoardWriter final : public MetricsSink {
 public:
  // Makes a new events file in `folder`. first_step > 0 tells TensorBoard to drop what an earlier
  // file says from that step on (a resumed run).
  TensorBoardWriter(const std::filesystem::path& folder, const Clock& clock, int64_t first_step);
  void write(int64_t step, const Metrics& metrics) override;
  const std::filesystem::path& path() const { return path_; }

 private:
  void write_record(const std::string& event);

  const Clock& clock_;
  std::filesystem::path path_;
  std::ofstream out_;
};

// CRC-32C (Castagnoli) and TensorFlow's masking of it.
uint32_t crc32c(const void* data, size_t size);
uint32_t masked_crc32c(const void* data, size_t size);

}  // namespace quadrille::observe
