#include "text/chat_template.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/json_text.h"

namespace quadrille::text {
namespace {

using Json = nlohmann::ordered_json;
using jinja::Dict;
using jinja::List;
using jinja::Value;

Json read_json(const std::filesystem::path& path) {
  const std::string text = read_file(path);
  if (const auto danger = json_text_danger(text))
    throw FormatError("{}: not valid JSON: {}", path.string(), *danger);
  try {
    return Json::parse(text);
  } catch (const Json::exception& error) {
    throw FormatError("{}: not valid JSON: {}", path.string(), json_reason(error.what()));
  }
}

// A special token is written as a string or as {"content": "..."}.
std::optional<std::string> token_text(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_object() && value.contains("content") && value["content"].is_string()) {
    return value["content"].get<std::string>();
  }
  return std::nullopt;
}

void add_named_tokens(const Json& config, std::map<std::string, std::string>& tokens) {
  for (const auto& [key, value] : config.items()) {
    if (!key.ends_with("_token")) continue;
    if (auto text = token_text(value)) tokens[key] = std::move(*text);
  }
}

bool is_special(const Json& token) {
  return token.is_object() && token.contains("special") && token["special"].is_boolean() &&
         token["special"].get<bool>();
}

// The list added_tokens of a tokenizer.json. The rest of the file, hundreds of thousands of
// entries, is skipped.
Json added_tokens(const std::filesystem::path& path) {
  const auto keep = [](int depth, Json::parse_event_t event, const Json& parsed) {
    return event != Json::parse_event_t::key || depth != 1 || parsed == "added_tokens";
  };
  try {
    Json file = Json::parse(read_file(path), keep);
    if (file.is_object() && file.contains("added_tokens") && file["added_tokens"].is_array())
      return file["added_tokens"];
  } catch (const Json::exception& error) {
    throw FormatError("{}: not valid JSON: {}", path.string(), json_reason(error.what()));
  }
  return Json::array();
}

// The added tokens that are special; they stand in the configuration or, with newer files, only in
// tokenizer.json.
std::vector<std::string> special_texts(const Json& config, const std::filesystem::path& folder) {
  std::vector<std::string> out;
  const auto add = [&](const Json& token) {
    if (!is_special(token)) return;
    if (auto text = token_text(token)) out.push_back(std::move(*text));
  };
  if (config.contains("added_tokens_decoder") && config["added_tokens_decoder"].is_object()) {
    for (const auto& [id, token] : config["added_tokens_decoder"].items()) add(token);
  } else if (std::filesystem::exists(folder / "tokenizer.json")) {
    for (const auto& token : added_tokens(folder / "tokenizer.json")) add(token);
  }
  return out;
}

std::map<std::string, jinja::Template> templates_from_files(const std::filesystem::path& folder) {
  std::map<std::string, jinja::Template> out;
  const auto add = [&](const std::string& name, const std::filesystem::path& path) {
    out.try_emplace(name, path.string(), read_file(path));
  };
  if (std::filesystem::exists(folder / "chat_template.jinja"))
    add("default", folder / "chat_template.jinja");
  const std::filesystem::path more = folder / "additional_chat_templates";
  if (std::filesystem::is_directory(more)) {
    for (const auto& entry : std::filesystem::directory_iterator(more)) {
      if (entry.path().extension() == ".jinja") add(entry.path().stem().string(), entry.path());
    }
  }
  return out;
}

std::map<std::string, jinja::Template> templates_from_config(const Json& config,
                                                             const std::string& origin) {
  std::map<std::string, jinja::Template> out;
  if (!config.contains("chat_template") || config["chat_template"].is_null()) return out;
  const Json& value = config["chat_template"];
  const std::string place = origin + " (chat_template)";
  if (value.is_string()) {
    out.try_emplace("default", place, value.get<std::string>());
    return out;
  }
  const auto is_text = [](const Json& item, const char* key) {
    return item.is_object() && item.contains(key) && item[key].is_string();
  };
  if (!value.is_array())
    throw FormatError("{}: must be a string or a list of {{name, template}}", place);
  for (const Json& item : value) {
    if (!is_text(item, "name") || !is_text(item, "template")) {
      throw FormatError("{}: each entry needs the strings name and template", place);
    }
    const auto name = item["name"].get<std::string>();
    out.try_emplace(name, fmt::format("{} (chat_template {})", origin, name),
                    item["template"].get<std::string>());
  }
  return out;
}

Value message_value(const Json& message, size_t index) {
  if (!message.is_object()) throw FormatError("messages[{}] is not an object", index);
  const Json* reasoning = nullptr;
  for (const char* name : {"reasoning_content", "thinking", "reasoning"}) {
    if (reasoning == nullptr && message.contains(name) && !message[name].is_null())
      reasoning = &message[name];
  }
  Dict out;
  if (reasoning != nullptr) out.set(Value::string("thinking"), jinja::from_json(*reasoning));
  for (const auto& [key, value] : message.items()) {
    if (!value.is_null()) out.set(Value::string(key), jinja::from_json(value));
  }
  if (reasoning != nullptr)
    out.set(Value::string("reasoning_content"), jinja::from_json(*reasoning));
  return Value::dict(std::move(out));
}

List message_list(const Json& messages) {
  if (!messages.is_array() || messages.empty())
    throw FormatError("messages must be a list with at least one message");
  List out;
  for (size_t i = 0; i < messages.size(); ++i) out.push_back(message_value(messages[i], i));
  return out;
}

// What is wrong with a value becomes a FormatError, as what is wrong with a template does.
template <class Make>
auto converted(Make make) {
  try {
    return make();
  } catch (const jinja::RenderError& error) {
    throw FormatError("messages: {}", error.what());
  }
}

}  // namespace

std::optional<ChatTemplate> ChatTemplate::load(const std::filesystem::path& folder) {
  const std::filesystem::path config_path = folder / "tokenizer_config.json";
  Json config = Json::object();
  if (std::filesystem::exists(config_path)) config = read_json(config_path);
  if (!config.is_object()) throw FormatError("{}: must be a JSON object", config_path.string());

  std::map<std::string, jinja::Template> templates = templates_from_files(folder);
  if (templates.empty()) templates = templates_from_config(config, config_path.string());
  if (templates.empty()) return std::nullopt;

  std::map<std::string, std::string> tokens;
  add_named_tokens(config, tokens);
  // Older files keep the special tokens apart.
  const std::filesystem::path map_path = folder / "special_tokens_map.json";
  if (!config.contains("added_tokens_decoder") && std::filesystem::exists(map_path)) {
    const Json map = read_json(map_path);
    if (!map.is_object()) throw FormatError("{}: must be a JSON object", map_path.string());
    add_named_tokens(map, tokens);
  }
  return ChatTemplate(std::move(templates), std::move(tokens), special_texts(config, folder));
}

ChatTemplate::ChatTemplate(std::map<std::string, jinja::Template> templates,
                           std::map<std::string, std::string> tokens,
                           std::vector<std::string> special_texts)
    : templates_(std::move(templates)),
      tokens_(std::move(tokens)),
      special_texts_(std::move(special_texts)) {
  for (const auto& [name, text] : tokens_) special_texts_.push_back(text);
  std::erase(special_texts_, std::string());
}

const jinja::Template& ChatTemplate::choose(const RenderOptions& options) const {
  const bool has_tools = options.tools != nullptr && !options.tools->is_null();
  if (const auto at = templates_.find("tool_use"); has_tools && at != templates_.end())
    return at->second;
  if (const auto at = templates_.find("default"); at != templates_.end()) return at->second;
  std::vector<std::string> names;
  for (const auto& [name, unused] : templates_) names.push_back(name);
  throw FormatError("the model has the chat templates {} and none called default",
                    fmt::join(names, ", "));
}

jinja::Variables ChatTemplate::variables(const RenderOptions& options) const {
  jinja::Variables out;
  for (const auto& [name, text] : tokens_) out[name] = Value::string(text);
  if (options.variables != nullptr && !options.variables->is_null()) {
    if (!options.variables->is_object()) throw FormatError("template variables must be an object");
    for (const auto& [name, value] : options.variables->items())
      out[name] = jinja::from_json(value);
  }
  const auto or_none = [](const Json* json) {
    return json == nullptr ? Value::none() : jinja::from_json(*json);
  };
  out["tools"] = or_none(options.tools);
  out["documents"] = or_none(options.documents);
  return out;
}

jinja::Rendered ChatTemplate::render_list(const List& messages, jinja::Variables variables,
                                          const RenderOptions& options,
                                          bool add_generation_prompt) const {
  variables["messages"] = Value::list(messages);
  variables["add_generation_prompt"] = Value::boolean(add_generation_prompt);
  return choose(options).render(variables, options.now);
}

std::string ChatTemplate::render(const Json& messages, const RenderOptions& options) const {
  const List list = converted([&] { return message_list(messages); });
  auto given = converted([&] { return variables(options); });
  return render_list(list, std::move(given), options, options.add_generation_prompt).text;
}

TurnText ChatTemplate::marked_turns(jinja::Rendered rendered, TrainedTurns turns,
                                    std::string_view where) const {
  if (!rendered.generations_placed) {
    throw FormatError(
        "{}: the chat template has {{% generation %}} inside a macro or a set block, where its "
        "place in "
        "the text is not known",
        where);
  }
  TurnText out{std::move(rendered.text), std::move(rendered.generations)};
  std::erase_if(out.trained, [](const TurnText::Span& span) { return span.begin == span.end; });
  if (out.trained.empty())
    throw FormatError("{}: the conversation has no assistant turn to train on", where);
  if (turns == TrainedTurns::kLast) out.trained.erase(out.trained.begin(), out.trained.end() - 1);
  return out;
}

// Where a turn ends: behind the special token that closes it, if there is one.
size_t ChatTemplate::end_of_turn(std::string_view text, size_t begin, size_t end) const {
  const std::string_view turn = text.substr(begin, end - begin);
  const size_t last = turn.find_last_not_of(" \t\r\n");
  if (last == std::string_view::npos) return end;
  const std::string_view trimmed = turn.substr(0, last + 1);
  const bool closed =
      std::any_of(special_texts_.begin(), special_texts_.end(),
                  [&](const std::string& token) { return trimmed.ends_with(token); });
  return closed ? begin + trimmed.size() : end;
}

TurnText ChatTemplate::render_turns(const Json& messages, const RenderOptions& options,
                                    TrainedTurns turns, std::string_view where) const {
  List list = converted([&] { return message_list(messages); });
  const auto given = converted([&] { return variables(options); });
  std::vector<size_t> answers;
  for (size_t i = 0; i < list.size(); ++i) {
    const Value* role = list[i].as_dict().find("role");
    if (role != nullptr && role->is_string() && role->as_string() == "assistant")
      answers.push_back(i);
  }
  if (answers.empty())
    throw FormatError("{}: the conversation has no assistant turn to train on", where);
  if (turns == TrainedTurns::kLast) {
    answers.erase(answers.begin(), answers.end() - 1);
    list.resize(answers[0] + 1);
  }
  jinja::Rendered whole = render_list(list, given, options, false);
  if (choose(options).has_generation()) return marked_turns(std::move(whole), turns, where);

  TurnText out{std::move(whole.text), {}};
  for (const size_t i : answers) {
    const auto head = [&](size_t count, bool prompt) {
      return render_list(List(list.begin(), list.begin() + static_cast<int64_t>(count)), given,
                         options, prompt)
          .text;
    };
    const std::string before = head(i, true);
    const std::string after = head(i + 1, false);
    const char* problem = nullptr;
    if (!after.starts_with(before)) problem = "does not continue its own generation prompt";
    if (!out.text.starts_with(after)) problem = "looks different when the conversation goes on";
    if (problem != nullptr) {
      throw FormatError(
          "{}: with this chat template the assistant's turn in messages[{}] {}, so the tokens to "
          "train on "
          "are not defined. Use a template with {{% generation %}} marks, or give each answer a "
          "row of its own "
          "and train the last turn",
          where, i, problem);
    }
    const size_t end = end_of_turn(out.text, before.size(), after.size());
    if (end > before.size()) out.trained.push_back({before.size(), end});
  }
  if (out.trained.empty()) throw FormatError("{}: all assistant turns are empty", where);
  return out;
}

std::vector<TurnText::Piece> TurnText::pieces() const {
  std::vector<Piece> out;
  const std::string_view all(text);
  size_t at = 0;
  for (const Span& span : trained) {
    if (span.begin > at) out.push_back({all.substr(at, span.begin - at), false});
    out.push_back({all.substr(span.begin, span.end - span.begin), true});
    at = span.end;
  }
  if (at < all.size()) out.push_back({all.substr(at), false});
  return out;
}

}  // namespace quadrille::text
