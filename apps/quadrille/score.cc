// quadrille score: log-probabilities of given tokens.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "commands.h"
#include "model_options.h"
#include "observe/progress.h"
#include "rollout/score.h"
#include "rows.h"

namespace quadrille::app {
namespace {

struct Options {
  ModelOptions model;
  std::string input, output;
  int64_t batch_tokens = 4096;
};

struct Scored {
  std::vector<int32_t> tokens;
  size_t first = 0;  // First position to report.
};

Scored tokens_of(const Row& row, const FolderText& texts) {
  if (row.has("tokens")) {
    if (row.has("prompt") || row.has("completion"))
      row.fail("a row has `tokens`, or `prompt` and `completion`");
    return {row.token_ids("tokens"), 0};
  }
  if (!row.has("prompt") || !row.has("completion"))
    row.fail("a row needs `tokens`, or `prompt` and `completion`");
  // Each is encoded alone, as generation saw the prompt: tokens do not reach across the border.
  Scored scored{texts.encode(row, row.text("prompt")), 0};
  scored.first = scored.tokens.size();
  const std::vector<int32_t> completion = texts.encode(row, row.text("completion"));
  scored.tokens.insert(scored.tokens.end(), completion.begin(), completion.end());
  return scored;
}

void run(const Options& options) {
  if (options.batch_tokens < 1)
    throw UsageError("--batch-tokens must be at least 1, got {}", options.batch_tokens);
  check_writable(options.output);
  apply_threads(options.model);
  const std::vector<Row> rows = read_rows(options.input);
  const FolderText texts(options.model.folder);
  const std::unique_ptr<model::Transformer> model = load(options.model);
  std::vector<Scored> scored;
  std::vector<std::vector<int32_t>> sequences;
  int64_t total = 0;
  for (const Row& row : rows) {
    scored.push_back(tokens_of(row, texts));
    sequences.push_back(scored.back().tokens);
    total += static_cast<int64_t>(sequences.back().size());
    try {
      rollout::check_scorable(*model, sequences.back());
    } catch (const Error& error) {
      row.fail(error.what());
    }
  }
  const SystemClock clock;
  observe::Progress progress(clock);
  rollout::ScoreOptions score_options;
  score_options.batch_tokens = options.batch_tokens;
  if (isatty(STDERR_FILENO) != 0) {
    score_options.progress = [&](int64_t done) {
      progress.show(fmt::format("scored {}/{} tokens",
                                observe::format_count(static_cast<double>(done)),
                                observe::format_count(static_cast<double>(total))));
    };
  }
  const std::vector<std::vector<float>> logprobs =
      rollout::score_tokens(*model, sequences, score_options);
  progress.finish();
  std::string out;
  for (size_t i = 0; i < rows.size(); ++i) {
    nlohmann::ordered_json line = {{"id", rows[i].id}};
    const auto first = static_cast<std::ptrdiff_t>(scored[i].first);
    if (!rows[i].has("tokens")) {
      line["tokens"] =
          std::vector<int32_t>(scored[i].tokens.begin() + first, scored[i].tokens.end());
    }
    for (size_t t = 1; t < logprobs[i].size(); ++t) {
      if (std::isfinite(logprobs[i][t])) continue;
      rows[i].fail(
          fmt::format("the log-probability of token {} is {}: the model's weights are damaged", t,
                      logprobs[i][t]));
    }
    // The first token's is NaN, which is written null.
    line["logprobs"] = std::vector<float>(logprobs[i].begin() + first, logprobs[i].end());
    append_line(out, line);
  }
  write_file_atomic(options.output, out);
}

}  // namespace

void add_score(CLI::App& app, int& exit_code) {
  (void)exit_code;
  auto options = std::make_shared<Options>();
  CLI::App* command =
      app.add_subcommand("score", "Log-probabilities of given tokens, at temperature 1");
  add_model_options(*command, options->model);
  command
      ->add_option("--input", options->input,
                   "JSONL: {\"id\",\"tokens\"}, or {\"id\",\"prompt\",\"completion\"} for the "
                   "completion's alone")
      ->required();
  command
      ->add_option(
          "--output", options->output,
          "JSONL: {\"id\",\"logprobs\"} in the order of the input. Entry i is ln p(token i | "
          "tokens before "
          "it); null where none stand before. With a prompt also \"tokens\", the completion's ids")
      ->required();
  command
      ->add_option("--batch-tokens", options->batch_tokens,
                   "Tokens computed at a time; less takes less memory")
      ->capture_default_str();
  command->footer(
      "Example:\n  quadrille score --model DIR --input tokens.jsonl --output logprobs.jsonl");
  command->callback([options] { run(*options); });
}

}  // namespace quadrille::app
