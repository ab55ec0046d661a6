#include "tensor/cpu/gemm.h"

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <new>

#include "base/error.h"
#include "tensor/cpu/gemm_kernels.h"
#include "tensor/cpu/isa.h"

namespace quadrille::tensor::cpu {
namespace {

// Cache blocks. A tile of A (14 x kDepth, 28 KiB) lives in L1; a block of B (kDepth x kCols) in
// half of a 1 MiB L2.
constexpr int64_t kCols = 256;
constexpr int64_t kRowTiles = 16;
// Where a block packs its own B, more rows share the packing.
constexpr int64_t kRowTilesUnpacked = 64;

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}
// `total` in the fewest parts of at most `most`, as even as multiples of `unit` allow: the size of
// all but the last.
int64_t even_part(int64_t total, int64_t most, int64_t unit) {
  const int64_t parts = std::max<int64_t>(1, ceil_div(total, most));
  return std::max<int64_t>(unit, ceil_div(ceil_div(total, parts), unit) * unit);
}

struct FreeDelete {
  void operator()(float* p) const { std::free(p); }
};

// One a thread; pages are touched only as far as they are used.
struct Scratch {
  std::unique_ptr<float, FreeDelete> a = allocate(kDepth * kLanes);
  std::unique_ptr<float, FreeDelete> b = allocate(kDepth * kCols);
  std::unique_ptr<float, FreeDelete> c = allocate(kRowTilesUnpacked * kLanes * kCols);

  static std::unique_ptr<float, FreeDelete> allocate(int64_t count) {
    void* p = std::aligned_alloc(64, static_cast<size_t>(count) * sizeof(float));
    if (p == nullptr) throw std::bad_alloc();
    return std::unique_ptr<float, FreeDelete>(static_cast<float*>(p));
  }
};
Scratch& scratch() {
  thread_local Scratch mine;
  return mine;
}

int64_t size_of(Type type) {
  return type == Type::kFp32 ? 4 : 2;
}
const void* at(const void* p, Type type, int64_t elements) {
  return static_cast<const char*>(p) + elements * size_of(type);
}
bool uses_dot(Type compute) {
  return compute == Type::kBf16 && gemm_kernels().tile_dot != nullptr;
}

// Rows whose distance is a multiple of 2 KiB fall on a few cache sets and push each other out.
bool crowded(int64_t stride_bytes) {
  return stride_bytes % 2048 == 0;
}

// Whether the tile kernel can read A where it lies.
bool reads_in_place(const Gemm& g, bool dot, int64_t panels) {
  if (g.a_type != (dot ? Type::kBf16 : Type::kFp32)) return false;
  const int64_t stride = g.a_col == 1 ? g.a_row : g.a_col;
  if (panels >= 4 && crowded(stride * size_of(g.a_type))) return false;
  if (!dot) return g.a_col == 1 || g.a_row == 1;
  const bool aligned = reinterpret_cast<uintptr_t>(g.a) % 4 == 0;
  return g.a_col == 1 && g.a_row % 2 == 0 && g.k % 2 == 0 && aligned;
}

GemmKernels choose_kernels() {
  switch (isa()) {
#if defined(__x86_64__)
    case Isa::kAvx2:
      return avx2_gemm_kernels();
    case Isa::kAvx512:
      return avx512_gemm_kernels();
    case Isa::kAvx512Bf16: {
      GemmKernels kernels = avx512_gemm_kernels();
      kernels.tile_dot = avx512bf16_tile_dot();
      return kernels;
    }
#endif
    default:
      return generic_gemm_kernels();
  }
}

}  // namespace

const GemmKernels& gemm_kernels() {
  static const GemmKernels kernels = choose_kernels();
  return kernels;
}

int64_t packed_size(int64_t k, int64_t n, Type compute) {
  return (uses_dot(compute) ? ceil_div(k, 2) : k) * ceil_div(n, kPanel) * kPanel;
}

void pack_b(const Gemm& g, float* out) {
  const bool dot = uses_dot(g.compute);
  const int64_t units = dot ? ceil_div(g.k, 2) : g.k;
  gemm_kernels().pack_b(g.b, g.b_type, g.b_row, g.b_col, g.k, g.n, dot, out, units * kPanel);
}

void run_block(const Gemm& g, const Block& block) {
  const GemmKernels& kernels = gemm_kernels();
  const bool dot = uses_dot(g.compute);
  const int64_t per_unit = dot ? 2 : 1;
  const int64_t rows = block.row_end - block.row_begin;
  const int64_t cols = block.col_end - block.col_begin;
  if (rows <= 0 || cols <= 0) return;
  const int64_t panels = ceil_div(cols, kPanel);
  const int64_t tile_rows = even_part(rows, kernels.rows, 1);
  const bool in_place = reads_in_place(g, dot, panels);
  const auto tile = dot ? kernels.tile_dot : kernels.tile;

  const int64_t depth = even_part(g.k, kDepth * per_unit, per_unit);
  const int64_t all_units = ceil_div(g.k, per_unit);
  for (int64_t k0 = 0; k0 == 0 || k0 < g.k; k0 += depth) {
    const int64_t count = std::min(depth, g.k - k0);
    const bool last = k0 + depth >= g.k;
    Tile t;
    t.k = ceil_div(count, per_unit);

    const float* b = nullptr;
    int64_t panel_stride = 0;
    if (g.b_packed) {
      panel_stride = all_units * kPanel;
      b = static_cast<const float*>(g.b) + block.col_begin / kPanel * panel_stride +
          k0 / per_unit * kPanel;
    } else {
      panel_stride = t.k * kPanel;
      float* packed = scratch().b.get();
      kernels.pack_b(at(g.b, g.b_type, k0 * g.b_row + block.col_begin * g.b_col), g.b_type, g.b_row,
                     g.b_col, count, cols, dot, packed, panel_stride);
      b = packed;
    }

    // Where sums rest between two stretches of k: in C if it is fp32, else in a buffer.
    const bool buffered = g.c_type == Type::kBf16;
    for (int64_t r = 0; r < rows; r += tile_rows) {
      const int64_t row = block.row_begin + r;
      t.rows = static_cast<int>(std::min(tile_rows, rows - r));
      const void* a = at(g.a, g.a_type, row * g.a_row + k0 * g.a_col);
      if (in_place) {
        t.a = static_cast<const float*>(a);
        t.a_row = g.a_row / (g.a_col == 1 ? per_unit : 1);
        t.a_col = g.a_col;
      } else {
        float* packed = scratch().a.get();
        kernels.pack_a(a, g.a_type, g.a_row, g.a_col, t.rows, count, dot, packed);
        t.a = packed;
        t.a_row = 1;
        t.a_col = kLanes;
      }
      for (int64_t p = 0; p < panels; ++p) {
        const int64_t col = block.col_begin + p * kPanel;
        t.b = b + p * panel_stride;
        t.cols = static_cast<int>(std::min(kPanel, block.col_end - col));
        float* rest = buffered ? scratch().c.get() + r * kCols + p * kPanel
                               : static_cast<float*>(g.c) + row * g.c_row + col;
        const int64_t rest_row = buffered ? kCols : g.c_row;
        t.start = k0 > 0 || g.accumulate ? rest : nullptr;
        t.start_row = rest_row;
        t.c = rest;
        t.c_row = rest_row;
        t.c16 = nullptr;
        t.bias = nullptr;
        t.round_to_bf16 = false;
        if (last) {
          t.bias = g.bias == nullptr ? nullptr : g.bias + col;
          t.round_to_bf16 = g.round_to_bf16;
          if (buffered) {
            t.c = nullptr;
            t.c16 = static_cast<Bf16*>(g.c) + row * g.c_row + col;
            t.c_row = g.c_row;
          }
        }
        tile(t);
      }
    }
  }
}

std::vector<Block> plan(std::span<const Gemm> problems, int threads) {
  double flops = 0;
  for (const Gemm& g : problems) flops += g.flops();
  // Four blocks a thread even out what the threads lose to others on the machine, if blocks stay
  // worth a trip to the counter.
  const double target =
      threads == 1 ? 1e300 : std::max(0.4e6, flops / (4.0 * static_cast<double>(threads)));
  const int64_t full_rows = gemm_kernels().rows;
  std::vector<Block> blocks;
  for (size_t i = 0; i < problems.size(); ++i) {
    const Gemm& g = problems[i];
    if (g.m <= 0 || g.n <= 0) continue;
    int64_t cols = even_part(g.n, kCols, kPanel);
    const int64_t most = (g.b_packed ? kRowTiles : kRowTilesUnpacked) * full_rows;
    int64_t rows = even_part(g.m, most, 1);
    const auto size = [&] {
      return 2.0 * static_cast<double>(rows) * static_cast<double>(cols) * static_cast<double>(g.k);
    };
    while (size() > target) {
      // Halve what is cut more cheaply: rows share B's packing, columns share A's reading.
      if (rows > 4 * full_rows) {
        rows = even_part(rows, ceil_div(rows, 2), 1);
      } else if (cols > kPanel) {
        cols = even_part(cols, ceil_div(cols, 2 * kPanel) * kPanel, kPanel);
      } else if (rows > full_rows) {
        rows = even_part(rows, ceil_div(rows, 2), 1);
      } else {
        break;
      }
    }
    for (int64_t c = 0; c < g.n; c += cols) {
      for (int64_t r = 0; r < g.m; r += rows) {
        blocks.push_back(
            {static_cast<int64_t>(i), r, std::min(r + rows, g.m), c, std::min(c + cols, g.n)});
      }
    }
  }
  return blocks;
}

int threads_for(double flops, int threads) {
  // About 6 µs of one core.
  return flops < 0.5e6 || omp_in_parallel() != 0 ? 1 : std::max(1, threads);
}

void run_phases(std::span<const Phase> phases, int threads) {
  if (threads <= 1) {
    for (const Phase& phase : phases) {
      for (int64_t i = 0; i < phase.count; ++i) phase.item(i);
    }
    return;
  }
  std::vector<std::atomic<int64_t>> next(phases.size());
#pragma omp parallel num_threads(threads)
  for (size_t p = 0; p < phases.size(); ++p) {
    for (int64_t i = next[p].fetch_add(1); i < phases[p].count; i = next[p].fetch_add(1)) {
      phases[p].item(i);
    }
#pragma omp barrier
  }
}

void run(std::span<const Gemm> problems, int threads) {
  double flops = 0;
  for (const Gemm& g : problems) flops += g.flops();
  threads = threads_for(flops, threads);
  const std::vector<Block> blocks = plan(problems, threads);
  const Phase phase{static_cast<int64_t>(blocks.size()), [&](int64_t i) {
                      const auto& block = blocks[static_cast<size_t>(i)];
                      run_block(problems[static_cast<size_t>(block.problem)], block);
                    }};
  run_phases(std::span(&phase, 1), threads);
}

}  // namespace quadrille::tensor::cpu
