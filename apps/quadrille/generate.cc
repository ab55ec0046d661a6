// quadrille generate: answers to one prompt, shown as they come, or to a file of prompts.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/rng.h"
#include "commands.h"
#include "model/checkpoint_io.h"
#include "model_options.h"
#include "observe/progress.h"
#include "rollout/engine.h"
#include "rows.h"

namespace quadrille::app {
namespace {

struct Options {
  ModelOptions model;
  std::string prompt, input, output;
  CLI::Option* prompt_given = nullptr;
  int64_t max_new_tokens = 128;
  int64_t n = 1;
  rollout::SamplingOptions sampling;
  std::vector<std::string> stop;
  rollout::EngineOptions engine;
};

std::vector<int32_t> prompt_of(const Row& row, const FolderText& texts) {
  if (row.has("tokens") + row.has("prompt") + row.has("messages") != 1) {
    row.fail("a row needs one of `tokens`, `prompt` and `messages`");
  }
  if (row.has("tokens")) return row.token_ids("tokens");
  return row.has("prompt") ? texts.encode(row, row.text("prompt")) : texts.render(row);
}

// Sample i of a row draws with mix_seed(--seed, i): a row's answers do not depend on the rows
// around it.
rollout::Request make_request(const Options& options, size_t row, std::vector<int32_t> prompt,
                              const std::vector<int32_t>& end_tokens) {
  rollout::Request request;
  request.id = row;
  request.prompt = std::move(prompt);
  request.samples = options.n;
  request.sampling = options.sampling;
  request.stop_tokens = end_tokens;
  request.stop_strings = options.stop;
  request.max_new_tokens = options.max_new_tokens;
  return request;
}

nlohmann::ordered_json line_of(const Options& options, const Row& row,
                               const rollout::Completion& answer, bool has_text) {
  nlohmann::ordered_json line = {{"id", row.id}};
  if (options.n > 1) line["sample"] = answer.sample;
  line["tokens"] = answer.tokens;
  line["text"] = has_text ? nlohmann::ordered_json(answer.text) : nlohmann::ordered_json();
  line["finish_reason"] = public_name(answer.finish);
  line["logprobs"] = answer.logprobs;
  if (!options.sampling.plain()) line["sampling_logprobs"] = answer.sampling_logprobs;
  return line;
}

void answer_file(const Options& options, rollout::Engine& engine, const FolderText& texts,
                 const std::vector<int32_t>& end_tokens) {
  const std::vector<Row> rows = read_rows(options.input);
  for (size_t i = 0; i < rows.size(); ++i) {
    std::vector<int32_t> prompt = prompt_of(rows[i], texts);
    try {
      engine.add(make_request(options, i, std::move(prompt), end_tokens));
    } catch (const Error& error) {
      rows[i].fail(error.what());
    }
  }
  const SystemClock clock;
  const TimePoint start = clock.now();
  observe::Progress progress(clock);
  const bool live = isatty(STDERR_FILENO) != 0;
  TimePoint shown = start;
  while (engine.step()) {
    const TimePoint now = clock.now();
    if (!live || seconds_between(shown, now) < 0.1) continue;
    shown = now;
    const rollout::Stats stats = engine.stats();
    progress.show(fmt::format(
        "{}/{} answers  {} tokens  {:.0f} tokens/s  {} running", stats.finished_samples,
        rows.size() * static_cast<size_t>(options.n),
        observe::format_count(static_cast<double>(stats.generated_tokens)),
        static_cast<double>(stats.generated_tokens) / seconds_between(start, now), stats.running));
  }
  progress.finish();
  std::vector<std::vector<rollout::Completion>> answers(rows.size());
  for (auto& of_row : answers) of_row.resize(static_cast<size_t>(options.n));
  for (rollout::Completion& answer : engine.take_finished()) {
    const auto sample = static_cast<size_t>(answer.sample);
    answers[answer.request_id][sample] = std::move(answer);
  }
  std::string out;
  for (size_t i = 0; i < rows.size(); ++i) {
    for (const rollout::Completion& answer : answers[i]) {
      append_line(out, line_of(options, rows[i], answer, texts.tokenizer() != nullptr));
    }
  }
  write_file_atomic(options.output, out);
}

void answer_prompt(const Options& options, rollout::Engine& engine, const FolderText& texts,
                   const std::vector<int32_t>& end_tokens) {
  Row row;
  row.place = "--prompt";
  const bool live = options.n == 1 && isatty(STDOUT_FILENO) != 0;
  if (live) {
    engine.set_text_listener([](uint64_t, int64_t, std::string_view piece) {
      std::fwrite(piece.data(), 1, piece.size(), stdout);
      std::fflush(stdout);
    });
  }
  for (const rollout::Completion& answer :
       engine.run({make_request(options, 0, texts.encode(row, options.prompt), end_tokens)})) {
    fmt::print("{}\n", live ? "" : answer.text);
  }
}

void run(const Options& options) {
  options.sampling.validate();
  if (options.max_new_tokens < 1) {
    throw UsageError("--max-new-tokens must be at least 1, got {}", options.max_new_tokens);
  }
  if (options.n < 1) throw UsageError("--n must be at least 1, got {}", options.n);
  const bool has_prompt = options.prompt_given->count() > 0;
  if (has_prompt != options.input.empty() || options.input.empty() != options.output.empty()) {
    throw UsageError("generate needs --prompt TEXT, or --input IN.jsonl with --output OUT.jsonl");
  }
  if (!has_prompt) check_writable(options.output);
  apply_threads(options.model);
  const FolderText texts(options.model.folder);
  const std::unique_ptr<model::Transformer> model = load(options.model);
  const std::vector<int32_t> end_tokens = model::read_end_tokens(options.model.folder);
  if (!options.stop.empty() && texts.tokenizer() == nullptr) {
    throw ConfigError("--stop needs a tokenizer, and {} has no tokenizer.json",
                      options.model.folder);
  }
  rollout::Engine engine(*model, texts.tokenizer(), options.engine);
  if (has_prompt) {
    answer_prompt(options, engine, texts, end_tokens);
  } else {
    answer_file(options, engine, texts, end_tokens);
  }
}

}  // namespace

void add_generate(CLI::App& app, int& exit_code) {
  (void)exit_code;
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("generate", "Answer a prompt, or a file of prompts");
  add_model_options(*command, options->model);
  options->prompt_given =
      command->add_option("--prompt", options->prompt,
                          "Answer this text and print the answer; no special tokens are added");
  auto* input = command->add_option(
      "--input", options->input,
      "JSONL: {\"id\", \"tokens\" | \"prompt\" | \"messages\"}; messages go through the "
      "chat template");
  auto* output = command->add_option(
      "--output", options->output,
      "JSONL: {\"id\",\"tokens\",\"text\",\"finish_reason\",\"logprobs\"} in the order of "
      "the input; \"sampling_logprobs\" where the options change them, \"sample\" with "
      "--n above 1");
  input->excludes(options->prompt_given);
  output->excludes(options->prompt_given);
  const auto add = [&](const char* name, auto& value, const char* what) {
    command->add_option(name, value, what)->capture_default_str();
  };
  add("--max-new-tokens", options->max_new_tokens, "Longest answer, in tokens");
  add("--temperature", options->sampling.temperature, "0: always the most likely token");
  add("--top-p", options->sampling.top_p,
      "Draw from the smallest set with this much probability; 1: off");
  add("--top-k", options->sampling.top_k, "Draw from the k most likely tokens; 0: off");
  add("--min-p", options->sampling.min_p,
      "Draw from tokens this likely relative to the best one; 0: off");
  add("--n", options->n, "Answers for each prompt");
  add("--seed", options->sampling.seed, "Same seed and prompt, same answer");
  command->add_option("--stop", options->stop, "End an answer before any of these strings");
  add("--kv-cache-bytes", options->engine.kv_cache_bytes,
      "Memory for keys and values; 0: what the prompts need, at most half of what is free");
  add("--max-running", options->engine.max_running, "Answers computed at a time; 0: chosen");
  add("--prefill-chunk", options->engine.prefill_chunk,
      "Prompt tokens computed in a step beside running answers");
  command->footer(
      "End tokens come from generation_config.json, else config.json.\n"
      "Examples:\n"
      "  quadrille generate --model DIR --prompt \"3 + 4 =\" --temperature 0\n"
      "  quadrille generate --model DIR --input prompts.jsonl --output answers.jsonl --n 4 --seed "
      "1 --stop \"\\n\"");
  command->callback([options] { run(*options); });
}

}  // namespace quadrille::app
