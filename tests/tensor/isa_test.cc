#include "tensor/cpu/isa.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "base/error.h"

namespace quadrille::tensor::cpu {
namespace {

// ctest runs these tests once for each instruction set; one that the processor lacks is said before
// anything runs, for ctest to see as skipped (tests/CMakeLists.txt), and not in the middle of a
// parallel region, where an exception ends the process.
const bool kSkipsWhatIsMissing = [] {
  try {
    static_cast<void>(isa());
  } catch (const ConfigError& error) {
    fmt::print("{}\n", error.what());
    std::exit(0);
  }
  return true;
}();

TEST(Isa, IsTheOneThatWasAskedFor) {
  ASSERT_TRUE(kSkipsWhatIsMissing);
  EXPECT_TRUE(supported(isa()));
  const char* wanted = std::getenv("QUADRILLE_ISA");
  if (wanted == nullptr || *wanted == '\0') return;
  EXPECT_EQ(name(isa()), wanted);
}

}  // namespace
}  // namespace quadrille::tensor::cpu
