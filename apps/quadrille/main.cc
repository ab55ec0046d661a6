// The program's entry: one subcommand a file (commands.h), exceptions to exit codes in one place.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <exception>

#include "base/error.h"
#include "commands.h"

int main(int argc, char** argv) {
  CLI::App app{
      "Quadrille post-trains Mixture-of-Experts language models by reinforcement learning.",
      "quadrille"};
  app.set_version_flag("--version", quadrille::app::version_text());
  app.require_subcommand(1);
  app.footer(
      "`quadrille SUBCOMMAND --help` shows options and an example.\n"
      "Exit status: 0 done, 1 failed, 2 wrong usage, 130 interrupted after saving.");
  int exit_code = 0;
  quadrille::app::add_train(app, exit_code);
  quadrille::app::add_generate(app, exit_code);
  quadrille::app::add_score(app, exit_code);
  quadrille::app::add_tokenize(app, exit_code);
  quadrille::app::add_eval(app, exit_code);
  quadrille::app::add_inspect(app, exit_code);
  quadrille::app::add_convert(app, exit_code);
  const auto fail = [](const char* what, int code) {
    std::fflush(stdout);
    fmt::print(stderr, "quadrille: {}\n", what);
    return code;
  };
  try {
    // Asked for before the parser does, which would only say that a subcommand is required.
    const auto known = app.get_subcommands([](CLI::App*) { return true; });
    const auto is_first = [&](const CLI::App* sub) { return sub->get_name() == argv[1]; };
    if (argc > 1 && argv[1][0] != '-' && std::none_of(known.begin(), known.end(), is_first)) {
      throw quadrille::UsageError("unknown subcommand '{}' (quadrille --help)", argv[1]);
    }
    app.parse(argc, argv);
    // What was printed may be all there is of the result: a full disk must not look like success.
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0)
      return fail("standard output cannot be written", 1);
    return exit_code;
  } catch (const CLI::Success& success) {  // --help, --version.
    return app.exit(success);
  } catch (const CLI::ParseError& error) {
    const std::string line =
        fmt::format("{} (quadrille --help, or quadrille SUBCOMMAND --help)", error.what());
    return fail(line.c_str(), 2);
  } catch (const quadrille::UsageError& error) {
    return fail(error.what(), 2);
  } catch (const std::bad_alloc&) {
    return fail("out of memory", 1);
  } catch (const std::exception& error) {
    return fail(error.what(), 1);
  }
}
