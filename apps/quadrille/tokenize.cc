// quadrille tokenize: text or messages to token ids.
#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "base/file.h"
#include "commands.h"
#include "rows.h"

namespace quadrille::app {
namespace {

struct Options {
  std::string model, input, output;
};

void run(const Options& options) {
  check_writable(options.output);
  const FolderText texts(options.model);
  std::string out;
  for (const Row& row : read_rows(options.input)) {
    if (row.has("text") == row.has("messages"))
      row.fail("a row needs one of `text` and `messages`");
    append_line(out, {{"id", row.id},
                      {"tokens",
                       row.has("text") ? texts.encode(row, row.text("text")) : texts.render(row)}});
  }
  write_file_atomic(options.output, out);
}

}  // namespace

void add_tokenize(CLI::App& app, int& exit_code) {
  (void)exit_code;
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("tokenize", "Turn text or chat messages into token ids");
  command->add_option("--model", options->model, "Hugging Face folder with tokenizer.json")
      ->required();
  command
      ->add_option("--input", options->input,
                   "JSONL: {\"id\",\"text\"}, special tokens only where the text has them; or "
                   "{\"id\",\"messages\"}, "
                   "through the chat template with a generation prompt")
      ->required();
  command
      ->add_option("--output", options->output,
                   "JSONL: {\"id\",\"tokens\"}, in the order of the input")
      ->required();
  command->footer(
      "Example:\n  quadrille tokenize --model DIR --input texts.jsonl --output tokens.jsonl");
  command->callback([options] { run(*options); });
}

}  // namespace quadrille::app
