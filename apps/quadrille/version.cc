#include <fmt/format.h>

#include "commands.h"
#include "commit.h"

namespace quadrille::app {

std::string version_text() {
  return fmt::format("quadrille {} (commit {}, libtorch {})", QD_VERSION, QD_COMMIT,
                     QD_TORCH_VERSION);
}

}  // namespace quadrille::app
