#include "base/file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <thread>

#include "base/error.h"

namespace quadrille {
namespace {

namespace fs = std::filesystem;

class Files : public ::testing::Test {
 protected:
  fs::path folder_ = fs::temp_directory_path() / ("qd_file_" + std::to_string(::getpid()));

  void SetUp() override { fs::create_directories(folder_); }
  void TearDown() override { fs::remove_all(folder_); }
};

TEST_F(Files, AWrittenFileReplacesTheOldOne) {
  write_file_atomic(folder_ / "a", "one");
  write_file_atomic(folder_ / "a", "two");
  EXPECT_EQ(read_file(folder_ / "a"), "two");
  EXPECT_FALSE(fs::exists(folder_ / "a.tmp"));
}

TEST_F(Files, ALinkStaysAndItsFileIsReplaced) {
  fs::create_directory(folder_ / "deep");
  write_file_atomic(folder_ / "deep/target", "old");
  fs::create_symlink("deep/target", folder_ / "link");
  write_file_atomic(folder_ / "link", "new");
  EXPECT_TRUE(fs::is_symlink(folder_ / "link"));
  EXPECT_EQ(read_file(folder_ / "deep/target"), "new");
  // One that leads nowhere yet makes its file.
  fs::create_symlink("deep/later", folder_ / "dangling");
  write_file_atomic(folder_ / "dangling", "x");
  EXPECT_TRUE(fs::is_symlink(folder_ / "dangling"));
  EXPECT_EQ(read_file(folder_ / "deep/later"), "x");
}

// As root a rename over /dev/null would succeed, and break the machine.
TEST_F(Files, ADeviceOrPipeIsWrittenInto) {
  const fs::path pipe = folder_ / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_TRUE(is_stream(pipe));
  EXPECT_TRUE(is_stream("/dev/null"));
  EXPECT_FALSE(is_stream(folder_));
  EXPECT_FALSE(is_stream(folder_ / "missing"));
  std::string got(5, ' ');
  std::thread reader([&] {
    FILE* in = std::fopen(pipe.c_str(), "r");
    got.resize(std::fread(got.data(), 1, got.size(), in));
    std::fclose(in);
  });
  write_file_atomic(pipe, "bytes");
  reader.join();
  EXPECT_EQ(got, "bytes");
  EXPECT_TRUE(fs::is_fifo(pipe));
}

// `quadrille score --output /dev/stdout >> log` must leave in log what stood there.
TEST_F(Files, AnOpenFileOfThisProcessIsAppendedTo) {
  write_file_atomic(folder_ / "log", "before ");
  FILE* open = std::fopen((folder_ / "log").c_str(), "a");
  const fs::path name = "/proc/self/fd/" + std::to_string(::fileno(open));
  EXPECT_TRUE(is_stream(name));
  write_file_atomic(name, "after");
  std::fclose(open);
  EXPECT_EQ(read_file(folder_ / "log"), "before after");
}

}  // namespace
}  // namespace quadrille
