// One function a subcommand: adds it to the program. Its callback runs the work and sets
// `exit_code` where 0 is not the answer; failures are thrown.
#pragma once

#include <string>

namespace CLI {
class App;
}

namespace quadrille::app {

void add_train(CLI::App& app, int& exit_code);
void add_generate(CLI::App& app, int& exit_code);
void add_score(CLI::App& app, int& exit_code);
void add_tokenize(CLI::App& app, int& exit_code);
void add_eval(CLI::App& app, int& exit_code);
void add_inspect(CLI::App& app, int& exit_code);
void add_convert(CLI::App& app, int& exit_code);

// "quadrille 0.1.0 (commit abc, libtorch 2.13.0)".
std::string version_text();

}  // namespace quadrille::app
