// Random weights, and copies of weights.
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string_view>

#include "base/error.h"
#include "base/rng.h"
#include "model/layout.h"
#include "model/transformer.h"

namespace quadrille::model {
namespace {

// FNV-1a, so that the seed of a parameter does not depend on the standard library.
uint64_t hash_name(std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  return hash;
}

// Element i comes from block i / 4 of the counter-based generator: a rank that holds some experts
// only can draw just theirs.
void fill_normal(float* out, int64_t first, int64_t count, uint64_t key, float scale) {
  constexpr float kTurn = 2 * std::numbers::pi_v<float>;
  for (int64_t block = first / 4; block * 4 < first + count; ++block) {
    const auto bits = philox(key, static_cast<uint64_t>(block));
    std::array<float, 4> normal;
    for (size_t pair = 0; pair < 2; ++pair) {
      const float radius = scale * std::sqrt(-2 * std::log(uniform_open(bits[2 * pair])));
      const float angle = kTurn * uniform_open(bits[2 * pair + 1]);
      normal[2 * pair] = radius * std::cos(angle);
      normal[2 * pair + 1] = radius * std::sin(angle);
    }
    for (int64_t i = 0; i < 4; ++i) {
      const int64_t element = block * 4 + i;
      if (element >= first && element < first + count)
        out[element - first] = normal[static_cast<size_t>(i)];
    }
  }
}

}  // namespace

void initialize_random(Transformer& model, uint64_t seed, double scale) {
  const at::NoGradGuard no_grad;
  const auto layers = static_cast<double>(model.config().layers.size());
  constexpr int64_t kChunk = int64_t{1} << 20;
  for (size_t i = 0; i < model.plans().size(); ++i) {
    const ParameterPlan& plan = model.plans()[i];
    tensor::Param& param = *model.parameters()[i];
    switch (plan.init) {
      case InitKind::kOnes:
        param.value.fill_(1);
        break;
      case InitKind::kZeros:
        param.value.zero_();
        break;
      case InitKind::kMatrix:
      case InitKind::kResidual: {
        const auto deviation = static_cast<float>(
            plan.init == InitKind::kResidual ? scale / std::sqrt(2 * layers) : scale);
        const uint64_t key = mix_seed(seed, hash_name(plan.name));
        const at::Tensor flat = param.value.view({-1});
        for (int64_t first = 0; first < flat.numel(); first += kChunk) {
          const int64_t count = std::min(kChunk, flat.numel() - first);
          at::Tensor chunk = at::empty({count}, at::TensorOptions().dtype(at::kFloat));
          auto* out = chunk.mutable_data_ptr<float>();
          at::parallel_for(0, count, 4096, [&](int64_t begin, int64_t end) {
            fill_normal(out + begin, first + begin, end - begin, key, deviation);
          });
          flat.narrow(0, first, count).copy_(chunk);
        }
        break;
      }
    }
    param.changed();
  }
}

void copy_parameters(const Transformer& from, Transformer& to) {
  const at::NoGradGuard no_grad;
  QD_CHECK(from.parameters().size() == to.parameters().size(), "models of different shape");
  for (size_t i = 0; i < from.parameters().size(); ++i) {
    const tensor::Param& source = *from.parameters()[i];
    tensor::Param& target = *to.parameters()[i];
    QD_CHECK(source.name == target.name && source.value.sizes() == target.value.sizes(),
             "{} and {} differ", source.name, target.name);
    target.value.copy_(source.value);
    target.changed();
  }
}

}  // namespace quadrille::model
