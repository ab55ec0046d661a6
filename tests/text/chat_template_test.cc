#include "text/chat_template.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"

namespace quadrille::text {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr const char* kChatMl =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

ChatTemplate make(const std::string& source,
                  std::map<std::string, std::string> tokens = {{"eos_token", "<|im_end|>"}}) {
  std::map<std::string, jinja::Template> templates;
  templates.try_emplace("default", "t.jinja", source);
  return ChatTemplate(std::move(templates), std::move(tokens));
}

Json messages(const std::string& text) {
  return Json::parse(text);
}

template <class Call>
std::string error_of(Call call) {
  try {
    call();
    return "no error";
  } catch (const FormatError& error) {
    return error.what();
  }
}

// The trained texts of a conversation.
std::vector<std::string> trained(const ChatTemplate& chat, const Json& conversation,
                                 TrainedTurns turns = TrainedTurns::kAll) {
  std::vector<std::string> out;
  const TurnText text = chat.render_turns(conversation, {}, turns, "data.jsonl:7");
  std::string joined;
  for (const TurnText::Piece& piece : text.pieces()) {
    joined += piece.text;
    if (piece.trained) out.emplace_back(piece.text);
  }
  EXPECT_EQ(joined, text.text);
  return out;
}

class Folder {
 public:
  Folder() : path_(fs::temp_directory_path() / ("qd_chat_" + std::to_string(::getpid()))) {
    fs::create_directories(path_ / "additional_chat_templates");
  }
  ~Folder() { fs::remove_all(path_); }
  void write(const std::string& name, const std::string& text) const {
    std::ofstream(path_ / name) << text;
  }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

TEST(ChatTemplate, RendersWithTokensToolsAndVariables) {
  const ChatTemplate chat = make(
      "{{ bos_token }}{{ tools | tojson }}{{ extra }}{{ add_generation_prompt }}{{ documents }}",
      {{"bos_token", "<s>"}});
  const Json tools = messages(R"([{"b": 1, "a": "<é>"}])");
  const Json variables = messages(R"({"extra": 5})");
  EXPECT_EQ(chat.render(messages(R"([{"role": "user"}])"),
                        {.add_generation_prompt = true, .tools = &tools, .variables = &variables}),
            R"(<s>[{"b": 1, "a": "<é>"}]5TrueNone)");
}

TEST(ChatTemplate, DropsNullFieldsAndSharesReasoning) {
  const ChatTemplate chat = make("{% for m in messages %}{{ m }}{% endfor %}");
  EXPECT_EQ(chat.render(messages(R"([{"role": "a", "content": null, "x": [null]}])")),
            "{'role': 'a', 'x': [None]}");
  EXPECT_EQ(chat.render(messages(R"([{"role": "a", "reasoning": "r"}])")),
            "{'thinking': 'r', 'role': 'a', 'reasoning': 'r', 'reasoning_content': 'r'}");
}

TEST(ChatTemplate, RefusesWhatIsNoConversation) {
  const ChatTemplate chat = make(kChatMl);
  EXPECT_EQ(error_of([&] { chat.render(messages("[]")); }),
            "messages must be a list with at least one message");
  EXPECT_EQ(error_of([&] { chat.render(messages(R"({"role": "user"})")); }),
            "messages must be a list with at least one message");
  EXPECT_EQ(error_of([&] { chat.render(messages(R"([{"role": "user"}, 3])")); }),
            "messages[1] is not an object");
}

TEST(ChatTemplate, LoadsWhatAFolderHolds) {
  const Folder folder;
  EXPECT_FALSE(ChatTemplate::load(folder.path()).has_value());
  folder.write("tokenizer_config.json",
               R"({"bos_token": {"content": "<s>"}, "eos_token": "</s>", "pad_token": null,
      "add_bos_token": true, "chat_template": "config {{ bos_token }}{{ eos_token }}{{ pad_token is defined }}"})");
  const Json hi = messages(R"([{"role": "user", "content": "hi"}])");
  EXPECT_EQ(ChatTemplate::load(folder.path())->render(hi), "config <s></s>False");

  folder.write("special_tokens_map.json", R"({"eos_token": {"content": "<end>"}})");
  EXPECT_EQ(ChatTemplate::load(folder.path())->render(hi), "config <s><end>False");

  folder.write("chat_template.jinja", "file {{ bos_token }}\n");
  EXPECT_EQ(ChatTemplate::load(folder.path())->render(hi), "file <s>");

  folder.write("additional_chat_templates/tool_use.jinja", "tools {{ tools | length }}");
  const Json tools = messages("[{}]");
  EXPECT_EQ(ChatTemplate::load(folder.path())->render(hi, {.tools = &tools}), "tools 1");
  EXPECT_EQ(ChatTemplate::load(folder.path())->render(hi), "file <s>");
}

TEST(ChatTemplate, LoadsNamedTemplatesAndSaysWhatIsWrong) {
  const Folder folder;
  const Json hi = messages(R"([{"role": "user", "content": "hi"}])");
  folder.write(
      "tokenizer_config.json",
      R"({"chat_template": [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}]})");
  const Json tools = messages("[]");
  EXPECT_EQ(ChatTemplate::load(folder.path())->render(hi), "d");
  EXPECT_EQ(ChatTemplate::load(folder.path())->render(hi, {.tools = &tools}), "t");
  folder.write("tokenizer_config.json", R"({"chat_template": [{"name": "rag", "template": "r"}]})");
  EXPECT_EQ(error_of([&] { ChatTemplate::load(folder.path())->render(hi); }),
            "the model has the chat templates rag and none called default");
  folder.write("tokenizer_config.json", R"({"chat_template": 3})");
  EXPECT_NE(error_of([&] { ChatTemplate::load(folder.path()); }).find("must be a string or a list"),
            std::string::npos);
  folder.write("tokenizer_config.json", "{");
  EXPECT_NE(error_of([&] { ChatTemplate::load(folder.path()); }).find("not valid JSON"),
            std::string::npos);
}

TEST(ChatTemplate, TrainsTheAnswersWithTheirEndTokens) {
  const Json two =
      messages(R"([{"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "2"},
                                {"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4 "}])");
  EXPECT_EQ(trained(make(kChatMl), two), (std::vector<std::string>{"2<|im_end|>", "4 <|im_end|>"}));
  EXPECT_EQ(trained(make(kChatMl), two, TrainedTurns::kLast),
            (std::vector<std::string>{"4 <|im_end|>"}));
  // Without a generation prompt, and with an end token that nothing follows.
  const char* plain =
      "{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]{% else %} "
      "{{ m.content }}{{ eos_token }}{% endif %}{% endfor %}";
  EXPECT_EQ(trained(make(plain, {{"eos_token", "</s>"}}), two),
            (std::vector<std::string>{" 2</s>", " 4 </s>"}));
  // Without an end token nothing is cut off.
  EXPECT_EQ(trained(make(plain, {}), two), (std::vector<std::string>{" 2", " 4 "}));
}

TEST(ChatTemplate, TrainsWhatTheTemplateMarks) {
  const ChatTemplate chat = make(
      "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}{% generation %}{{ "
      "m.content }}!\n"
      "{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}");
  const Json two =
      messages(R"([{"role": "user", "content": "é"}, {"role": "assistant", "content": "ß"},
                                {"role": "user", "content": "q"}, {"role": "assistant", "content": "r"}])");
  EXPECT_EQ(trained(chat, two), (std::vector<std::string>{"ß!\n", "r!\n"}));
  EXPECT_EQ(trained(chat, two, TrainedTurns::kLast), (std::vector<std::string>{"r!\n"}));
}

TEST(ChatTemplate, RefusesTurnsThatAreNotStable) {
  // Drops the reasoning of all answers but the last, as reasoning models' templates do.
  const ChatTemplate chat = make(
      "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if loop.last and m.role == 'assistant' "
      "%}<think></think>"
      "{% endif %}{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt "
      "%}<|im_start|>assistant\n{% endif %}");
  const Json two =
      messages(R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
                                {"role": "user", "content": "c"}, {"role": "assistant", "content": "d"}])");
  const std::string error = error_of([&] { trained(chat, two); });
  EXPECT_TRUE(error.starts_with(
      "data.jsonl:7: with this chat template the assistant's turn in messages[1] looks "
      "different when the conversation goes on"))
      << error;
  EXPECT_EQ(trained(chat, two, TrainedTurns::kLast),
            (std::vector<std::string>{"<think></think>d<|im_end|>"}));

  const Json none = messages(R"([{"role": "user", "content": "a"}])");
  EXPECT_EQ(error_of([&] { trained(chat, none); }),
            "data.jsonl:7: the conversation has no assistant turn to train on");
  const ChatTemplate macro =
      make("{% macro m() %}{% generation %}x{% endgeneration %}{% endmacro %}{{ m() }}");
  EXPECT_NE(error_of([&] { trained(macro, two); }).find("inside a macro"), std::string::npos);
}

// Each row: a conversation and what transformers made of it.
void check_goldens(const fs::path& path, const ChatTemplate* chat) {
  for_each_line(path, [&](std::string_view line, int64_t number) {
    // Integers beyond 64 bits become floats when JSON is read, which Python keeps whole.
    if (line.find("100000000000000000000") != std::string_view::npos) return;
    const Json row = Json::parse(line);
    SCOPED_TRACE(path.filename().string() + ":" + std::to_string(number) + " " +
                 row.value("name", ""));
    RenderOptions options;
    options.add_generation_prompt = row.value("add_generation_prompt", false);
    if (row.contains("tools")) options.tools = &row["tools"];
    if (row.contains("kwargs")) options.variables = &row["kwargs"];
    options.now = std::tm{.tm_mday = 4, .tm_mon = 6, .tm_year = 125};
    try {
      const std::string text = chat != nullptr ? chat->render(row["messages"], options)
                                               : make(row["template"].get<std::string>(),
                                                      {{"bos_token", "<s>"}, {"eos_token", "</s>"}})
                                                     .render(row["messages"], options);
      ASSERT_TRUE(row.contains("text")) << "expected the error " << row["error"];
      EXPECT_EQ(text, row["text"].get<std::string>());
    } catch (const FormatError& error) {
      ASSERT_TRUE(row.contains("error")) << error.what();
      if (row["error_kind"] == "raise_exception") {
        EXPECT_TRUE(std::string_view(error.what()).ends_with(row["error"].get<std::string>()))
            << error.what();
      }
    }
  });
}

TEST(ChatTemplate, AgreesWithTransformers) {
  const fs::path root(QD_SOURCE_DIR);
  if (!fs::exists(root / "tests/goldens/text/chat.features.jsonl"))
    GTEST_SKIP() << "no goldens in tests/goldens/text";
  check_goldens(root / "tests/goldens/text/chat.features.jsonl", nullptr);
  int checked = 0;
  for (const char* name : {"qwen3", "llama3_1", "deepseek_v3", "smollm2"}) {
    // The tokenizers are fetched, not kept in the tree.
    const fs::path folder = root / ".cache/tokenizers" / name;
    if (!fs::exists(folder / "tokenizer_config.json")) continue;
    const std::optional<ChatTemplate> chat = ChatTemplate::load(folder);
    ASSERT_TRUE(chat.has_value());
    check_goldens(root / ("tests/goldens/text/chat." + std::string(name) + ".jsonl"), &*chat);
    ++checked;
  }
  if (checked == 0) GTEST_SKIP() << "checked our own templates only: no .cache/tokenizers";
}

}  // namespace
}  // namespace quadrille::text
