#include "tensor/safetensors.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/rng.h"

namespace quadrille::tensor {
namespace {

class Safetensors : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() /
              fmt::format("quadrille-safetensors-{}", ::getpid());
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path path(const std::string& name = "a.safetensors") const {
    return folder_ / name;
  }

  static std::string with_header(const std::string& header, size_t data) {
    std::string file(8, '\0');
    const uint64_t length = header.size();
    std::memcpy(file.data(), &length, 8);
    return file + header + std::string(data, 'x');
  }
  static SafetensorsHeader parse(const std::string& file) {
    return parse_safetensors({reinterpret_cast<const std::byte*>(file.data()), file.size()},
                             "file");
  }
  static std::string error_of(const std::string& file) {
    try {
      parse(file);
    } catch (const FormatError& error) {
      return error.what();
    }
    return "";
  }
  void write(const std::string& name, const std::string& bytes) const {
    std::ofstream(path(name), std::ios::binary) << bytes;
  }
  std::string read(const std::string& name) const {
    std::ifstream in(path(name), std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }

  std::filesystem::path folder_;
};

#define EXPECT_SAID(file, part) \
  EXPECT_NE(error_of(file).find(part), std::string::npos) << "said: " << error_of(file)

at::Tensor numbers(at::IntArrayRef shape, at::ScalarType dtype, int64_t first = 0) {
  int64_t count = 1;
  for (const int64_t d : shape) count *= d;
  return at::arange(first, first + count, at::TensorOptions().dtype(at::kFloat))
      .to(dtype)
      .view(shape);
}

TEST_F(Safetensors, WritesTheDocumentedBytes) {
  const std::vector<TensorToWrite> tensors = {{"b", at::kByte, {3}},
                                              {"z", at::kFloat, {2}},
                                              {"h", at::kBFloat16, {1, 2}},
                                              {"a", at::kFloat, {}}};
  write_safetensors(path(), tensors, {{"format", "pt"}},
                    [](const TensorToWrite& t) { return numbers(t.shape, t.dtype); });
  const std::string file = read("a.safetensors");
  // Falling element size, then name; header padded with spaces to a multiple of 8.
  std::string header =
      R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]},)"
      R"("z":{"dtype":"F32","shape":[2],"data_offsets":[4,12]},"h":{"dtype":"BF16","shape":[1,2],"data_offsets":[12,16]},)"
      R"("b":{"dtype":"U8","shape":[3],"data_offsets":[16,19]}})";
  header.append((8 - header.size() % 8) % 8, ' ');
  EXPECT_EQ(file.substr(0, 8 + header.size()), with_header(header, 0));
  EXPECT_EQ(file.substr(8 + header.size()), std::string("\0\0\0\0"
                                                        "\0\0\0\0"
                                                        "\0\0\x80\x3f"
                                                        "\0\0"
                                                        "\x80\x3f"
                                                        "\0\1\2",
                                                        19));
  EXPECT_FALSE(std::filesystem::exists(path("a.safetensors.tmp")));
}

TEST_F(Safetensors, EveryDtypeReadsBack) {
  std::vector<TensorToWrite> tensors;
  for (const auto dtype : {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16, at::kLong, at::kInt,
                           at::kShort, at::kChar, at::kByte, at::kBool}) {
    tensors.push_back({c10::toString(dtype), dtype, {2, 3}});
  }
  tensors.push_back({"empty", at::kFloat, {0, 4}});
  write_safetensors(path(), tensors, {},
                    [](const TensorToWrite& t) { return numbers(t.shape, t.dtype); });
  const SafetensorsFile file(path());
  EXPECT_EQ(file.tensors().size(), tensors.size());
  for (const auto& t : tensors) {
    const auto* stored = file.find(t.name);
    ASSERT_NE(stored, nullptr) << t.name;
    EXPECT_EQ(stored->dtype, t.dtype);
    EXPECT_EQ(stored->shape, t.shape);
    EXPECT_TRUE(file.read(*stored).equal(numbers(t.shape, t.dtype))) << t.name;
  }
  EXPECT_EQ(file.find("other"), nullptr);
  EXPECT_EQ(file.find(""), nullptr);
}

TEST_F(Safetensors, ConvertsPartsAndUnalignedData) {
  // A header of any length is accepted, so the data may start at an odd address.
  for (const char* pad : {"", " ", "  ", "   "}) {
    const std::string header =
        std::string(R"({"t":{"dtype":"BF16","shape":[6],"data_offsets":[0,12]}})") + pad;
    std::string file = with_header(header, 0);
    const at::Tensor values = numbers({6}, at::kBFloat16);
    file.append(static_cast<const char*>(values.data_ptr()), 12);
    write("a.safetensors", file);
    const SafetensorsFile stored(path());
    at::Tensor part = at::empty({2, 2}, at::TensorOptions().dtype(at::kFloat));
    stored.read_into(*stored.find("t"), 1, part);
    EXPECT_TRUE(part.equal(numbers({2, 2}, at::kFloat, 1)));
    at::Tensor same = at::empty({6}, at::TensorOptions().dtype(at::kBFloat16));
    stored.read_into(*stored.find("t"), 0, same);
    EXPECT_TRUE(same.equal(values));
  }
}

TEST_F(Safetensors, AcceptsWhatTheLibraryAccepts) {
  // Unknown fields of any kind, entries out of offset order, blanks around the JSON, an empty map,
  // odd header size.
  const std::string odd =
      "\n "
      "{\"b\":{\"dtype\":\"U8\",\"extra\":{\"x\":[1,{\"y\":null}],\"z\":\"s\"},\"shape\":[2],"
      "\"data_offsets\":[4,6],"
      "\"more\":-1.5},\"a\":{\"shape\":[1],\"data_offsets\":[0,4],\"dtype\":\"F32\",\"flag\":true},"
      "\"e\":{\"dtype\":\"I64\",\"shape\":[3,0],\"data_offsets\":[4,4]}}  \n ";
  const auto header = parse(with_header(odd, 6));
  ASSERT_EQ(header.tensors.size(), 3U);
  EXPECT_EQ(header.tensors[0].name, "a");
  EXPECT_EQ(parse(with_header("{}", 0)).tensors.size(), 0U);
  EXPECT_EQ(parse(with_header(R"({"__metadata__":{"k":"v"}})", 0)).metadata.at("k"), "v");
}

TEST_F(Safetensors, RefusesEveryRuleOfTheTable) {
  EXPECT_SAID("short", "too short");
  EXPECT_SAID(std::string("\xff\xff\xff\xff\xff\xff\xff\xff", 8), "allowed");
  EXPECT_SAID(std::string("\x01\xe1\xf5\x05\0\0\0\0", 8), "100000000 allowed");
  EXPECT_SAID(with_header("{}", 0).substr(0, 9), "but the file has 9");
  EXPECT_SAID(with_header("{}", 1), "1 bytes of data, but the tensors take 0");
  const auto one = [](const std::string& entry, size_t data = 4) {
    return with_header("{\"t\":" + entry + "}", data);
  };
  EXPECT_EQ(error_of(one(R"({"dtype":"F32","shape":[1],"data_offsets":[0,4]})")), "");
  EXPECT_SAID(one(R"({"dtype":"F32","shape":[1],"data_offsets":[0,4]})", 3), "cut short");
  EXPECT_SAID(one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,4]})"),
              "tensor 't': 4 bytes of data, but F32 [2] takes 8");
  EXPECT_SAID(one(R"({"dtype":"F32","shape":[1],"data_offsets":[4,0]})"), "before it begins");
  EXPECT_SAID(one(R"({"dtype":"U8","shape":[2],"data_offsets":[2,4]})"), "hole");
  EXPECT_SAID(
      with_header(
          R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"b":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}})",
          4),
      "tensor 'b': begins at 2, but the data up to there ends at 3 (overlap)");
  EXPECT_SAID(one(R"({"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,4]})"),
              "overflows");
  EXPECT_SAID(one(R"({"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,4]})"),
              "too large");
  EXPECT_SAID(one(R"({"dtype":"F32","shape":[-1],"data_offsets":[0,4]})"), "negative number -1");
  EXPECT_SAID(one(R"({"dtype":"F32","shape":[1.0],"data_offsets":[0,4]})"),
              "shape holds the number 1.0");
  EXPECT_SAID(one(R"({"dtype":"F32","shape":["1"],"data_offsets":[0,4]})"), "shape holds a string");
  EXPECT_SAID(one(R"({"dtype":"F32","shape":[[1]],"data_offsets":[0,4]})"), "shape holds an array");
  EXPECT_SAID(one(R"({"dtype":"F32","shape":1,"data_offsets":[0,4]})"), "shape holds");
  EXPECT_SAID(one(R"({"dtype":"F4","shape":[1],"data_offsets":[0,4]})"),
              "dtype 'F4' is not supported");
  EXPECT_SAID(one(R"({"dtype":7,"shape":[1],"data_offsets":[0,4]})"), "the number 7");
  EXPECT_SAID(one(R"({"dtype":"F32","shape":[1],"data_offsets":[0]})"),
              "data_offsets has 1 numbers");
  EXPECT_SAID(one(R"({"dtype":"F32","shape":[1],"data_offsets":[0,4,8]})"),
              "data_offsets has 3 numbers");
  EXPECT_SAID(one(R"({"dtype":"F32","shape":[1],"data_offsets":[-0.5,4]})"), "data_offsets holds");
  EXPECT_SAID(one(R"({"shape":[1],"data_offsets":[0,4]})"), "field 'dtype' is missing");
  EXPECT_SAID(one(R"({"dtype":"F32","data_offsets":[0,4]})"), "field 'shape' is missing");
  EXPECT_SAID(one(R"({"dtype":"F32","shape":[1]})"), "field 'data_offsets' is missing");
  EXPECT_SAID(one(R"({"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]})"),
              "field 'dtype' stands twice");
  EXPECT_SAID(one("3"), "tensor 't': described by");
  EXPECT_SAID(
      with_header(
          R"({"t":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"t":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})",
          0),
      "'t' stands twice");
  EXPECT_SAID(with_header(R"({"__metadata__":{"a":1}})", 0), "metadata 'a' is");
  EXPECT_SAID(with_header(R"({"__metadata__":{"a":"1","a":"2"}})", 0), "metadata 'a' stands twice");
  EXPECT_SAID(with_header(R"({"__metadata__":"x"})", 0), "__metadata__");
  EXPECT_SAID(with_header("[]", 0), "not an object");
  EXPECT_SAID(with_header("7", 0), "not an object");
  EXPECT_SAID(with_header("{\"\xff\":1}", 0), "not JSON");
  EXPECT_SAID(with_header("{} {}", 0), "not JSON");
  EXPECT_SAID(with_header("{", 0), "not JSON: parse error");
  EXPECT_SAID(with_header("", 0), "not JSON");
  EXPECT_SAID(with_header(std::string("{}\0", 3), 0), "zero byte");
  EXPECT_SAID(with_header("\xEF\xBB\xBF{}", 0), "byte order mark");
}

// Deep nesting in a field nobody reads must not cost stack.
TEST_F(Safetensors, SurvivesDeepNesting) {
  const std::string deep(200'000, '[');
  const std::string close(200'000, ']');
  const auto header = parse(with_header(
      R"({"t":{"dtype":"U8","x":)" + deep + close + R"(,"shape":[1],"data_offsets":[0,1]}})", 1));
  EXPECT_EQ(header.tensors.size(), 1U);
  EXPECT_SAID(with_header(R"({"t":{"x":)" + deep, 1), "not JSON");
}

// Thousands of damaged files: each is refused with an error of ours, or is a valid file all of
// whose tensors can be read. Run under the asan preset this also shows that no byte outside the
// file is touched.
TEST_F(Safetensors, MutationsNeverCrash) {
  write_safetensors(path("seed"),
                    {{"w", at::kFloat, {2, 3}},
                     {"bias", at::kBFloat16, {4}},
                     {"n", at::kLong, {}},
                     {"e", at::kByte, {0}}},
                    {{"format", "pt"}},
                    [](const TensorToWrite& t) { return numbers(t.shape, t.dtype); });
  const std::string good = read("seed");
  ASSERT_GT(good.size(), 100U);
  Rng rng(20240817);
  const std::string interesting = "{}[]\",:0123456789-.eE \\uBFI_\xff\xc3";
  int accepted = 0;
  int refused = 0;
  for (int round = 0; round < 6000; ++round) {
    std::string bad = good;
    const uint64_t edits = 1 + rng.below(4);
    for (uint64_t i = 0; i < edits && !bad.empty(); ++i) {
      const size_t where = rng.below(bad.size());
      switch (rng.below(6)) {
        case 0:
          bad[where] = static_cast<char>(rng.below(256));
          break;
        case 1:
          bad[where] = interesting[rng.below(interesting.size())];
          break;
        case 2:
          bad.erase(where, 1 + rng.below(8));
          break;
        case 3:
          bad.insert(where, 1, interesting[rng.below(interesting.size())]);
          break;
        case 4:
          bad.resize(where);
          break;
        default:
          bad.insert(where, bad.substr(rng.below(bad.size()), rng.below(24)));
          break;
      }
    }
    // A new file each time: writing over an old one makes some file systems wait for the disk.
    std::filesystem::remove(path());
    write("a.safetensors", bad);
    try {
      const SafetensorsFile file(path());
      for (const auto& t : file.tensors()) {
        const at::Tensor read = file.read(t);
        ASSERT_EQ(static_cast<uint64_t>(read.nbytes()), t.num_bytes());
        if (bad == good) {
          ASSERT_TRUE(read.equal(numbers(t.shape, t.dtype)));
        }
      }
      ++accepted;
    } catch (const FormatError&) {
      ++refused;
    } catch (const IoError&) {
      ++refused;
    }
  }
  EXPECT_GT(accepted, 100);  // Data bytes, names and metadata may change.
  EXPECT_GT(refused, 3000);
}

TEST_F(Safetensors, ShardsAndTheirIndex) {
  std::vector<TensorToWrite> tensors;
  for (int i = 0; i < 5; ++i) tensors.push_back({fmt::format("t{}", i), at::kFloat, {10}});
  const auto value = [](const TensorToWrite& t) {
    return numbers(t.shape, t.dtype, t.name[1] - '0');
  };
  write_safetensors_folder(folder_, tensors, 80, value);
  EXPECT_TRUE(std::filesystem::exists(path("model-00003-of-00003.safetensors")));
  {
    const SafetensorsFolder folder(folder_);
    EXPECT_EQ(folder.num_files(), 3U);
    EXPECT_EQ(folder.num_bytes(), 200U);
    for (const auto& t : tensors) {
      const auto* entry = folder.find(t.name);
      ASSERT_NE(entry, nullptr);
      EXPECT_TRUE(entry->file->read(*entry->tensor).equal(value(t)));
    }
  }
  const auto index = nlohmann::json::parse(read("model.safetensors.index.json"));
  EXPECT_EQ(index["metadata"]["total_size"], 200);
  EXPECT_EQ(index["metadata"]["total_parameters"], 50);

  const auto said = [&](const nlohmann::json& changed) {
    write("model.safetensors.index.json", changed.dump());
    try {
      const SafetensorsFolder folder(folder_);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(said(index), "");
  auto changed = index;
  changed["metadata"]["total_size"] = 204;
  EXPECT_NE(said(changed).find("total_size 204, but the tensors take 200"), std::string::npos);
  changed = index;
  changed.erase("metadata");
  EXPECT_EQ(said(changed), "");
  changed = index;
  changed["weight_map"]["t0"] = "../model-00001-of-00003.safetensors";
  EXPECT_NE(said(changed).find("not a plain file name"), std::string::npos);
  changed = index;
  changed["weight_map"]["t0"] = "model-00002-of-00003.safetensors";
  EXPECT_NE(said(changed).find("'t0' is missing"), std::string::npos) << said(changed);
  changed = index;
  changed["weight_map"].erase("t4");
  EXPECT_NE(said(changed), "");
  changed = index;
  changed["weight_map"].erase("t1");
  EXPECT_NE(said(changed).find("'t1' is not in model.safetensors.index.json"), std::string::npos);
  changed = index;
  changed["weight_map"]["t9"] = "model-00009-of-00003.safetensors";
  EXPECT_NE(said(changed).find("model-00009-of-00003.safetensors: missing"), std::string::npos);
  changed = index;
  changed["weight_map"]["t1"] = 3;
  EXPECT_NE(said(changed).find("mapped to no file name"), std::string::npos);
  EXPECT_NE(said(nlohmann::json::object()).find("weight_map"), std::string::npos);

  // The same tensor in two files.
  write_safetensors(path("extra.safetensors"), {{"t0", at::kFloat, {10}}}, {}, value);
  changed = index;
  changed["weight_map"]["x"] = "extra.safetensors";
  EXPECT_NE(said(changed).find("'t0' is also in"), std::string::npos);

  // A single file takes the place of the shards, and the other way round.
  write_safetensors_folder(folder_, tensors, 1 << 20, value);
  EXPECT_FALSE(std::filesystem::exists(path("model.safetensors.index.json")));
  EXPECT_FALSE(std::filesystem::exists(path("model-00001-of-00003.safetensors")));
  EXPECT_EQ(SafetensorsFolder(folder_).num_files(), 1U);
  write_safetensors_folder(folder_, tensors, 100, value);
  EXPECT_FALSE(std::filesystem::exists(path("model.safetensors")));
  EXPECT_EQ(SafetensorsFolder(folder_).num_files(), 3U);
}

TEST_F(Safetensors, AFailedWriteLeavesNothing) {
  EXPECT_THROW(
      write_safetensors(path(), {{"t", at::kFloat, {2}}}, {},
                        [](const TensorToWrite&) -> at::Tensor { throw Error("no value"); }),
      Error);
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
  EXPECT_THROW(write_safetensors(folder_ / "none" / "a.safetensors", {}, {}, {}), IoError);
  EXPECT_THROW(SafetensorsFolder{folder_}, IoError);
}

}  // namespace
}  // namespace quadrille::tensor
