#include <utility>

#include "tensor/cpu/gemm_tile.h"

namespace quadrille::tensor::cpu {
namespace {

// Two products of bf16 a lane, added to an fp32 sum: c + a0 * b0 + a1 * b1 in the processor's own
// order.
struct DotPairs {
  static Vec step(Vec a, Vec b, Vec c) {
    return {_mm512_dpbf16_ps(c.v, std::bit_cast<__m512bh>(a.v), std::bit_cast<__m512bh>(b.v))};
  }
};

}  // namespace

void (*avx512bf16_tile_dot())(const Tile&) {
  return &run_tile<DotPairs, 14, 2>;
}

}  // namespace quadrille::tensor::cpu
