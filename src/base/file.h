// Files: whole reads, memory maps, and writes that survive a kill.
//
// write_file_atomic and sync_directory are the only way the project replaces a file that matters:
// the new bytes are written beside it, fsynced, renamed over it, and the folder is fsynced.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>

namespace quadrille {

// Throws IoError naming the file.
std::string read_file(const std::filesystem::path& path);
// A link stays: the file it points to is replaced. What is no regular file is written into.
void write_file_atomic(const std::filesystem::path& path, std::string_view bytes);
// A device, a pipe, or one of this process's open files (/dev/stdout), which must not be replaced.
bool is_stream(const std::filesystem::path& path);
// fsync of a folder, so that renames in it survive a power cut.
void sync_directory(const std::filesystem::path& path);
void sync_file(const std::filesystem::path& path);

// Read-only mapping of a whole file. An empty file gives an empty span.
class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// Calls `line(text, number)` for each non-empty line, numbers from 1. Lines end in \n or \r\n.
void for_each_line(const std::filesystem::path& path,
                   const std::function<void(std::string_view line, int64_t number)>& line);

}  // namespace quadrille
