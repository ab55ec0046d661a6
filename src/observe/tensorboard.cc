#include "observe/tensorboard.h"

#include <unistd.h>

#include <array>
#include <cstring>

#include "base/clock.h"
#include "base/error.h"

namespace quadrille::observe {
namespace {

// Field numbers of event.proto and summary.proto.
constexpr uint32_t kEventWallTime = 1, kEventStep = 2, kEventFileVersion = 3, kEventSummary = 5,
                   kEventSessionLog = 7;
constexpr uint32_t kSummaryValue = 1, kValueTag = 1, kValueSimple = 2;
constexpr uint32_t kSessionStatus = 1, kSessionStart = 1;

std::array<uint32_t, 256> make_crc_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t c = i;
    for (int bit = 0; bit < 8; ++bit) c = (c & 1) != 0 ? 0x82F63B78U ^ (c >> 1) : c >> 1;
    table[i] = c;
  }
  return table;
}

void put_varint(std::string& out, uint64_t value) {
  while (value >= 0x80) {
    out += static_cast<char>(value | 0x80);
    value >>= 7;
  }
  out += static_cast<char>(value);
}

void put_key(std::string& out, uint32_t field, uint32_t wire_type) {
  put_varint(out, (field << 3) | wire_type);
}

template <class T>
void put_fixed(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

void put_bytes(std::string& out, uint32_t field, const std::string& bytes) {
  put_key(out, field, 2);
  put_varint(out, bytes.size());
  out += bytes;
}

std::string event(double wall_seconds, int64_t step) {
  std::string out;
  put_key(out, kEventWallTime, 1);
  put_fixed(out, wall_seconds);
  put_key(out, kEventStep, 0);
  put_varint(out, static_cast<uint64_t>(step));
  return out;
}

}  // namespace

uint32_t crc32c(const void* data, size_t size) {
  static const std::array<uint32_t, 256> kTable = make_crc_table();
  uint32_t crc = 0xFFFFFFFFU;
  const auto* bytes = static_cast<const unsigned char*>(data);
  for (size_t i = 0; i < size; ++i) crc = kTable[(crc ^ bytes[i]) & 0xFF] ^ (crc >> 8);
  return crc ^ 0xFFFFFFFFU;
}

uint32_t masked_crc32c(const void* data, size_t size) {
  const uint32_t crc = crc32c(data, size);
  return ((crc >> 15) | (crc << 17)) + 0xA282EAD8U;
}

TensorBoardWriter::TensorBoardWriter(const std::filesystem::path& folder, const Clock& clock,
                                     int64_t first_step)
    : clock_(clock) {
  const double wall_seconds = clock.wall_seconds();
  // TensorBoard looks for "tfevents" in the name and reads files of a run in name order.
  path_ = folder / fmt::format("events.out.tfevents.{:010d}.quadrille.{}",
                               static_cast<int64_t>(wall_seconds), ::getpid());
  out_.open(path_, std::ios::binary | std::ios::trunc);
  if (!out_) throw IoError("{}: cannot be opened for writing", path_.string());
  std::string version = event(wall_seconds, 0);
  put_bytes(version, kEventFileVersion, "brain.Event:2");
  write_record(version);
  if (first_step > 0) {
    std::string log;
    put_key(log, kSessionStatus, 0);
    put_varint(log, kSessionStart);
    std::string start = event(wall_seconds, first_step);
    put_bytes(start, kEventSessionLog, log);
    write_record(start);
  }
}

void TensorBoardWriter::write(int64_t step, const Metrics& metrics) {
  std::string summary;
  for (const auto& [name, value] : metrics) {
    std::string one;
    put_bytes(one, kValueTag, name);
    put_key(one, kValueSimple, 5);
    put_fixed(one, static_cast<float>(value));
    put_bytes(summary, kSummaryValue, one);
  }
  std::string record = event(clock_.wall_seconds(), step);
  put_bytes(record, kEventSummary, summary);
  write_record(record);
}

void TensorBoardWriter::write_record(const std::string& payload) {
  std::string framed;
  const auto length = static_cast<uint64_t>(payload.size());
  put_fixed(framed, length);
  put_fixed(framed, masked_crc32c(&length, sizeof(length)));
  framed += payload;
  put_fixed(framed, masked_crc32c(payload.data(), payload.size()));
  out_ << framed << std::flush;
  if (!out_) throw IoError("{}: write failed (is the disk full?)", path_.string());
}

}  // namespace quadrille::observe
