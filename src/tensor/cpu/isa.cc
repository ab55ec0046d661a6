#include "tensor/cpu/isa.h"

#include <cstdlib>

#include "base/error.h"

namespace quadrille::tensor::cpu {
namespace {

constexpr Isa kBestFirst[] = {Isa::kAvx512Bf16, Isa::kAvx512, Isa::kAvx2, Isa::kGeneric};

Isa choose() {
  const char* wanted = std::getenv("QUADRILLE_ISA");
  for (const Isa isa : kBestFirst) {
    if (wanted == nullptr || *wanted == '\0') {
      if (supported(isa)) return isa;
    } else if (name(isa) == wanted) {
      if (!supported(isa)) throw ConfigError("QUADRILLE_ISA={}: this processor lacks it", wanted);
      return isa;
    }
  }
  throw ConfigError("QUADRILLE_ISA={}: expected generic, avx2, avx512 or avx512bf16", wanted);
}

}  // namespace

Isa isa() {
  static const Isa chosen = choose();
  return chosen;
}

bool supported(Isa isa) {
#if defined(__x86_64__)
  const bool avx2 = __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0;
  const bool avx512 =
      avx2 && __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
      __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512vl") != 0;
  switch (isa) {
    case Isa::kGeneric:
      return true;
    case Isa::kAvx2:
      return avx2;
    case Isa::kAvx512:
      return avx512;
    case Isa::kAvx512Bf16:
      return avx512 && __builtin_cpu_supports("avx512bf16") != 0;
  }
  return false;
#else
  return isa == Isa::kGeneric;
#endif
}

std::string_view name(Isa isa) {
  switch (isa) {
    case Isa::kGeneric:
      return "generic";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
    case Isa::kAvx512Bf16:
      return "avx512bf16";
  }
  return "?";
}

}  // namespace quadrille::tensor::cpu
