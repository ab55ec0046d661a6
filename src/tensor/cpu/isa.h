// Which instruction set the kernels use: the best one this processor has, found once.
//
// QUADRILLE_ISA=generic|avx2|avx512|avx512bf16 forces a lower one (tests, comparisons). Each set
// adds in its own rounding, so two processes that must agree bit for bit use the same one.
#pragma once

#include <string_view>

namespace quadrille::tensor::cpu {

enum class Isa { kGeneric, kAvx2, kAvx512, kAvx512Bf16 };

// Throws ConfigError when QUADRILLE_ISA names no set, or one that this processor lacks.
Isa isa();
bool supported(Isa isa);
std::string_view name(Isa isa);

}  // namespace quadrille::tensor::cpu
