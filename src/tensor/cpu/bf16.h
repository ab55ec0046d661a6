// bf16 as raw bits, so that kernels need no libtorch. Rounds to nearest even, as c10::BFloat16
// does.
#pragma once

#include <bit>
#include <cstdint>

// Always in line: a copy compiled with the flags of one kernel file must not serve the whole
// program (vec.h).
#define QD_INLINE [[gnu::always_inline]] inline

namespace quadrille::tensor::cpu {

using Bf16 = uint16_t;

QD_INLINE float to_float(Bf16 bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}
QD_INLINE float to_float(float value) {
  return value;
}

QD_INLINE Bf16 to_bf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if (value != value) return 0x7fc0;
  return static_cast<Bf16>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}
QD_INLINE float round_to_bf16(float value) {
  return to_float(to_bf16(value));
}

}  // namespace quadrille::tensor::cpu
