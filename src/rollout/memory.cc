#include "rollout/memory.h"

#include <ATen/DeviceAccelerator.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <string>

namespace quadrille::rollout {
namespace {

// The number after `key` in a file of "key number" lines, or the first number when key is empty.
std::optional<int64_t> read_number(const char* path, const std::string& key) {
  std::ifstream file(path);
  std::string word;
  int64_t value = 0;
  if (key.empty()) return file >> value ? std::optional(value) : std::nullopt;
  while (file >> word) {
    if (word == key) return file >> value ? std::optional(value) : std::nullopt;
  }
  return std::nullopt;
}

}  // namespace

int64_t free_memory_bytes(at::Device device) {
  if (!device.is_cpu()) {
    return static_cast<int64_t>(
        at::accelerator::getMemoryInfo(device.has_index() ? device.index() : 0).first);
  }
  int64_t bytes = std::numeric_limits<int64_t>::max();
  if (const auto kib = read_number("/proc/meminfo", "MemAvailable:")) bytes = *kib * 1024;
  // Version 2 of control groups, then version 1; "max" reads as no number. Files in the page cache
  // count as used there although they give way.
  const auto bound = [&](const std::string& folder, const char* most_name, const char* now_name) {
    const auto most = read_number((folder + most_name).c_str(), "");
    const auto now = read_number((folder + now_name).c_str(), "");
    if (!most || !now) return;
    const int64_t cached =
        read_number((folder + "memory.stat").c_str(), "inactive_file").value_or(0);
    bytes = std::min(bytes, std::max<int64_t>(0, *most - *now + cached));
  };
  bound("/sys/fs/cgroup/", "memory.max", "memory.current");
  bound("/sys/fs/cgroup/memory/", "memory.limit_in_bytes", "memory.usage_in_bytes");
  return bytes == std::numeric_limits<int64_t>::max() ? int64_t{1} << 30 : bytes;
}

}  // namespace quadrille::rollout
