#include "rows.h"

#include <fmt/format.h>
#include <unistd.h>

#include <limits>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json_text.h"

namespace quadrille::app {

using nlohmann::ordered_json;

void Row::fail(const std::string& what) const {
  throw FormatError("{}: {}", place, what);
}

const std::string& Row::text(const char* key) const {
  const ordered_json& value = json.at(key);
  if (!value.is_string()) fail(fmt::format("`{}` must be a string", key));
  return value.get_ref<const std::string&>();
}

std::vector<int32_t> Row::token_ids(const char* key) const {
  const ordered_json& list = json.at(key);
  if (!list.is_array()) fail(fmt::format("`{}` must be a list of token ids", key));
  std::vector<int32_t> tokens;
  tokens.reserve(list.size());
  for (const ordered_json& item : list) {
    if (!item.is_number_integer())
      fail(fmt::format("`{}` holds {}, which is no token id", key, item.dump()));
    const auto token = item.get<int64_t>();
    if (token < 0 || token > std::numeric_limits<int32_t>::max()) {
      fail(fmt::format("`{}` holds {}, which is no token id", key, token));
    }
    tokens.push_back(static_cast<int32_t>(token));
  }
  return tokens;
}

std::vector<Row> read_rows(const std::filesystem::path& path) {
  std::vector<Row> rows;
  for_each_line(path, [&](std::string_view line, int64_t number) {
    if (line.find_first_not_of(" \t") == std::string_view::npos) return;
    Row row;
    row.place = fmt::format("{}:{}", path.string(), number);
    if (const auto danger = json_text_danger(line)) row.fail(*danger);
    try {
      row.json = ordered_json::parse(line);
    } catch (const ordered_json::parse_error& error) {
      // "[json.exception.parse_error.101] parse error at line 1, column 4: ...": the line is ours
      // to number.
      row.fail(fmt::format("byte {} does not go on as JSON should", error.byte));
    }
    if (!row.json.is_object()) row.fail("a line must be a JSON object");
    row.id = row.has("id") ? row.json.at("id") : ordered_json(rows.size());
    rows.push_back(std::move(row));
  });
  return rows;
}

void append_line(std::string& out, const ordered_json& json) {
  out += json.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
  out += '\n';
}

void check_writable(const std::filesystem::path& path) {
  if (is_stream(path)) {
    if (access(path.c_str(), W_OK) != 0) throw IoError("{}: is not writable", path.string());
    return;
  }
  const std::filesystem::path folder = path.has_parent_path() ? path.parent_path() : ".";
  if (!std::filesystem::is_directory(folder))
    throw IoError("{}: there is no folder {}", path.string(), folder.string());
  if (std::filesystem::is_directory(path)) throw IoError("{}: is a folder", path.string());
  if (access(folder.c_str(), W_OK) != 0)
    throw IoError("{}: {} is not writable", path.string(), folder.string());
}

FolderText::FolderText(const std::filesystem::path& folder) : folder_(folder) {
  if (std::filesystem::exists(folder / "tokenizer.json"))
    tokenizer_ = text::Tokenizer::load(folder);
  template_ = text::ChatTemplate::load(folder);
}

std::vector<int32_t> FolderText::encode(const Row& row, const std::string& text) const {
  if (!tokenizer_)
    row.fail(fmt::format("text needs a tokenizer, and {} has no tokenizer.json", folder_.string()));
  return tokenizer_->encode(text);
}

std::vector<int32_t> FolderText::render(const Row& row) const {
  if (!row.json.at("messages").is_array()) row.fail("`messages` must be a list");
  if (!template_)
    row.fail(fmt::format("`messages` needs a chat template, and {} has none", folder_.string()));
  text::RenderOptions options;
  options.add_generation_prompt = true;
  if (row.has("tools")) options.tools = &row.json.at("tools");
  options.now = local_time(SystemClock().wall_seconds());
  try {
    return encode(row, template_->render(row.json.at("messages"), options));
  } catch (const Error& error) {
    row.fail(error.what());
  }
}

}  // namespace quadrille::app
