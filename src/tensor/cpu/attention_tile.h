// The attention kernels, written once and compiled per instruction set.
//
// A tile is up to kTileRows rows (position, head) that walk their blocks together, so that a block
// is loaded once for all of them. Two passes: all scores and their maximum, then exp, sum and the
// weighted values. What a row computes does not depend on its tile:
//   scores     one chain of multiply-adds over the head's numbers, a lane a key;
//   maximum    exact in any order;
//   sum        lane by lane over ascending blocks, then one tree; hidden keys add an exact zero;
//   values     one chain over the row's own visible keys, ascending.
// Keys that only some rows of a tile see are done row by row, before and after the common ones: a
// zero weight could still turn -0 into 0, or a NaN in a slot that nobody has written yet into a NaN
// here.
#pragma once

#include <cstdint>

#include "tensor/cpu/attention_kernels.h"
#include "tensor/cpu/vec16.h"

namespace quadrille::tensor::cpu {
namespace {

// A block's scores of a tile are 16 * rows accumulators; more rows a tile than fit the registers
// would spill.
constexpr int kTileRows = Vec::kWidth == 16 ? 8 : Vec::kWidth == 8 ? 4 : 2;
// Columns of values held at once, in vectors of 16.
constexpr int kColumns = Vec::kWidth == 16 ? 2 : 1;

// -inf, inf, -inf, 16 of each: min() with 16 of them from index 32 - n keeps the first n lanes and
// makes the others -inf; from index 16 - n, it is the first n that become -inf.
struct Limits {
  float at[48] = {};
  constexpr Limits() {
    for (int i = 0; i < 48; ++i) at[i] = i / 16 == 1 ? __builtin_inff() : -__builtin_inff();
  }
};
alignas(64) constexpr Limits kLimits;

// Where the rows of a tile look: row r sees keys begin[r] <= j < end[r], both ascending in r.
template <int R>
struct Tile {
  int64_t token[R];
  int64_t head[R];
  int64_t begin[R];
  int64_t end[R];
  int64_t block0;  // First block that any row sees, and the one after the last.
  int64_t block1;

  Tile(const AttendTask& t, int64_t row0) {
    int64_t at_token = row0 / t.group;
    int64_t at_head = row0 % t.group;
    for (int r = 0; r < R; ++r) {
      token[r] = at_token;
      head[r] = at_head;
      end[r] = t.first_position + at_token + 1;
      begin[r] = t.window > 0 && end[r] > t.window ? end[r] - t.window : 0;
      if (++at_head == t.group) {
        at_head = 0;
        ++at_token;
      }
    }
    block0 = begin[0] / 16;
    block1 = (end[R - 1] + 15) / 16;
  }
};

// Scores of R rows with B blocks: acc[r][b], lane j = sum over i of a[r][i] * block_b[i][j].
template <int R, int B>
QD_INLINE void dots(const float* const (&a)[R], const float* const* blocks, int64_t dim,
                    F16 (&acc)[R][B]) {
  QD_UNROLL_ALL for (int r = 0; r < R; ++r) {
    QD_UNROLL_ALL for (int b = 0; b < B; ++b) acc[r][b] = fill16(0.0F);
  }
  const float* block[B];
  QD_UNROLL_ALL for (int b = 0; b < B; ++b) block[b] = blocks[b];
  for (int64_t i = 0; i < dim; ++i) {
    F16 lanes16[B];
    QD_UNROLL_ALL for (int b = 0; b < B; ++b) lanes16[b] = load16f(block[b] + i * 16);
    QD_UNROLL_ALL for (int r = 0; r < R; ++r) {
      const F16 x = fill16(a[r][i]);
      QD_UNROLL_ALL for (int b = 0; b < B; ++b) acc[r][b] = fma(x, lanes16[b], acc[r][b]);
    }
  }
}

// -inf for the lanes of `block` that row [begin, end) does not see.
QD_INLINE F16 hide(F16 score, int64_t block, int64_t begin, int64_t end) {
  const int64_t first = block * 16;
  if (end < first + 16) {
    score = min(score, load16f(kLimits.at + 32 - (end > first ? end - first : 0)));
  }
  if (begin > first) {
    score = min(score, load16f(kLimits.at + 16 - (begin < first + 16 ? begin - first : 16)));
  }
  return score;
}

// Scores of all blocks to `scores` [block][R][16], and the largest of each row.
template <int R, int B>
QD_INLINE void score_blocks(const AttendTask& t, const Tile<R>& tile, const float* const (&q)[R],
                            int64_t block0, int64_t block1, F16 (&best)[R], float* scores) {
  for (int64_t b = block0; b + B <= block1; b += B) {
    F16 acc[R][B];
    dots<R, B>(q, t.keys + b, t.key_dim, acc);
    const bool whole = (b + B) * 16 <= tile.end[0] && b * 16 >= tile.begin[R - 1];
    QD_UNROLL_ALL for (int r = 0; r < R; ++r) {
      QD_UNROLL_ALL for (int i = 0; i < B; ++i) {
        F16 s = acc[r][i] * fill16(t.scale);
        if (!whole) s = hide(s, b + i, tile.begin[r], tile.end[r]);
        best[r] = max(best[r], s);
        store16f(scores + ((b + i - tile.block0) * R + r) * 16, s);
      }
    }
  }
}

// out[r] = factor[r] * sum over the row's keys j of weights[j] * rows[j], for the C vectors of
// columns from `column` on; with kTail only `tail` numbers of the last.
template <int R, int C, bool kTail>
__attribute__((noinline)) void weighted_sums(const Tile<R>& tile, const float* weights,
                                             const float* const* rows, int64_t stride,
                                             int64_t column, int64_t tail, const float* factor,
                                             float* const* out) {
  F16 acc[R][C];
  QD_UNROLL_ALL for (int r = 0; r < R; ++r) {
    QD_UNROLL_ALL for (int c = 0; c < C; ++c) acc[r][c] = fill16(0.0F);
  }
  const auto value = [&](const float* row, int c) {
    return kTail && c == C - 1 ? load16f(row + c * 16, tail) : load16f(row + c * 16);
  };
  const auto single = [&](F16(&row_acc)[C], int r, int64_t j) {
    const float* x = rows[j / 16] + j % 16 * stride + column;
    const F16 w = fill16(weights[((j / 16 - tile.block0) * R + r) * 16 + j % 16]);
    QD_UNROLL_ALL for (int c = 0; c < C; ++c) row_acc[c] = fma(w, value(x, c), row_acc[c]);
  };
  const int64_t from = tile.begin[R - 1];
  const int64_t to = tile.end[0];
  if (R > 1 && from > tile.begin[0]) {
    QD_UNROLL_ALL for (int r = 0; r < R; ++r) {
      const int64_t stop = tile.end[r] < from ? tile.end[r] : from;
      for (int64_t j = tile.begin[r]; j < stop; ++j) single(acc[r], r, j);
    }
  }
  for (int64_t b = from / 16; b * 16 < to; ++b) {
    const float* x = rows[b] + column;
    const float* w = weights + (b - tile.block0) * R * 16;
    const int64_t j0 = from > b * 16 ? from - b * 16 : 0;
    const int64_t j1 = to - b * 16 < 16 ? to - b * 16 : 16;
    for (int64_t j = j0; j < j1; ++j) {
      F16 v[C];
      QD_UNROLL_ALL for (int c = 0; c < C; ++c) v[c] = value(x + j * stride, c);
      QD_UNROLL_ALL for (int r = 0; r < R; ++r) {
        const F16 p = fill16(w[r * 16 + j]);
        QD_UNROLL_ALL for (int c = 0; c < C; ++c) acc[r][c] = fma(p, v[c], acc[r][c]);
      }
    }
  }
  if (R > 1 && tile.end[R - 1] > to) {
    QD_UNROLL_ALL for (int r = 0; r < R; ++r) {
      for (int64_t j = from > to ? from : to; j < tile.end[r]; ++j) single(acc[r], r, j);
    }
  }
  QD_UNROLL_ALL for (int r = 0; r < R; ++r) {
    const F16 scale = fill16(factor[r]);
    QD_UNROLL_ALL for (int c = 0; c < C; ++c) {
      float* to_column = out[r] + column + c * 16;
      const F16 y = acc[r][c] * scale;
      if (kTail && c == C - 1) {
        store16f(to_column, y, tail);
      } else {
        store16f(to_column, y);
      }
    }
  }
}

template <int R>
void all_weighted_sums(const Tile<R>& tile, const float* weights, const float* const* rows,
                       int64_t stride, int64_t dim, const float* factor, float* const* out) {
  // Few rows: more columns at once, or the chains of multiply-adds would wait for each other.
  constexpr int kWide = Vec::kWidth == 4 || R > 2 ? kColumns : kColumns == 2 || R == 1 ? 4 : 2;
  int64_t column = 0;
  if constexpr (kWide > kColumns) {
    for (; column + 16 * kWide <= dim; column += 16 * kWide) {
      weighted_sums<R, kWide, false>(tile, weights, rows, stride, column, 16, factor, out);
    }
  }
  for (; column + 16 * kColumns <= dim; column += 16 * kColumns) {
    weighted_sums<R, kColumns, false>(tile, weights, rows, stride, column, 16, factor, out);
  }
  for (; column < dim; column += 16) {
    weighted_sums<R, 1, true>(tile, weights, rows, stride, column,
                              dim - column < 16 ? dim - column : 16, factor, out);
  }
}

template <int R>
__attribute__((noinline)) void attend_tile(const AttendTask& t, int64_t row0) {
  const Tile<R> tile(t, row0);
  const float* q[R];
  float* out[R];
  for (int r = 0; r < R; ++r) {
    q[r] = t.q + tile.token[r] * t.q_token + tile.head[r] * t.key_dim;
    out[r] = t.out + tile.token[r] * t.out_token + tile.head[r] * t.value_dim;
  }
  F16 best[R];
  QD_UNROLL_ALL for (int r = 0; r < R; ++r) best[r] = fill16(-__builtin_inff());
  float* scores = t.scratch;
  constexpr int kBlocks = kTileRows / R < 1 ? 1 : kTileRows / R > 4 ? 4 : kTileRows / R;
  const int64_t even = tile.block0 + (tile.block1 - tile.block0) / kBlocks * kBlocks;
  score_blocks<R, kBlocks>(t, tile, q, tile.block0, even, best, scores);
  if (kBlocks > 1) score_blocks<R, 1>(t, tile, q, even, tile.block1, best, scores);

  float factor[R];
  const int64_t blocks = tile.block1 - tile.block0;
  QD_UNROLL_ALL for (int r = 0; r < R; ++r) {
    const float top = largest(best[r]);
    const F16 top16 = fill16(top);
    F16 total = fill16(0.0F);
    for (int64_t b = 0; b < blocks; ++b) {
      float* at = scores + (b * R + r) * 16;
      const F16 p = exp(load16f(at) - top16);
      total = total + p;
      store16f(at, p);
    }
    factor[r] = 1.0F / sum(total);
    if (t.stats != nullptr) {
      float* stats = t.stats + tile.token[r] * t.stats_token + tile.head[r] * 2;
      stats[0] = top;
      stats[1] = factor[r];
    }
  }
  all_weighted_sums<R>(tile, scores, t.values, t.value_row, t.value_dim, factor, out);
}

// rows[j] += sum over r of weights[j][r] * a[r], one chain over ascending r, for C vectors of
// columns.
template <int R, int C, bool kTail>
__attribute__((noinline)) void outer_sums(const Tile<R>& tile, const float* weights,
                                          const float* const* a, int64_t column, int64_t tail,
                                          float* rows, int64_t stride) {
  F16 v[R][C];
  QD_UNROLL_ALL for (int r = 0; r < R; ++r) {
    QD_UNROLL_ALL for (int c = 0; c < C; ++c) {
      v[r][c] = kTail ? load16f(a[r] + column + c * 16, tail) : load16f(a[r] + column + c * 16);
    }
  }
  const int64_t last = tile.end[R - 1];
  for (int64_t b = tile.block0; b < tile.block1; ++b) {
    const float* w = weights + (b - tile.block0) * R * 16;
    const int64_t count = last - b * 16 < 16 ? last - b * 16 : 16;
    for (int64_t j = 0; j < count; ++j) {
      float* row = rows + (b * 16 + j) * stride + column;
      F16 acc[C];
      QD_UNROLL_ALL for (int c = 0; c < C; ++c) acc[c] =
          kTail ? load16f(row + c * 16, tail) : load16f(row + c * 16);
      QD_UNROLL_ALL for (int r = 0; r < R; ++r) {
        const F16 p = fill16(w[r * 16 + j]);
        QD_UNROLL_ALL for (int c = 0; c < C; ++c) acc[c] = fma(p, v[r][c], acc[c]);
      }
      QD_UNROLL_ALL for (int c = 0; c < C; ++c) {
        if (kTail) {
          store16f(row + c * 16, acc[c], tail);
        } else {
          store16f(row + c * 16, acc[c]);
        }
      }
    }
  }
}

template <int R>
void all_outer_sums(const Tile<R>& tile, const float* weights, const float* const* a, int64_t dim,
                    float* rows, int64_t stride) {
  int64_t column = 0;
  for (; column + 16 * kColumns <= dim; column += 16 * kColumns) {
    outer_sums<R, kColumns, false>(tile, weights, a, column, 16, rows, stride);
  }
  for (; column < dim; column += 16) {
    outer_sums<R, 1, true>(tile, weights, a, column, dim - column < 16 ? dim - column : 16, rows,
                           stride);
  }
}

// FlashAttention-2's backward, one tile: P again from the scores, then
//   dV += P^T dO,  dS = P * (dO V^T - rowsum(dO * O)) * scale,  dK += dS^T Q,  dQ = dS K.
template <int R>
__attribute__((noinline)) void attend_backward_tile(const AttendBackwardTask& task, int64_t row0) {
  const AttendTask& t = task.forward;
  const Tile<R> tile(t, row0);
  const float* q[R];
  const float* dout[R];
  float* dq[R];
  F16 top[R];
  F16 factor[R];
  F16 delta[R];
  float one[R];
  for (int r = 0; r < R; ++r) {
    const int64_t q_at = tile.token[r] * t.q_token + tile.head[r] * t.key_dim;
    const int64_t out_at = tile.token[r] * t.out_token + tile.head[r] * t.value_dim;
    q[r] = t.q + q_at;
    dq[r] = task.dq + q_at;
    dout[r] = task.dout + out_at;
    const float* out = t.out + out_at;
    F16 dot = fill16(0.0F);
    int64_t i = 0;
    for (; i + 16 <= t.value_dim; i += 16) dot = fma(load16f(dout[r] + i), load16f(out + i), dot);
    if (i < t.value_dim) {
      dot = fma(load16f(dout[r] + i, t.value_dim - i), load16f(out + i, t.value_dim - i), dot);
    }
    delta[r] = fill16(sum(dot));
    const float* stats = t.stats + tile.token[r] * t.stats_token + tile.head[r] * 2;
    top[r] = fill16(stats[0]);
    factor[r] = fill16(stats[1]);
    one[r] = 1.0F;
  }
  float* p = t.scratch;
  float* ds = t.scratch + (tile.block1 - tile.block0) * R * 16;
  for (int64_t b = tile.block0; b < tile.block1; ++b) {
    float* p_at = p + (b - tile.block0) * R * 16;
    float* ds_at = ds + (b - tile.block0) * R * 16;
    const bool whole = (b + 1) * 16 <= tile.end[0] && b * 16 >= tile.begin[R - 1];
    F16 acc[R][1];
    dots<R, 1>(q, t.keys + b, t.key_dim, acc);
    QD_UNROLL_ALL for (int r = 0; r < R; ++r) {
      F16 s = acc[r][0] * fill16(t.scale);
      if (!whole) s = hide(s, b, tile.begin[r], tile.end[r]);
      store16f(p_at + r * 16, exp(s - top[r]) * factor[r]);
    }
    dots<R, 1>(dout, task.values_transposed + b, t.value_dim, acc);
    QD_UNROLL_ALL for (int r = 0; r < R; ++r) {
      store16f(ds_at + r * 16, load16f(p_at + r * 16) * (acc[r][0] - delta[r]) * fill16(t.scale));
    }
  }
  all_outer_sums<R>(tile, p, dout, t.value_dim, task.dv, t.value_row);
  all_outer_sums<R>(tile, ds, q, t.key_dim, task.dk, task.key_row);
  all_weighted_sums<R>(tile, ds, task.key_rows, task.key_row, t.key_dim, one, dq);
}

template <int R>
struct Forward {
  static void run(const AttendTask& task, int64_t row) { attend_tile<R>(task, row); }
};
template <int R>
struct Backward {
  static void run(const AttendBackwardTask& task, int64_t row) {
    attend_backward_tile<R>(task, row);
  }
};
// The last rows, fewer than a whole tile.
template <template <int> class Run, class Task, int R>
void rest(const Task& task, int64_t row, int64_t count) {
  if constexpr (R > 0) {
    if (count == R) return Run<R>::run(task, row);
    rest<Run, Task, R - 1>(task, row, count);
  }
}
template <template <int> class Run, class Task>
void by_tiles(const Task& task, int64_t rows) {
  int64_t row = 0;
  for (; row + kTileRows <= rows; row += kTileRows) Run<kTileRows>::run(task, row);
  rest<Run, Task, kTileRows - 1>(task, row, rows - row);
}

void attend(const AttendTask& task) {
  by_tiles<Forward>(task, task.queries * task.group);
}
void attend_backward(const AttendBackwardTask& task) {
  by_tiles<Backward>(task, task.forward.queries * task.forward.group);
}

void pack_blocks(const float* rows, int64_t stride, int64_t count, int64_t dim, float* blocks) {
  for (int64_t row = 0; row < count; row += 16) {
    float* block = blocks + row * dim;
    for (int64_t i = 0; i < dim; i += 16) {
      transpose16(rows + row * stride + i, stride, count - row, dim - i < 16 ? dim - i : 16,
                  block + i * 16);
    }
  }
}

constexpr AttentionKernels kKernels = {kTileRows, &attend, &attend_backward, &pack_blocks};

}  // namespace
}  // namespace quadrille::tensor::cpu
