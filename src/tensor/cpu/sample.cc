// Every filter keeps what lies above some boundary, a pair (z, id). It is found by bisection over z
// with vector kernels that skip the chunks below, until few enough tokens are left to sort; then
// one walk over the chunks that reach above the boundary gives the masses to draw from.
#include "tensor/cpu/sample.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/rng.h"
#include "tensor/cpu/dispatch.h"
#include "tensor/cpu/sample_kernels.h"

namespace quadrille::tensor::cpu {
namespace {

const SampleKernels& kernels() {
  return best_kernels(&generic_sample_kernels, &avx2_sample_kernels, &avx512_sample_kernels);
}

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// ln of a probability: as token_logprobs computes it, bit for bit.
struct Distribution {
  float top = 0;   // Largest z.
  double sum = 0;  // Of exp(z - top).
  float log_probability(float z) const {
    return static_cast<float>(static_cast<double>(z) - static_cast<double>(top) - std::log(sum));
  }
};

// What survives: larger z, or an equal one with an id up to this.
struct Boundary {
  float z = -kInfinity;
  int64_t id = std::numeric_limits<int64_t>::max();
  float least_weight = 0;
};

// One row on its way; a thread keeps the memory.
struct Row {
  int64_t n = 0;
  const float* z = nullptr;   // Logits over temperature.
  float top = 0;              // Largest z.
  std::vector<float> maxima;  // Of z, per chunk.
  std::vector<double> sums;   // Of what may be drawn, per chunk.
  std::vector<float> tempered;
  std::vector<float> weight;
  struct Edge {
    float z;
    float weight;
    int64_t id;
  };
  std::vector<Edge> edge;

  int64_t chunks() const { return static_cast<int64_t>(maxima.size()); }
  int64_t first(int64_t chunk) const { return chunk * kSoftmaxChunk; }
  int64_t count(int64_t chunk) const { return std::min(kSoftmaxChunk, n - first(chunk)); }
};

double total_of(const std::vector<double>& sums) {
  double total = 0;
  for (const double s : sums) total += s;
  return total;
}

double uniform(const SampleArgs& args) {
  const auto bits = philox(args.seed, args.counter);
  const uint64_t wide = (static_cast<uint64_t>(bits[0]) << 32) | bits[1];
  return (static_cast<double>(wide >> 11) + 0.5) * 0x1p-53;
}

// First id whose logit is `top`.
int64_t first_of(const float* x, int64_t n, float top, const std::vector<float>& maxima) {
  int64_t i = (std::find(maxima.begin(), maxima.end(), top) - maxima.begin()) * kSoftmaxChunk;
  while (i + 1 < n && x[i] != top) ++i;
  return i;
}

// Number and mass of the tokens with z > bound.
struct Amount {
  int64_t count = 0;
  double mass = 0;
};
Amount above(const Row& row, float bound, bool want_mass) {
  Amount amount;
  for (int64_t c = 0; c < row.chunks(); ++c) {
    if (row.maxima[c] <= bound) continue;
    int64_t count = 0;
    double mass = 0;
    const int64_t at = row.first(c);
    kernels().above(row.z + at, want_mass ? row.weight.data() + at : nullptr, row.count(c), bound,
                    &count, &mass);
    amount.count += count;
    amount.mass += mass;
  }
  return amount;
}

// By falling z, equals by rising id, the tokens that have less than `need` before them: of mass, or
// of tokens. Returns the last one.
Boundary find_boundary(Row& row, double need, bool by_mass) {
  const auto reached = [&](const Amount& a) {
    return (by_mass ? a.mass : static_cast<double>(a.count)) >= need;
  };
  constexpr int64_t kFew = 64;
  float high = row.top;  // Too little lies above it, enough above `low`.
  Amount over_high;
  float low = high;
  Amount over_low;
  for (float step = 1; !reached(over_low); step *= 2) {
    high = low;
    over_high = over_low;
    low = row.top - step;
    if (low == -kInfinity) return {};  // Everything together is not enough: all stay.
    over_low = above(row, low, by_mass);
  }
  while (over_low.count - over_high.count > kFew) {
    const float middle = low + (high - low) / 2;
    if (!(middle > low && middle < high)) break;
    const Amount over = above(row, middle, by_mass);
    if (reached(over)) {
      low = middle;
      over_low = over;
    } else {
      high = middle;
      over_high = over;
    }
  }
  row.edge.clear();
  int32_t index[kSoftmaxChunk];
  for (int64_t c = 0; c < row.chunks(); ++c) {
    if (row.maxima[c] <= low) continue;
    const int64_t first = row.first(c);
    const int64_t found = kernels().between(row.z + first, row.count(c), low, high, index);
    for (int64_t i = 0; i < found; ++i) {
      const int64_t id = first + index[i];
      row.edge.push_back({row.z[id], by_mass ? row.weight[id] : 1.0F, id});
    }
  }
  const auto before = [](const Row::Edge& a, const Row::Edge& b) {
    return a.z != b.z ? a.z > b.z : a.id < b.id;
  };
  // A long edge is one of equals, and those are in order.
  if (!std::is_sorted(row.edge.begin(), row.edge.end(), before))
    std::sort(row.edge.begin(), row.edge.end(), before);
  double sum = by_mass ? over_high.mass : static_cast<double>(over_high.count);
  Boundary boundary{row.edge[0].z, row.edge[0].id};
  for (const Row::Edge& e : row.edge) {
    if (sum >= need) break;
    boundary = {e.z, e.id};
    sum += e.weight;
  }
  return boundary;
}

// The filters' common boundary.
Boundary apply_filters(Row& row, const SampleArgs& args, double whole_mass) {
  Boundary boundary;
  if (args.top_p < 1) {
    row.weight.resize(row.n);
    kernels().weights(row.z, row.n, row.top, row.weight.data());
  }
  if (args.top_k > 0) boundary.z = find_boundary(row, static_cast<double>(args.top_k), false).z;
  if (args.top_p < 1) {
    double mass = whole_mass;
    if (boundary.z > -kInfinity)
      mass = above(row, std::nextafter(boundary.z, -kInfinity), true).mass;
    // Even 0 keeps the most likely token.
    const double need = std::max(args.top_p * mass, std::numeric_limits<double>::min());
    const Boundary narrower = find_boundary(row, need, true);
    if (narrower.z >= boundary.z) boundary = narrower;
  }
  boundary.least_weight = args.min_p;
  return boundary;
}

// The weights of one chunk, zero for what the boundary drops, and their sum.
double kept_weights(const Row& row, int64_t chunk, const Boundary& boundary, float* weights) {
  const int64_t first = row.first(chunk);
  const int64_t count = row.count(chunk);
  const float* z = row.z + first;
  // Equals of the boundary's z stay up to its id.
  const bool equals_stay = first <= boundary.id;
  const float bound = equals_stay ? boundary.z : std::nextafter(boundary.z, kInfinity);
  double sum = kernels().kept_weights(z, count, row.top, bound, boundary.least_weight, weights);
  if (equals_stay && first + count - 1 > boundary.id) {
    sum = 0;
    for (int64_t i = 0; i < count; ++i) {
      if (z[i] == boundary.z && first + i > boundary.id) weights[i] = 0;
      sum += weights[i];
    }
  }
  return sum;
}

}  // namespace

SampleResult sample_row(const float* logits, int64_t vocabulary, const SampleArgs& args) {
  thread_local Row row;
  const int64_t chunks = softmax_chunks(vocabulary);
  row.n = vocabulary;
  row.maxima.resize(chunks);
  row.sums.resize(chunks);
  SampleResult out;
  if (!kernels().maxima(logits, vocabulary, row.maxima.data())) return out;
  Distribution plain;
  plain.top = *std::max_element(row.maxima.begin(), row.maxima.end());
  if (std::isinf(plain.top)) return out;
  kernels().exp_sums(logits, vocabulary, plain.top, row.sums.data());
  plain.sum = total_of(row.sums);
  if (args.temperature == 0) {
    out.token = first_of(logits, vocabulary, plain.top, row.maxima);
    out.logprob = out.tempered_logprob = plain.log_probability(plain.top);
    return out;
  }

  Distribution tempered = plain;
  row.z = logits;
  if (args.temperature != 1.0F) {
    row.tempered.resize(vocabulary);
    kernels().temper(logits, vocabulary, args.temperature, row.tempered.data());
    row.z = row.tempered.data();
    for (float& x : row.maxima) x /= args.temperature;
    tempered.top = plain.top / args.temperature;
    kernels().exp_sums(row.z, vocabulary, tempered.top, row.sums.data());
    tempered.sum = total_of(row.sums);
  }
  row.top = tempered.top;

  SampleArgs filters = args;
  if (filters.top_k >= vocabulary) filters.top_k = 0;
  Boundary boundary;
  Distribution drawn = tempered;
  float weights[kSoftmaxChunk];
  if (filters.top_k > 0 || filters.top_p < 1 || filters.min_p > 0) {
    boundary = apply_filters(row, filters, tempered.sum);
    for (int64_t c = 0; c < chunks; ++c) {
      const bool below = row.maxima[c] < boundary.z;
      row.sums[c] = below ? 0 : kept_weights(row, c, boundary, weights);
    }
    drawn.sum = total_of(row.sums);
  }

  double left = uniform(args) * drawn.sum;
  int64_t chunk = 0;
  while (chunk + 1 < chunks && left >= row.sums[chunk]) left -= row.sums[chunk++];
  // Rounding may have led past the last token that has any mass.
  while (chunk > 0 && row.sums[chunk] == 0) --chunk;
  kept_weights(row, chunk, boundary, weights);
  out.token = row.first(chunk) + kernels().pick(weights, row.count(chunk), left);
  const float z = row.z[out.token];
  out.logprob = plain.log_probability(logits[out.token]);
  out.tempered_logprob = tempered.log_probability(z);
  out.sampling_logprob = drawn.log_probability(z);
  return out;
}

}  // namespace quadrille::tensor::cpu
