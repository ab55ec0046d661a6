#include "checkpoint/manifest.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "tensor/strict_json.h"

namespace quadrille::checkpoint {
namespace {

constexpr int64_t kFormat = 1;
constexpr std::string_view kChecksumKey = "\"checksum\": \"";
constexpr std::string_view kNoChecksum = "0000000000000000";

std::string hex(uint64_t value) {
  return fmt::format("{:016x}", value);
}

uint64_t hash(std::string_view bytes) {
  return XXH64(bytes.data(), bytes.size(), 0);
}

uint64_t from_hex(const std::string& text, const std::string& origin) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (error != std::errc() || end != text.data() + text.size() || hex(value) != text) {
    throw FormatError("{}: \"{}\" is not a checksum", origin, text);
  }
  return value;
}

// A name that leaves the folder would let a manifest point anywhere.
bool is_inside(const std::string& name) {
  const std::filesystem::path path(name);
  if (name.empty() || path.is_absolute()) return false;
  for (const auto& part : path) {
    if (part == ".." || part == "." || part.empty()) return false;
  }
  return true;
}

}  // namespace

std::string manifest_text(const Manifest& manifest) {
  nlohmann::ordered_json json;
  json["checksum"] = kNoChecksum;
  json["format"] = kFormat;
  json["step"] = manifest.step;
  json["metric"] = manifest.metric && std::isfinite(*manifest.metric)
                       ? nlohmann::ordered_json(*manifest.metric)
                       : nlohmann::ordered_json(nullptr);
  json["files"] = nlohmann::ordered_json::array();
  for (const FileEntry& file : manifest.files) {
    json["files"].push_back(
        {{"name", file.name}, {"bytes", file.bytes}, {"xxh64", hex(file.xxh64)}});
  }
  std::string text = json.dump(2) + "\n";
  const std::string checksum = hex(hash(text));
  text.replace(text.find(kChecksumKey) + kChecksumKey.size(), checksum.size(), checksum);
  return text;
}

Manifest parse_manifest(const std::string& text, const std::string& origin) {
  std::string blank = text;
  const size_t key = blank.find(kChecksumKey);
  if (key == std::string::npos || key + kChecksumKey.size() + kNoChecksum.size() > blank.size()) {
    throw FormatError("{}: has no checksum of its own", origin);
  }
  const std::string written = blank.substr(key + kChecksumKey.size(), kNoChecksum.size());
  blank.replace(key + kChecksumKey.size(), kNoChecksum.size(), kNoChecksum);
  if (written != hex(hash(blank)))
    throw FormatError("{}: its checksum does not match its text", origin);

  const nlohmann::json json = tensor::parse_strict_json(text, origin);
  Manifest manifest;
  try {
    if (json.at("format").get<int64_t>() != kFormat) {
      throw FormatError("{}: format {}, this version reads {}; it was written by another version",
                        origin, json.at("format").dump(), kFormat);
    }
    manifest.step = json.at("step").get<int64_t>();
    if (!json.at("metric").is_null()) manifest.metric = json.at("metric").get<double>();
    for (const auto& file : json.at("files")) {
      FileEntry entry;
      entry.name = file.at("name").get<std::string>();
      entry.bytes = file.at("bytes").get<uint64_t>();
      entry.xxh64 = from_hex(file.at("xxh64").get<std::string>(), origin);
      if (!is_inside(entry.name))
        throw FormatError("{}: file name \"{}\" leaves the folder", origin, entry.name);
      manifest.files.push_back(std::move(entry));
    }
  } catch (const nlohmann::json::exception& error) {
    throw FormatError("{}: {}", origin, error.what());
  }
  return manifest;
}

FileEntry describe_file(const std::filesystem::path& folder, const std::string& name) {
  const MappedFile file(folder / name);
  const auto bytes = file.bytes();
  return {name, bytes.size(), hash({reinterpret_cast<const char*>(bytes.data()), bytes.size()})};
}

void verify_file(const std::filesystem::path& folder, const FileEntry& entry) {
  const std::string where = (folder / entry.name).string();
  if (!std::filesystem::exists(folder / entry.name)) throw FormatError("{}: is missing", where);
  const FileEntry found = describe_file(folder, entry.name);
  if (found.bytes != entry.bytes) {
    throw FormatError("{}: has {} bytes, its manifest says {}", where, found.bytes, entry.bytes);
  }
  if (found.xxh64 != entry.xxh64) {
    throw FormatError("{}: its checksum does not match: the file was damaged after it was written",
                      where);
  }
}

}  // namespace quadrille::checkpoint
