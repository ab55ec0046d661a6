// How fast text becomes tokens on one thread: bench_tokenizer FOLDER TEXTFILE [RUNS]
//
// FOLDER holds tokenizer.json. The text is encoded as one string, as a data set's row would be.
// Checked first: decoding gives the text back, and a second encoding (now with a warm cache) gives
// the same ids. A tokenizer with a normalizer must be given text that it leaves alone.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "text/tokenizer.h"

namespace {

using Clock = std::chrono::steady_clock;

// Of this thread: says what one core can do even while others use the machine.
double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double seconds(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

int run(const std::string& folder, const std::string& file, int runs) {
  const auto load_begin = Clock::now();
  const auto tokenizer = quadrille::text::Tokenizer::load(folder);
  const double load_s = seconds(load_begin);
  const std::string text = quadrille::read_file(file);

  const auto cold_begin = Clock::now();
  const std::vector<int32_t> ids = tokenizer.encode(text);
  const double cold_s = seconds(cold_begin);
  const auto decode_begin = Clock::now();
  const std::string back = tokenizer.decode(ids, false);
  const double decode_s = seconds(decode_begin);
  if (back != text) {
    const auto differ =
        std::mismatch(text.begin(), text.end(), back.begin(), back.end()).first - text.begin();
    fmt::print(stderr, "{}: decoding does not give the text back: byte {} differs\n", file, differ);
    return 1;
  }

  const double megabytes = static_cast<double>(text.size()) / 1e6;
  std::vector<double> rates;
  std::vector<double> cpu_rates;
  for (int i = 0; i < runs; ++i) {
    const auto begin = Clock::now();
    const double cpu_begin = cpu_seconds();
    const std::vector<int32_t> again = tokenizer.encode(text);
    rates.push_back(megabytes / seconds(begin));
    cpu_rates.push_back(megabytes / (cpu_seconds() - cpu_begin));
    if (again != ids) {
      fmt::print(stderr, "{}: the second encoding differs from the first\n", file);
      return 1;
    }
  }
  std::sort(rates.begin(), rates.end());
  std::sort(cpu_rates.begin(), cpu_rates.end());
  const nlohmann::json result = {{"bench", "tokenizer"},
                                 {"tokenizer", folder},
                                 {"text", file},
                                 {"bytes", text.size()},
                                 {"tokens", ids.size()},
                                 {"threads", 1},
                                 {"runs", runs},
                                 {"mb_per_s_median", rates[rates.size() / 2]},
                                 {"mb_per_cpu_s_median", cpu_rates[cpu_rates.size() / 2]},
                                 {"mb_per_s_min", rates.front()},
                                 {"mb_per_s_max", rates.back()},
                                 {"mb_per_s_cold", megabytes / cold_s},
                                 {"decode_mb_per_s", megabytes / decode_s},
                                 {"load_s", load_s}};
  fmt::print("{}\n", result.dump());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const int runs = argc > 3 ? std::atoi(argv[3]) : 7;
  if (argc < 3 || runs < 1) {
    fmt::print(stderr, "usage: bench_tokenizer FOLDER TEXTFILE [RUNS]\n");
    return 2;
  }
  try {
    return run(argv[1], argv[2], runs);
  } catch (const quadrille::Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
