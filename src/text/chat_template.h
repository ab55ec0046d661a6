// The chat template of a model: from messages to the text the model was trained on, as
// transformers' apply_chat_template() renders it.
//
//   const auto chat = ChatTemplate::load("model");
//   chat->render(messages, {.add_generation_prompt = true});
//
// Null fields of a message are dropped before the template sees it. A message's reasoning is handed
// over under the names reasoning_content and thinking, whichever of these (or reasoning) it was
// given under.
#pragma once

#include <ctime>
#include <filesystem>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja.h"

namespace quadrille::text {

// The JSON is borrowed for the call.
struct RenderOptions {
  bool add_generation_prompt = false;
  const nlohmann::ordered_json* tools = nullptr;      // A list of JSON schemas. Null: no tools.
  const nlohmann::ordered_json* documents = nullptr;  // For templates with retrieval.
  // More variables, such as enable_thinking: an object. They hide bos_token and its like.
  const nlohmann::ordered_json* variables = nullptr;
  // What strftime_now() shows. Templates that put today's date in the prompt are an error without
  // it.
  std::optional<std::tm> now;
};

// Which assistant turns of a conversation are trained.
enum class TrainedTurns { kAll, kLast };

// A conversation as text, with the parts the assistant wrote: its answers, end-of-turn token
// included.
struct TurnText {
  using Span = jinja::TextSpan;
  struct Piece {
    std::string_view text;  // Points into TurnText::text.
    bool trained = false;
  };

  std::string text;
  std::vector<Span> trained;  // Bytes, in order, apart from each other, none empty.

  // The text cut at the edges of the spans. Encode each piece for itself: then an answer's tokens
  // are those the model would have sampled after the tokens of the prompt, and the loss mask needs
  // no alignment.
  std::vector<Piece> pieces() const;
};

class ChatTemplate {
 public:
  // Reads chat_template.jinja and additional_chat_templates/*.jinja, else chat_template of
  // tokenizer_config.json, and the special tokens. nullopt if the folder has no template. Throws
  // FormatError.
  static std::optional<ChatTemplate> load(const std::filesystem::path& folder);

  // `templates` by name ("default", "tool_use", ...); `tokens` are variables such as eos_token;
  // `special_texts` are further special tokens, which can end a turn.
  ChatTemplate(std::map<std::string, jinja::Template> templates,
               std::map<std::string, std::string> tokens,
               std::vector<std::string> special_texts = {});

  // `messages` is a list of objects. Throws FormatError.
  std::string render(const nlohmann::ordered_json& messages,
                     const RenderOptions& options = {}) const;

  // For supervised training. Where the template marks answers with {% generation %}, those marks
  // are taken as they are. Elsewhere turn i is what messages 0..i add to messages 0..i-1 with a
  // generation prompt, up to the end-of-turn token (white space after it is the template's, not the
  // model's). That is only meaningful if a turn looks the same whatever follows; a template that
  // changes earlier turns is refused, with `where` (file and line of the row), unless only the last
  // turn is trained.
  TurnText render_turns(const nlohmann::ordered_json& messages, const RenderOptions& options,
                        TrainedTurns turns, std::string_view where) const;

 private:
  const jinja::Template& choose(const RenderOptions& options) const;
  jinja::Variables variables(const RenderOptions& options) const;
  jinja::Rendered render_list(const jinja::List& messages, jinja::Variables variables,
                              const RenderOptions& options, bool add_generation_prompt) const;
  TurnText marked_turns(jinja::Rendered rendered, TrainedTurns turns, std::string_view where) const;
  size_t end_of_turn(std::string_view text, size_t begin, size_t end) const;

  std::map<std::string, jinja::Template> templates_;
  std::map<std::string, std::string> tokens_;
  std::vector<std::string> special_texts_;
};

}  // namespace quadrille::text
