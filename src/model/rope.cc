#include "model/rope.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/reciprocal.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.h"

namespace quadrille::model {
namespace {

at::Tensor llama3(const RopeConfig& rope, const at::Tensor& inv_freq) {
  const auto original = static_cast<double>(rope.original_max_positions);
  const double low_wavelength = original / rope.low_freq_factor;
  const double high_wavelength = original / rope.high_freq_factor;
  const at::Tensor wavelength = at::reciprocal(inv_freq) * (2 * std::numbers::pi);
  const at::Tensor scaled =
      at::where(wavelength.gt(low_wavelength), inv_freq / rope.factor, inv_freq);
  const at::Tensor smooth = (at::reciprocal(wavelength) * original - rope.low_freq_factor) /
                            (rope.high_freq_factor - rope.low_freq_factor);
  const at::Tensor smoothed = (1 - smooth) * scaled / rope.factor + smooth * scaled;
  const at::Tensor between =
      wavelength.ge(high_wavelength).logical_and(wavelength.le(low_wavelength));
  return at::where(between, smoothed, scaled);
}

at::Tensor yarn(const RopeConfig& rope, const at::Tensor& frequencies, int64_t dim) {
  // Dimension at which a wave turns `rotations` times within the original length.
  const auto dimension_of = [&](double rotations) {
    return static_cast<double>(dim) *
           std::log(static_cast<double>(rope.original_max_positions) /
                    (rotations * 2 * std::numbers::pi)) /
           (2 * std::log(rope.theta));
  };
  double low = dimension_of(rope.beta_fast);
  double high = dimension_of(rope.beta_slow);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(dim - 1));
  if (low == high) high += 0.001;

  const at::Tensor index = at::arange(dim / 2, at::TensorOptions().dtype(at::kFloat));
  const at::Tensor keep = 1 - at::clamp((index - low) / (high - low), 0, 1);
  return at::reciprocal(frequencies * rope.factor) * (1 - keep) +
         at::reciprocal(frequencies) * keep;
}

}  // namespace

double yarn_mscale(double scale, double mscale) {
  return scale <= 1 ? 1.0 : 0.1 * mscale * std::log(scale) + 1.0;
}

RopeFrequencies rope_frequencies(const RopeConfig& rope, int64_t dim) {
  const at::Tensor exponent =
      at::arange(0, dim, 2, at::TensorOptions().dtype(at::kFloat)) / static_cast<double>(dim);
  const at::Tensor frequencies = at::pow(at::Scalar(rope.theta), exponent);
  RopeFrequencies result;
  result.inv_freq = at::reciprocal(frequencies);
  if (rope.type == "linear") {
    result.inv_freq = result.inv_freq / rope.factor;
  } else if (rope.type == "llama3") {
    result.inv_freq = llama3(rope, result.inv_freq);
  } else if (rope.type == "yarn") {
    result.inv_freq = yarn(rope, frequencies, dim);
    if (rope.attention_factor != 0) {
      result.attention_factor = rope.attention_factor;
    } else if (rope.mscale != 0 && rope.mscale_all_dim != 0) {
      result.attention_factor =
          yarn_mscale(rope.factor, rope.mscale) / yarn_mscale(rope.factor, rope.mscale_all_dim);
    } else {
      result.attention_factor = yarn_mscale(rope.factor, 1);
    }
  } else {
    QD_CHECK(rope.type == "default", "rope type '{}'", rope.type);
  }
  return result;
}

tensor::RopeTable make_rope_table(const RopeConfig& rope, int64_t dim, int64_t positions,
                                  at::Device device) {
  const auto [inv_freq, factor] = rope_frequencies(rope, dim);
  const at::Tensor angles =
      at::outer(at::arange(positions, at::TensorOptions().dtype(at::kFloat)), inv_freq);
  at::Tensor cos = at::cos(angles);
  at::Tensor sin = at::sin(angles);
  if (factor != 1) {
    cos = cos * factor;
    sin = sin * factor;
  }
  return {cos.to(device), sin.to(device), rope.interleaved};
}

}  // namespace quadrille::model
