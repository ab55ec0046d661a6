// Cuts attention into work items (sequence, kv head, some of its queries) and lends each thread its
// scratch.
#include "tensor/cpu/attention.h"

#include <algorithm>
#include <type_traits>
#include <vector>

#include "tensor/cpu/attention_kernels.h"
#include "tensor/cpu/dispatch.h"
#include "tensor/cpu/parallel.h"
#include "tensor/cpu/scratch.h"

namespace quadrille::tensor::cpu {
namespace {

// Queries of one item. Packed keys are transposed anew for every item, which this many queries
// hide.
constexpr int64_t kItemQueries = 256;

const AttentionKernels& kernels() {
  return best_kernels(&generic_attention_kernels, &avx2_attention_kernels,
                      &avx512_attention_kernels);
}

int64_t blocks_of(int64_t keys) {
  return (keys + kBlockKeys - 1) / kBlockKeys;
}

struct Item {
  int32_t sequence;
  int32_t kv_head;
  int64_t first;  // Query, within the call's queries of this sequence.
  int64_t count;
};
struct Work {
  std::vector<Item> items;
  double cycles = 0;  // A guess, for the choice of threads.
};

// `context` positions of each sequence end in its queries.
template <class Context>
Work cut(const AttentionShape& shape, const int32_t* cu, int64_t sequences, int64_t item_queries,
         Context context) {
  Work work;
  work.items.reserve(sequences * shape.kv_heads);
  for (int64_t s = 0; s < sequences; ++s) {
    const int64_t queries = cu[s + 1] - cu[s];
    for (int64_t first = 0; first < queries; first += item_queries) {
      const int64_t count = std::min(item_queries, queries - first);
      for (int64_t g = 0; g < shape.kv_heads; ++g) {
        work.items.push_back({static_cast<int32_t>(s), static_cast<int32_t>(g), first, count});
      }
    }
    double keys = static_cast<double>(context(s)) - static_cast<double>(queries) / 2;
    if (shape.window > 0) keys = std::min(keys, static_cast<double>(shape.window));
    work.cycles +=
        keys * static_cast<double>(queries * shape.heads * (shape.key_dim + shape.value_dim)) / 16 +
        500;
  }
  return work;
}

// What a thread needs for one item.
struct Memory {
  Scratch floats;
  std::vector<const float*> keys;
  std::vector<const float*> values;
  std::vector<const float*> values_transposed;
  std::vector<const float*> key_rows;
};
Memory& memory() {
  thread_local Memory mine;
  return mine;
}

int64_t first_block(const AttentionShape& shape, int64_t position) {
  return shape.window > 0 ? std::max<int64_t>(0, position + 1 - shape.window) / kBlockKeys : 0;
}

AttendTask task_of(const AttentionShape& shape) {
  AttendTask task;
  task.group = shape.heads / shape.kv_heads;
  task.key_dim = shape.key_dim;
  task.value_dim = shape.value_dim;
  task.scale = shape.scale;
  task.window = shape.window;
  task.q_token = shape.heads * shape.key_dim;
  task.out_token = shape.heads * shape.value_dim;
  task.stats_token = shape.heads * 2;
  return task;
}

// Pages as floats. A bf16 page is widened in its own layout.
template <class T>
const float* widen(const T* page, int64_t count, float* room) {
  if constexpr (std::is_same_v<T, float>) {
    return page;
  } else {
    for (int64_t i = 0; i < count; ++i) room[i] = to_float(page[i]);
    return room;
  }
}

}  // namespace

void attention_packed_forward(const AttentionShape& shape, const float* q, const float* k,
                              const float* v, const int32_t* cu, int64_t sequences, float* out,
                              float* stats) {
  const Work work =
      cut(shape, cu, sequences, kItemQueries, [&](int64_t s) { return cu[s + 1] - cu[s]; });
  const int64_t d = shape.key_dim;
  const int64_t e = shape.value_dim;
  const int64_t kv_heads = shape.kv_heads;
  for_items(static_cast<int64_t>(work.items.size()), work.cycles, [&](int64_t i) {
    const Item& item = work.items[i];
    const int64_t start = cu[item.sequence];
    const int64_t length = item.first + item.count;  // Later keys are hidden from these queries.
    const int64_t blocks = blocks_of(length);
    const int64_t skip = first_block(shape, item.first);
    AttendTask task = task_of(shape);
    Memory& mine = memory();
    float* room = mine.floats.take(blocks * kBlockKeys * d + kernels().scratch(blocks));
    task.scratch = room + blocks * kBlockKeys * d;
    kernels().pack_blocks(k + ((start + skip * kBlockKeys) * kv_heads + item.kv_head) * d,
                          kv_heads * d, length - skip * kBlockKeys, d,
                          room + skip * kBlockKeys * d);
    mine.keys.resize(blocks);
    mine.values.resize(blocks);
    for (int64_t b = 0; b < blocks; ++b) {
      mine.keys[b] = room + b * kBlockKeys * d;
      mine.values[b] = v + ((start + b * kBlockKeys) * kv_heads + item.kv_head) * e;
    }
    const int64_t row = start + item.first;
    const int64_t head = item.kv_head * task.group;
    task.queries = item.count;
    task.first_position = item.first;
    task.q = q + (row * shape.heads + head) * d;
    task.keys = mine.keys.data();
    task.values = mine.values.data();
    task.value_row = kv_heads * e;
    task.out = out + (row * shape.heads + head) * e;
    task.stats = stats == nullptr ? nullptr : stats + (row * shape.heads + head) * 2;
    kernels().attend(task);
  });
}

void attention_packed_backward(const AttentionShape& shape, const float* q, const float* k,
                               const float* v, const float* out, const float* stats,
                               const float* dout, const int32_t* cu, int64_t sequences, float* dq,
                               float* dk, float* dv) {
  // One item holds all queries that a kv head's keys meet, so nobody else adds to its dk and dv.
  const Work work =
      cut(shape, cu, sequences, INT64_MAX, [&](int64_t s) { return cu[s + 1] - cu[s]; });
  const int64_t d = shape.key_dim;
  const int64_t e = shape.value_dim;
  const int64_t kv_heads = shape.kv_heads;
  for_items(static_cast<int64_t>(work.items.size()), 2.5 * work.cycles, [&](int64_t i) {
    const Item& item = work.items[i];
    const int64_t start = cu[item.sequence];
    const int64_t blocks = blocks_of(item.count);
    AttendBackwardTask task;
    AttendTask& forward = task.forward;
    forward = task_of(shape);
    Memory& mine = memory();
    float* keys_t = mine.floats.take(blocks * kBlockKeys * (d + e) + kernels().scratch(blocks));
    float* values_t = keys_t + blocks * kBlockKeys * d;
    forward.scratch = values_t + blocks * kBlockKeys * e;
    const int64_t k_at = (start * kv_heads + item.kv_head) * d;
    const int64_t v_at = (start * kv_heads + item.kv_head) * e;
    kernels().pack_blocks(k + k_at, kv_heads * d, item.count, d, keys_t);
    kernels().pack_blocks(v + v_at, kv_heads * e, item.count, e, values_t);
    mine.keys.resize(blocks);
    mine.values_transposed.resize(blocks);
    mine.key_rows.resize(blocks);
    for (int64_t b = 0; b < blocks; ++b) {
      mine.keys[b] = keys_t + b * kBlockKeys * d;
      mine.values_transposed[b] = values_t + b * kBlockKeys * e;
      mine.key_rows[b] = k + k_at + b * kBlockKeys * kv_heads * d;
    }
    for (int64_t t = 0; t < item.count; ++t) {
      std::fill_n(dk + k_at + t * kv_heads * d, d, 0.0F);
      std::fill_n(dv + v_at + t * kv_heads * e, e, 0.0F);
    }
    const int64_t head = start * shape.heads + item.kv_head * forward.group;
    forward.queries = item.count;
    forward.q = q + head * d;
    forward.keys = mine.keys.data();
    forward.value_row = kv_heads * e;
    forward.out = const_cast<float*>(out) + head * e;  // Read only, in this direction.
    forward.stats = const_cast<float*>(stats) + head * 2;
    task.values_transposed = mine.values_transposed.data();
    task.key_rows = mine.key_rows.data();
    task.key_row = kv_heads * d;
    task.dout = dout + head * e;
    task.dq = dq + head * d;
    task.dk = dk + k_at;
    task.dv = dv + v_at;
    kernels().attend_backward(task);
  });
}

template <class T>
void attention_paged(const AttentionShape& shape, const float* q, const T* keys, const T* values,
                     const int32_t* cu_queries, const int32_t* block_table, int64_t table_width,
                     const int32_t* context_len, int64_t sequences, float* out) {
  const Work work =
      cut(shape, cu_queries, sequences, kItemQueries, [&](int64_t s) { return context_len[s]; });
  const int64_t d = shape.key_dim;
  const int64_t e = shape.value_dim;
  constexpr bool kWiden = !std::is_same_v<T, float>;
  for_items(static_cast<int64_t>(work.items.size()), work.cycles, [&](int64_t i) {
    const Item& item = work.items[i];
    const int64_t s = item.sequence;
    const int64_t queries = cu_queries[s + 1] - cu_queries[s];
    const int64_t position = context_len[s] - queries + item.first;
    const int64_t blocks = blocks_of(position + item.count);
    AttendTask task = task_of(shape);
    Memory& mine = memory();
    task.scratch =
        mine.floats.take(kernels().scratch(blocks) + (kWiden ? blocks * kBlockKeys * (d + e) : 0));
    float* room = task.scratch + kernels().scratch(blocks);
    mine.keys.resize(blocks);
    mine.values.resize(blocks);
    for (int64_t b = first_block(shape, position); b < blocks; ++b) {
      const int64_t page =
          static_cast<int64_t>(block_table[s * table_width + b]) * shape.kv_heads + item.kv_head;
      float* at = room + b * kBlockKeys * (d + e);
      mine.keys[b] = widen(keys + page * d * kBlockKeys, d * kBlockKeys, at);
      mine.values[b] = widen(values + page * e * kBlockKeys, e * kBlockKeys, at + d * kBlockKeys);
    }
    const int64_t row = cu_queries[s] + item.first;
    const int64_t head = item.kv_head * task.group;
    task.queries = item.count;
    task.first_position = position;
    task.q = q + (row * shape.heads + head) * d;
    task.keys = mine.keys.data();
    task.values = mine.values.data();
    task.value_row = e;
    task.out = out + (row * shape.heads + head) * e;
    kernels().attend(task);
  });
}

template <class T>
void kv_write(const AttentionShape& shape, const T* k, const T* v, const int64_t* slots,
              int64_t tokens, T* keys, T* values) {
  const int64_t d = shape.key_dim;
  const int64_t e = shape.value_dim;
  // A key's numbers go to as many cache lines, most of them cold.
  const auto cycles = static_cast<double>(tokens * shape.kv_heads * (6 * d + e));
  for_ranges(tokens, cycles, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const int64_t page = slots[t] / kBlockKeys;
      const int64_t offset = slots[t] % kBlockKeys;
      for (int64_t g = 0; g < shape.kv_heads; ++g) {
        const T* key = k + (t * shape.kv_heads + g) * d;
        const T* value = v + (t * shape.kv_heads + g) * e;
        T* to = keys + (page * shape.kv_heads + g) * d * kBlockKeys + offset;
        for (int64_t i = 0; i < d; ++i) to[i * kBlockKeys] = key[i];
        std::copy_n(value, e, values + ((page * shape.kv_heads + g) * kBlockKeys + offset) * e);
      }
    }
  });
}

#define QD_INSTANTIATE(T)                                                                       \
  template void attention_paged<T>(const AttentionShape&, const float*, const T*, const T*,     \
                                   const int32_t*, const int32_t*, int64_t, const int32_t*,     \
                                   int64_t, float*);                                            \
  template void kv_write<T>(const AttentionShape&, const T*, const T*, const int64_t*, int64_t, \
                            T*, T*);
QD_INSTANTIATE(float)
QD_INSTANTIATE(Bf16)
#undef QD_INSTANTIATE

}  // namespace quadrille::tensor::cpu
