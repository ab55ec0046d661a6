#include "base/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

#include "base/error.h"

namespace quadrille {
namespace {

class Descriptor {
 public:
  Descriptor(const std::filesystem::path& path, int flags, mode_t mode = 0644) : path_(path) {
    fd_ = ::open(path.c_str(), flags | O_CLOEXEC, mode);
    if (fd_ < 0) throw IoError("{}: {}", path.string(), std::strerror(errno));
  }
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  int get() const { return fd_; }

  void write_all(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t written = ::write(fd_, bytes.data(), bytes.size());
      if (written < 0) {
        if (errno == EINTR) continue;
        throw IoError("{}: write failed: {}", path_.string(), std::strerror(errno));
      }
      bytes.remove_prefix(static_cast<size_t>(written));
    }
  }

  void sync() {
    if (::fsync(fd_) != 0)
      throw IoError("{}: fsync failed: {}", path_.string(), std::strerror(errno));
  }

 private:
  std::filesystem::path path_;
  int fd_ = -1;
};

}  // namespace

std::string read_file(const std::filesystem::path& path) {
  const MappedFile file(path);
  const auto bytes = file.bytes();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

void sync_file(const std::filesystem::path& path) {
  Descriptor(path, O_RDONLY).sync();
}

void sync_directory(const std::filesystem::path& path) {
  Descriptor(path, O_RDONLY | O_DIRECTORY).sync();
}

bool is_stream(const std::filesystem::path& path) {
  std::error_code none;
  const auto status = std::filesystem::status(path, none);
  if (!std::filesystem::exists(status)) return false;
  if (!std::filesystem::is_regular_file(status)) return !std::filesystem::is_directory(status);
  // /dev/stdout is a link to /proc/self/fd/1, itself a link, which may lead to a regular file that
  // others write to as well.
  const auto is_open_file = [](const std::string& name) {
    return name.starts_with("/proc/") || name.starts_with("/dev/fd/");
  };
  return is_open_file(path.string()) ||
         (std::filesystem::is_symlink(path, none) &&
          is_open_file(std::filesystem::read_symlink(path, none).string()));
}

void write_file_atomic(const std::filesystem::path& name, std::string_view bytes) {
  if (is_stream(name)) {
    Descriptor(name, O_WRONLY | O_APPEND).write_all(bytes);
    return;
  }
  std::filesystem::path path = name;
  if (std::filesystem::is_symlink(name)) {
    // canonical() wants a file that exists; a link may be there before its file.
    path = std::filesystem::exists(name) ? std::filesystem::canonical(name)
                                         : name.parent_path() / std::filesystem::read_symlink(name);
  }
  std::filesystem::path beside = path;
  beside += ".tmp";
  try {
    Descriptor out(beside, O_WRONLY | O_CREAT | O_TRUNC);
    out.write_all(bytes);
    out.sync();
  } catch (const IoError&) {
    ::unlink(beside.c_str());  // Half a file, on a disk that is probably full.
    throw;
  }
  std::filesystem::rename(beside, path);
  sync_directory(path.has_parent_path() ? path.parent_path() : std::filesystem::path("."));
}

MappedFile::MappedFile(const std::filesystem::path& path) : path_(path) {
  const Descriptor file(path, O_RDONLY);
  struct stat info {};
  if (::fstat(file.get(), &info) != 0) throw IoError("{}: {}", path.string(), std::strerror(errno));
  if (!S_ISREG(info.st_mode)) throw IoError("{}: not a regular file", path.string());
  size_ = static_cast<size_t>(info.st_size);
  if (size_ == 0) return;
  void* address = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (address == MAP_FAILED)
    throw IoError("{}: mmap failed: {}", path.string(), std::strerror(errno));
  data_ = static_cast<const std::byte*>(address);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

void for_each_line(const std::filesystem::path& path,
                   const std::function<void(std::string_view, int64_t)>& line) {
  const MappedFile file(path);
  std::string_view rest(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
  for (int64_t number = 1; !rest.empty(); ++number) {
    const size_t end = rest.find('\n');
    std::string_view text = rest.substr(0, end);
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
    if (!text.empty() && text.back() == '\r') text.remove_suffix(1);
    if (text.find_first_not_of(" \t") == std::string_view::npos) continue;
    line(text, number);
  }
}

}  // namespace quadrille
