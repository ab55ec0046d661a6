// A model whose every hidden state names the whole context it saw, so that a wrong page, a stale
// value or a lost token changes an answer; and the same model without engine, pages or batches, to
// compare with.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/rng.h"
#include "rollout/engine.h"

namespace quadrille::rollout {

inline constexpr int64_t kVocab = 40;
inline constexpr int64_t kLayers = 2, kTopK = 3, kExperts = 11;
inline constexpr int64_t kPageBytes = 1000;

inline uint64_t extend(uint64_t context, int32_t token) {
  return mix_seed(context, 1000 + static_cast<uint64_t>(token));
}

struct FakeDraw {
  int32_t token;
  float logprob, sampling_logprob, tempered_logprob;
};
inline FakeDraw fake_draw(uint64_t context, double temperature, uint64_t seed, int64_t counter) {
  const uint64_t luck = temperature == 0 ? 0 : mix_seed(seed, static_cast<uint64_t>(counter));
  const uint64_t bits = mix_seed(context, luck);
  return {static_cast<int32_t>(bits % kVocab), -uniform_open(static_cast<uint32_t>(bits >> 8)),
          -uniform_open(static_cast<uint32_t>(bits >> 16)),
          -uniform_open(static_cast<uint32_t>(bits >> 24))};
}
inline int32_t fake_route(uint64_t context, int64_t layer, int64_t k) {
  return static_cast<int32_t>(mix_seed(context, static_cast<uint64_t>(layer * 10 + k)) % kExperts);
}

class FakeRunner final : public Runner {
 public:
  explicit FakeRunner(int64_t max_positions = 0) : max_positions_(max_positions) {}

  RunnerShape shape() const override {
    return {kVocab, max_positions_, kLayers, kTopK, kPageBytes, at::kCPU};
  }
  void make_cache(int64_t pages) override {
    memory_.assign(static_cast<size_t>(pages * tensor::kPageTokens), {});
  }
  tensor::KvCache* cache() override { return &cache_; }

  void copy_pages(const at::Tensor& from_N, const at::Tensor& to_N) override {
    for (int64_t n = 0; n < from_N.numel(); ++n) {
      const int64_t from = from_N.const_data_ptr<int64_t>()[n],
                    to = to_N.const_data_ptr<int64_t>()[n];
      for (int64_t i = 0; i < tensor::kPageTokens; ++i) {
        memory_.at(static_cast<size_t>(to * tensor::kPageTokens + i)) =
            memory_.at(static_cast<size_t>(from * tensor::kPageTokens + i));
      }
    }
    copied_pages += from_N.numel();
  }

  at::Tensor forward(const model::Batch& batch, model::ForwardExtras* extras) override {
    ++steps;
    const int64_t tokens = batch.tokens_T.numel();
    const int64_t sequences = batch.paged->context_len_S.numel();
    largest_batch = std::max(largest_batch, tokens);
    most_sequences = std::max(most_sequences, sequences);
    const auto* token = batch.tokens_T.const_data_ptr<int64_t>();
    const auto* position = batch.positions_T.const_data_ptr<int64_t>();
    const auto* slot = batch.paged->slots_T.const_data_ptr<int64_t>();
    const auto* cu = batch.cu_seqlens_S1.const_data_ptr<int32_t>();
    const auto* context_len = batch.paged->context_len_S.const_data_ptr<int32_t>();
    const auto* table = batch.paged->block_table_SP.const_data_ptr<int32_t>();
    const int64_t width = batch.paged->block_table_SP.size(1);
    EXPECT_EQ(cu[sequences], tokens);
    // All writes before all reads, as kernels do, so that two sequences writing to one place are
    // found out.
    for (int64_t t = 0; t < tokens; ++t) {
      memory_.at(static_cast<size_t>(slot[t])) = {static_cast<int32_t>(token[t]), position[t],
                                                  weights};
    }
    at::Tensor hidden_TD = at::empty({tokens, 1}, at::kLong);
    auto* hidden = hidden_TD.mutable_data_ptr<int64_t>();
    int64_t longest = 0;
    for (int64_t s = 0; s < sequences; ++s) {
      const int64_t count = cu[s + 1] - cu[s];
      longest = std::max(longest, count);
      uint64_t context = weights;
      for (int64_t p = 0; p < context_len[s]; ++p) {
        const int32_t page = table[s * width + p / tensor::kPageTokens];
        const Cell& cell =
            memory_.at(static_cast<size_t>(page * tensor::kPageTokens + p % tensor::kPageTokens));
        EXPECT_EQ(cell.position, p) << "sequence " << s << " reads what is not there";
        EXPECT_EQ(cell.weights, weights) << "stale keys and values";
        context = extend(context, cell.token);
        const int64_t t = cu[s] + p - (context_len[s] - count);
        if (t < cu[s]) continue;
        EXPECT_EQ(position[t], p);
        hidden[t] = static_cast<int64_t>(context);
      }
    }
    EXPECT_EQ(batch.max_seqlen, longest);
    if (extras->want_routes) {
      for (int64_t layer = 0; layer < kLayers; ++layer) {
        at::Tensor routes_TK = at::empty({tokens, kTopK}, at::kInt);
        for (int64_t t = 0; t < tokens; ++t) {
          for (int64_t k = 0; k < kTopK; ++k) {
            routes_TK.mutable_data_ptr<int32_t>()[t * kTopK + k] =
                fake_route(static_cast<uint64_t>(hidden[t]), layer, k);
          }
        }
        extras->routes_TK.push_back(routes_TK);
      }
    }
    return hidden_TD;
  }

  at::Tensor logits(const at::Tensor& hidden_BD) override {
    logit_rows += hidden_BD.size(0);
    return hidden_BD;
  }

  tensor::Sampled sample(const at::Tensor& logits_BV,
                         const tensor::SamplingParams& params) override {
    const int64_t rows = logits_BV.size(0);
    EXPECT_EQ(params.seed_B.numel(), rows);
    tensor::Sampled sampled{at::empty({rows}, at::kLong), at::empty({rows}, at::kFloat),
                            at::empty({rows}, at::kFloat), at::empty({rows}, at::kFloat)};
    for (int64_t b = 0; b < rows; ++b) {
      const FakeDraw draw =
          fake_draw(static_cast<uint64_t>(logits_BV.const_data_ptr<int64_t>()[b]),
                    params.temperature_B.const_data_ptr<float>()[b],
                    static_cast<uint64_t>(params.seed_B.const_data_ptr<int64_t>()[b]),
                    params.counter_B.const_data_ptr<int64_t>()[b]);
      sampled.tokens_B.mutable_data_ptr<int64_t>()[b] = draw.token;
      sampled.logprobs_B.mutable_data_ptr<float>()[b] = draw.logprob;
      sampled.sampling_logprobs_B.mutable_data_ptr<float>()[b] = draw.sampling_logprob;
      sampled.tempered_logprobs_B.mutable_data_ptr<float>()[b] = draw.tempered_logprob;
    }
    return sampled;
  }

  uint64_t weights = 7;  // Another number, another model.
  int64_t steps = 0, largest_batch = 0, most_sequences = 0, copied_pages = 0, logit_rows = 0;

 private:
  struct Cell {
    int32_t token = -1;
    int64_t position = -1;
    uint64_t weights = 0;
  };
  int64_t max_positions_;
  tensor::KvCache cache_;
  std::vector<Cell> memory_;
};

// Token t is written as word t of a small list, so that stop strings can lie across tokens.
inline std::string fake_word(int32_t token) {
  static const char* const kWords[] = {"a", "b", "ab", "c", "", "ca", "bb", " "};
  return kWords[static_cast<size_t>(token) % 8];
}
class FakeText final : public TokenText {
 public:
  std::string push(int32_t token) override { return fake_word(token); }
  std::string finish() override { return ""; }
};
inline Engine::TextFactory fake_text() {
  return [] { return std::make_unique<FakeText>(); };
}

// The answer by definition: one token after the other.
inline Completion plain_answer(const Request& request, int64_t sample, uint64_t weights = 7) {
  Completion answer;
  answer.request_id = request.id;
  answer.sample = sample;
  answer.seed = mix_seed(request.sampling.seed, static_cast<uint64_t>(sample));
  answer.finish = FinishReason::kLength;
  uint64_t context = weights;
  std::vector<int32_t> routes;
  const auto see = [&](int32_t token) {
    context = extend(context, token);
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      for (int64_t k = 0; k < kTopK; ++k) routes.push_back(fake_route(context, layer, k));
    }
  };
  for (const int32_t token : request.prompt) see(token);
  while (static_cast<int64_t>(answer.tokens.size()) < request.max_new_tokens) {
    const FakeDraw draw = fake_draw(context, request.sampling.temperature, answer.seed,
                                    static_cast<int64_t>(answer.tokens.size()));
    answer.tokens.push_back(draw.token);
    answer.logprobs.push_back(draw.logprob);
    answer.sampling_logprobs.push_back(draw.sampling_logprob);
    answer.tempered_logprobs.push_back(draw.tempered_logprob);
    answer.text += fake_word(draw.token);
    size_t cut = std::string::npos;
    for (const std::string& stop : request.stop_strings)
      cut = std::min(cut, answer.text.find(stop));
    if (cut != std::string::npos) answer.text.resize(cut);
    const std::vector<int32_t>& ends = request.stop_tokens;
    if (std::find(ends.begin(), ends.end(), draw.token) != ends.end()) {
      answer.finish = FinishReason::kEos;
      break;
    }
    if (cut != std::string::npos) {
      answer.finish = FinishReason::kStopString;
      break;
    }
    if (static_cast<int64_t>(answer.tokens.size()) < request.max_new_tokens) see(draw.token);
  }
  if (request.record_routes) answer.routing = {kLayers, kTopK, routes};
  return answer;
}

inline void expect_same(const Completion& got, const Completion& want, const std::string& where) {
  EXPECT_EQ(got.request_id, want.request_id) << where;
  EXPECT_EQ(got.sample, want.sample) << where;
  EXPECT_EQ(got.seed, want.seed) << where;
  EXPECT_EQ(got.tokens, want.tokens) << where;
  EXPECT_EQ(got.logprobs, want.logprobs) << where;
  EXPECT_EQ(got.sampling_logprobs, want.sampling_logprobs) << where;
  EXPECT_EQ(got.tempered_logprobs, want.tempered_logprobs) << where;
  EXPECT_EQ(got.routing.ids, want.routing.ids) << where;
  EXPECT_EQ(got.finish, want.finish) << where;
  EXPECT_EQ(got.text, want.text) << where;
}

}  // namespace quadrille::rollout
