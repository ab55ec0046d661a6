// What makes a folder of files a checkpoint: a list of them with sizes and checksums, written last.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace quadrille::checkpoint {

struct FileEntry {
  std::string name;  // Relative to the checkpoint's folder, with '/'.
  uint64_t bytes = 0;
  uint64_t xxh64 = 0;
  bool operator==(const FileEntry&) const = default;
};

struct Manifest {
  int64_t step = 0;
  std::optional<double> metric;  // What the best checkpoint is chosen by; larger is better.
  std::vector<FileEntry> files;
};

inline constexpr const char* kManifestFile = "manifest.json";

// JSON that holds a checksum of its own bytes, so that no flipped bit in it goes unseen.
std::string manifest_text(const Manifest& manifest);
// Throws FormatError naming `origin`.
Manifest parse_manifest(const std::string& text, const std::string& origin);

// Size and checksum of a file as it is on disk.
FileEntry describe_file(const std::filesystem::path& folder, const std::string& name);
// Throws FormatError naming the file and what is wrong with it.
void verify_file(const std::filesystem::path& folder, const FileEntry& entry);

}  // namespace quadrille::checkpoint
