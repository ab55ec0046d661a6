#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>

#include "base/file.h"
#include "observe/metrics_jsonl.h"
#include "observe/plot.h"
#include "observe/progress.h"
#include "observe/tensorboard.h"

namespace quadrille::observe {
namespace {

class Observe : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ =
        std::filesystem::temp_directory_path() / fmt::format("quadrille-observe-{}", ::getpid());
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::filesystem::path folder_;
};

TEST_F(Observe, MetricsLinesAndCut) {
  const auto path = folder_ / "metrics.jsonl";
  {
    MetricsJsonl out(path);
    out.write(1, {{"policy/loss", -0.5}});
    out.write(2, {{"policy/loss", std::nan("")}});
    out.write(3, {});
  }
  EXPECT_EQ(read_file(path),
            "{\"step\":1,\"policy/loss\":-0.5}\n{\"step\":2,\"policy/loss\":null}\n{\"step\":3}\n");
  JsonlWriter(path).write_line("{\"step\":4,\"torn");
  cut_jsonl_after(path, 2);
  EXPECT_EQ(read_file(path),
            "{\"step\":1,\"policy/loss\":-0.5}\n{\"step\":2,\"policy/loss\":null}\n");
  cut_jsonl_after(folder_ / "missing.jsonl", 2);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "missing.jsonl"));
}

// CRC-32C test vectors of RFC 3720, B.4.
TEST_F(Observe, Crc32c) {
  std::string zeros(32, '\0');
  std::string ones(32, '\xff');
  EXPECT_EQ(crc32c(zeros.data(), zeros.size()), 0x8A9136AAU);
  EXPECT_EQ(crc32c(ones.data(), ones.size()), 0x62A8AB43U);
}

TEST_F(Observe, EventFileIsFramedAndHoldsTheScalar) {
  const FakeClock clock(1700000000.0);
  TensorBoardWriter out(folder_, clock, 5);
  out.write(6, {{"reward/mean", 0.25}});
  const std::string bytes = read_file(out.path());
  std::vector<std::string> records;
  for (size_t at = 0; at < bytes.size();) {
    uint64_t length = 0;
    uint32_t crc = 0;
    std::memcpy(&length, bytes.data() + at, 8);
    std::memcpy(&crc, bytes.data() + at + 8, 4);
    EXPECT_EQ(crc, masked_crc32c(&length, 8));
    records.push_back(bytes.substr(at + 12, length));
    std::memcpy(&crc, bytes.data() + at + 12 + length, 4);
    EXPECT_EQ(crc, masked_crc32c(records.back().data(), length));
    at += 16 + length;
  }
  ASSERT_EQ(records.size(), 3U);
  EXPECT_NE(records[0].find("brain.Event:2"), std::string::npos);
  // Event.step = 6, then summary { value { tag, simple_value 0.25 } }.
  const std::string expected =
      std::string("\x10\x06\x2a\x14\x0a\x12\x0a\x0breward/mean\x15\x00\x00\x80\x3e", 24);
  EXPECT_EQ(records[2].substr(9), expected);
}

TEST_F(Observe, CurvesAreDrawnAndStable) {
  const std::vector<Panel> panels = {
      {"a <b>", "step", {{"s", {1, 2, 3}, {0.1, std::nan(""), 0.3}, true}}}, {"empty", "step", {}}};
  const std::string svg = curves_svg("title", panels);
  EXPECT_EQ(svg, curves_svg("title", panels));
  EXPECT_NE(svg.find("a &lt;b&gt;"), std::string::npos);
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_NE(svg.find("</svg>"), std::string::npos);
  {
    MetricsJsonl out(folder_ / "metrics.jsonl");
    out.write(1, {{"reward/mean", 0.5}, {"eval/accuracy", 0.1}});
    out.write(2, {{"reward/mean", 0.6}});
  }
  const std::string run = run_curves_svg(folder_ / "metrics.jsonl", "run");
  EXPECT_NE(run.find("held-out accuracy"), std::string::npos);
  EXPECT_EQ(run.find(">loss<"), std::string::npos);
  EXPECT_EQ(run_curves_svg(folder_ / "none.jsonl", "run"), "");
}

TEST_F(Observe, Formats) {
  EXPECT_EQ(format_duration(9.4), "9 s");
  EXPECT_EQ(format_duration(249), "4:09");
  EXPECT_EQ(format_duration(3849), "1:04:09");
  EXPECT_EQ(format_count(812), "812");
  EXPECT_EQ(format_count(48300), "48.3k");
  EXPECT_EQ(format_count(1060000), "1.06M");
}

}  // namespace
}  // namespace quadrille::observe
