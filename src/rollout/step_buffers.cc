#include "rollout/step_buffers.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace quadrille::rollout {

using tensor::kPageTokens;

struct StepBuffers::Host {
  int64_t *tokens, *positions, *slots, *rows, *repeat, *counter, *seed, *into, *from;
  float *temperature, *top_p, *min_p;
  int32_t *top_k, *cu_seqlens, *context_len, *block_table;
};

namespace {

constexpr int64_t kAlign = 64;

// Hands out pieces of the block in a fixed order; without a block it only adds up their sizes.
class Cutter {
 public:
  Cutter(char* host, char* block, at::Device device)
      : host_(host), block_(block), device_(device) {}

  template <class T>
  T* cut(at::IntArrayRef shape, at::Tensor& view) {
    int64_t bytes = static_cast<int64_t>(sizeof(T));
    for (const int64_t size : shape) bytes *= size;
    T* at = reinterpret_cast<T*>(host_ + used_);
    if (block_ != nullptr) {
      view = at::from_blob(
          block_ + used_, shape,
          at::TensorOptions().dtype(c10::CppTypeToScalarType<T>::value).device(device_));
    }
    used_ += (bytes + kAlign - 1) / kAlign * kAlign;
    return at;
  }
  int64_t used() const { return used_; }

 private:
  char* host_;
  char* block_;
  at::Device device_;
  int64_t used_ = 0;
};

}  // namespace

StepBuffers::Host StepBuffers::lay_out(const Sizes& sizes) {
  const auto cut_all = [&](Cutter& cutter, StepBuffers& b) {
    Host h{};
    h.tokens = cutter.cut<int64_t>({sizes.tokens}, b.batch.tokens_T);
    h.positions = cutter.cut<int64_t>({sizes.tokens}, b.batch.positions_T);
    h.slots = cutter.cut<int64_t>({sizes.tokens}, b.paged_.slots_T);
    h.rows = cutter.cut<int64_t>({sizes.rows}, b.rows_U);
    h.repeat = cutter.cut<int64_t>({sizes.draws}, b.repeat_B);
    h.counter = cutter.cut<int64_t>({sizes.draws}, b.params.counter_B);
    h.seed = cutter.cut<int64_t>({sizes.draws}, b.params.seed_B);
    h.into = cutter.cut<int64_t>({sizes.unknown}, b.into_N);
    h.from = cutter.cut<int64_t>({sizes.unknown}, b.from_N);
    h.temperature = cutter.cut<float>({sizes.draws}, b.params.temperature_B);
    h.top_p = cutter.cut<float>({sizes.draws}, b.params.top_p_B);
    h.min_p = cutter.cut<float>({sizes.draws}, b.params.min_p_B);
    h.top_k = cutter.cut<int32_t>({sizes.draws}, b.params.top_k_B);
    h.cu_seqlens = cutter.cut<int32_t>({sizes.sequences + 1}, b.batch.cu_seqlens_S1);
    h.context_len = cutter.cut<int32_t>({sizes.sequences}, b.paged_.context_len_S);
    h.block_table =
        cutter.cut<int32_t>({sizes.sequences, sizes.table_width}, b.paged_.block_table_SP);
    return h;
  };
  if (laid_out_ && sizes == sizes_) {
    // Same offsets, same tensors: only the host's pointers are wanted.
    Cutter pointers(static_cast<char*>(host_.data_ptr()), nullptr, device_);
    return cut_all(pointers, *this);
  }
  Cutter measure(nullptr, nullptr, device_);
  cut_all(measure, *this);
  if (!host_.defined() || host_.numel() < measure.used()) {
    const auto bytes = at::TensorOptions().dtype(at::kByte);
    const int64_t room = measure.used() * 2;
    const bool on_host = device_.is_cpu();
    host_ = at::empty({room}, on_host ? bytes : bytes.pinned_memory(true));
    block_ = on_host ? host_ : at::empty({room}, bytes.device(device_));
  }
  bytes_ = measure.used();
  sizes_ = sizes;
  laid_out_ = true;
  Cutter cutter(static_cast<char*>(host_.data_ptr()), static_cast<char*>(block_.data_ptr()),
                device_);
  return cut_all(cutter, *this);
}

void StepBuffers::build(const StepPlan& plan, const std::vector<int64_t>& draw_rows,
                        const std::vector<Draw>& draws, tensor::KvCache* cache) {
  size_t widest = 1;
  into_.clear();
  from_.clear();
  int64_t row = 0;
  for (const Chunk& chunk : plan.chunks) {
    widest = std::max(widest, chunk.sequence->pages.size());
    row += chunk.count;
    if (chunk.draws && chunk.sequence->unread > 0) {
      into_.push_back(row - 1);
      from_.push_back(chunk.sequence->drawn_row);
    }
  }
  Sizes sizes;
  sizes.tokens = plan.tokens;
  sizes.sequences = static_cast<int64_t>(plan.chunks.size());
  sizes.table_width =
      (static_cast<int64_t>(widest) + 7) / 8 * 8;  // Changes rarely while sequences grow.
  sizes.rows = static_cast<int64_t>(draw_rows.size());
  sizes.draws = static_cast<int64_t>(draws.size());
  sizes.unknown = static_cast<int64_t>(into_.size());
  const Host host = lay_out(sizes);

  int64_t at = 0;
  int64_t longest = 0;
  int32_t* table = host.block_table;
  for (size_t s = 0; s < plan.chunks.size(); ++s) {
    const Chunk& chunk = plan.chunks[s];
    const Sequence& sequence = *chunk.sequence;
    const std::vector<int32_t>& prompt = sequence.group->request.prompt;
    const auto prompt_tokens = static_cast<int64_t>(prompt.size());
    const auto known = prompt_tokens + static_cast<int64_t>(sequence.tokens.size());
    host.cu_seqlens[s] = static_cast<int32_t>(at);
    host.context_len[s] = static_cast<int32_t>(chunk.begin + chunk.count);
    for (int64_t position = chunk.begin; position < chunk.begin + chunk.count; ++position, ++at) {
      int64_t token = 0;
      if (position < prompt_tokens) {
        token = prompt[static_cast<size_t>(position)];
      } else if (position < known) {
        token = sequence.tokens[static_cast<size_t>(position - prompt_tokens)];
      }
      host.tokens[at] = token;
      host.positions[at] = position;
      host.slots[at] = sequence.pages[static_cast<size_t>(position / kPageTokens)] * kPageTokens +
                       position % kPageTokens;
    }
    longest = std::max(longest, chunk.count);
    std::memcpy(table, sequence.pages.data(), sequence.pages.size() * sizeof(int32_t));
    std::fill(table + sequence.pages.size(), table + sizes.table_width, 0);
    table += sizes.table_width;
  }
  host.cu_seqlens[plan.chunks.size()] = static_cast<int32_t>(at);
  QD_CHECK(at == plan.tokens, "{} tokens in the chunks, {} planned", at, plan.tokens);

  std::copy(draw_rows.begin(), draw_rows.end(), host.rows);
  for (size_t b = 0; b < draws.size(); ++b) {
    const Sequence& sequence = *draws[b].sequence;
    const SamplingOptions& sampling = sequence.group->request.sampling;
    host.repeat[b] = draws[b].row;
    host.counter[b] = sequence.drawn();
    host.seed[b] = static_cast<int64_t>(sequence.seed);
    host.temperature[b] = static_cast<float>(sampling.temperature);
    host.top_p[b] = static_cast<float>(sampling.top_p);
    host.min_p[b] = static_cast<float>(sampling.min_p);
    host.top_k[b] = static_cast<int32_t>(sampling.top_k);
  }
  continues = static_cast<int64_t>(into_.size()) == plan.tokens;
  for (size_t n = 0; n < into_.size(); ++n) {
    continues = continues && from_[n] == static_cast<int64_t>(n);
    host.into[n] = into_[n];
    host.from[n] = from_[n];
  }
  batch.max_seqlen = longest;
  paged_.cache = cache;
  batch.paged = &paged_;
  if (!device_.is_cpu()) {
    block_.narrow(0, 0, bytes_).copy_(host_.narrow(0, 0, bytes_), /*non_blocking=*/true);
  }
}

}  // namespace quadrille::rollout
