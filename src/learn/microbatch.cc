#include "learn/microbatch.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <numeric>

#include "base/error.h"

namespace quadrille::learn {
namespace {

at::Tensor to_device(const std::vector<int64_t>& values, at::Device device) {
  return at::from_blob(const_cast<int64_t*>(values.data()), {static_cast<int64_t>(values.size())},
                       at::kLong)
      .to(device, at::kLong, /*non_blocking=*/false, /*copy=*/true);
}

}  // namespace

Counts count(std::span<const TrainSequence* const> sequences) {
  Counts counts;
  for (const TrainSequence* sequence : sequences) {
    if (sequence->positions.empty()) continue;
    counts.trained_tokens += static_cast<double>(sequence->trained_tokens());
    counts.sequences += 1;
    counts.input_tokens += sequence->input_tokens();
  }
  return counts;
}

double token_weight(Aggregation aggregation, int64_t length, const Counts& counts,
                    int64_t norm_length) {
  const auto sequences = static_cast<double>(counts.sequences);
  switch (aggregation) {
    case Aggregation::kTokenMean:
      return 1 / counts.trained_tokens;
    case Aggregation::kSeqMeanTokenMean:
      return 1 / (sequences * static_cast<double>(length));
    case Aggregation::kSeqMeanTokenSum:
      return 1 / sequences;
    case Aggregation::kSeqMeanTokenSumNorm:
      return 1 / (sequences * static_cast<double>(norm_length));
  }
  return 0;
}

std::vector<std::vector<size_t>> pack_micro_batches(std::span<const TrainSequence* const> sequences,
                                                    int64_t budget) {
  QD_CHECK(budget >= 1, "budget {}", budget);
  std::vector<size_t> order;
  for (size_t i = 0; i < sequences.size(); ++i) {
    if (!sequences[i]->positions.empty()) order.push_back(i);
  }
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return sequences[a]->input_tokens() > sequences[b]->input_tokens();
  });
  struct Bin {
    int64_t used = 0;
    double temperature = 1;
    std::vector<size_t> members;
  };
  std::vector<Bin> bins;
  for (const size_t i : order) {
    const int64_t tokens = sequences[i]->input_tokens();
    auto bin = std::find_if(bins.begin(), bins.end(), [&](const Bin& b) {
      return b.temperature == sequences[i]->temperature && b.used + tokens <= budget;
    });
    if (bin == bins.end()) bin = bins.insert(bins.end(), Bin{0, sequences[i]->temperature, {}});
    bin->used += tokens;
    bin->members.push_back(i);
  }
  std::vector<std::vector<size_t>> out;
  for (Bin& bin : bins) {
    std::sort(bin.members.begin(), bin.members.end());
    out.push_back(std::move(bin.members));
  }
  return out;
}

PackedRows pack_rows(std::span<const TrainSequence* const> sequences,
                     std::span<const size_t> chosen, at::Device device) {
  QD_CHECK(!chosen.empty());
  std::vector<std::vector<int32_t>> inputs;
  std::vector<int64_t> rows;
  std::vector<int64_t> targets;
  int64_t start = 0;
  for (const size_t i : chosen) {
    const TrainSequence& sequence = *sequences[i];
    for (const int64_t position : sequence.positions) {
      QD_CHECK(position >= 1 && position < static_cast<int64_t>(sequence.tokens.size()),
               "trained position {} of {} tokens", position, sequence.tokens.size());
      rows.push_back(start + position - 1);
      targets.push_back(sequence.tokens[static_cast<size_t>(position)]);
    }
    inputs.emplace_back(sequence.tokens.begin(), sequence.tokens.end() - 1);
    start += sequence.input_tokens();
  }
  PackedRows out;
  out.batch = model::pack_sequences(inputs, device);
  out.rows_N = to_device(rows, device);
  out.targets_N = to_device(targets, device);
  out.temperature = sequences[chosen.front()]->temperature;
  return out;
}

}  // namespace quadrille::learn
