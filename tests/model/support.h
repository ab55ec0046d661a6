// Shared by the tests of the model room: temporary folders, golden cases, scoring, and a small
// paged decoder.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/rng.h"
#include "model/checkpoint_io.h"
#include "model/tiny.h"
#include "tensor/ops.h"

namespace quadrille::model::testing {

class TempFolder {
 public:
  TempFolder() {
    static int count = 0;
    path_ = std::filesystem::temp_directory_path() /
            fmt::format("quadrille-test-{}-{}", ::getpid(), count++);
    std::filesystem::create_directories(path_);
  }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

inline std::filesystem::path goldens() {
  return std::filesystem::path(QD_SOURCE_DIR) / "tests/goldens";
}

inline std::vector<std::string> golden_cases() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(goldens() / "parity")) {
    if (entry.is_directory()) names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

inline nlohmann::json read_json(const std::filesystem::path& path) {
  return nlohmann::json::parse(read_file(path));
}

inline void write_text(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

// The message of the error that `action` throws; empty if it throws none.
template <class Failure, class Action>
std::string error_of(const Action& action) {
  try {
    action();
  } catch (const Failure& error) {
    return error.what();
  }
  return "";
}
#define EXPECT_CONTAINS(text, part) \
  EXPECT_NE(std::string(text).find(part), std::string::npos) << "in: " << (text)

inline bool same_bits(const at::Tensor& a_in, const at::Tensor& b_in) {
  const at::Tensor a = a_in.detach().contiguous();
  const at::Tensor b = b_in.detach().contiguous();
  return a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type() &&
         (a.nbytes() == 0 || std::memcmp(a.data_ptr(), b.data_ptr(), a.nbytes()) == 0);
}

// NaN counts as infinite.
inline double largest_difference(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes()) return INFINITY;
  const at::Tensor x = a.detach().to(at::kDouble).contiguous();
  const at::Tensor y = b.detach().to(at::kDouble).contiguous();
  double worst = 0;
  for (int64_t i = 0; i < x.numel(); ++i) {
    const double difference =
        std::abs(x.const_data_ptr<double>()[i] - y.const_data_ptr<double>()[i]);
    if (!(difference <= worst)) worst = std::isnan(difference) ? INFINITY : difference;
  }
  return worst;
}

inline std::vector<std::vector<int32_t>> random_sequences(const std::vector<int64_t>& lengths,
                                                          int64_t vocab, uint64_t seed) {
  Rng rng(seed);
  std::vector<std::vector<int32_t>> sequences;
  for (const int64_t length : lengths) {
    auto& sequence = sequences.emplace_back();
    for (int64_t i = 0; i < length; ++i) {
      sequence.push_back(static_cast<int32_t>(rng.below(static_cast<uint64_t>(vocab))));
    }
  }
  return sequences;
}

inline at::Tensor ints(const std::vector<int64_t>& values) {
  return at::from_blob(const_cast<int64_t*>(values.data()), {static_cast<int64_t>(values.size())},
                       at::TensorOptions().dtype(at::kLong))
      .clone();
}

// Rows that predict a token and the tokens they predict, for whole packed sequences.
struct Targets {
  at::Tensor rows_N;
  at::Tensor tokens_N;
};
inline Targets next_tokens(const std::vector<std::vector<int32_t>>& sequences) {
  std::vector<int64_t> rows;
  std::vector<int64_t> tokens;
  int64_t row = 0;
  for (const auto& sequence : sequences) {
    for (size_t i = 0; i < sequence.size(); ++i, ++row) {
      if (i + 1 == sequence.size()) continue;
      rows.push_back(row);
      tokens.push_back(sequence[i + 1]);
    }
  }
  return {ints(rows), ints(tokens)};
}

// Mean negative log-likelihood of all predicted tokens; a graph where gradients are enabled.
inline at::Tensor mean_loss(const Transformer& model,
                            const std::vector<std::vector<int32_t>>& sequences,
                            ForwardExtras* extras = nullptr) {
  const Batch batch = pack_sequences(sequences, at::kCPU);
  const Targets targets = next_tokens(sequences);
  const at::Tensor hidden = model.forward(batch, extras).index_select(0, targets.rows_N);
  return tensor::token_logprobs(hidden, model.head(), targets.tokens_N, 1.0, false)
      .logprobs_N.mean()
      .neg();
}

// Sequences in a paged cache, each with its own pages in an order that is not the natural one.
class PagedRun {
 public:
  PagedRun(const Transformer& model, int64_t sequences, int64_t max_length)
      : model_(model), pages_each_((max_length + tensor::kPageTokens - 1) / tensor::kPageTokens) {
    cache_ =
        tensor::make_kv_cache(model.kv_shape(), sequences * pages_each_, model.dtype(), at::kCPU);
    length_.assign(static_cast<size_t>(sequences), 0);
  }

  // Feeds tokens to the sequences `which`; returns the hidden rows of all of them, packed.
  at::Tensor feed(const std::vector<size_t>& which,
                  const std::vector<std::vector<int32_t>>& tokens) {
    at::NoGradGuard no_grad;
    Batch batch = pack_sequences(tokens, at::kCPU);
    std::vector<int64_t> positions;
    std::vector<int64_t> slots;
    PagedContext paged;
    paged.cache = &cache_;
    const auto count = static_cast<int64_t>(which.size());
    paged.block_table_SP = at::full({count, pages_each_}, -1, at::TensorOptions().dtype(at::kInt));
    paged.context_len_S = at::full({count}, 0, at::TensorOptions().dtype(at::kInt));
    for (int64_t i = 0; i < count; ++i) {
      const size_t s = which[static_cast<size_t>(i)];
      for (size_t t = 0; t < tokens[static_cast<size_t>(i)].size(); ++t) {
        const int64_t position = length_[s]++;
        positions.push_back(position);
        slots.push_back(page(s, position / tensor::kPageTokens) * tensor::kPageTokens +
                        position % tensor::kPageTokens);
      }
      for (int64_t p = 0; p < pages_each_; ++p) {
        paged.block_table_SP.mutable_data_ptr<int32_t>()[i * pages_each_ + p] =
            static_cast<int32_t>(page(s, p));
      }
      paged.context_len_S.mutable_data_ptr<int32_t>()[i] = static_cast<int32_t>(length_[s]);
    }
    batch.positions_T = ints(positions);
    paged.slots_T = ints(slots);
    batch.paged = &paged;
    return model_.forward(batch);
  }

 private:
  // Pages of all sequences interleaved, last first.
  int64_t page(size_t sequence, int64_t index) const {
    return (pages_each_ - 1 - index) * static_cast<int64_t>(length_.size()) +
           static_cast<int64_t>(sequence);
  }

  const Transformer& model_;
  int64_t pages_each_;
  tensor::KvCache cache_;
  std::vector<int64_t> length_;
};

}  // namespace quadrille::model::testing
