#include "model/upcycle.h"

#include <gtest/gtest.h>

#include <tuple>

#include "base/error.h"
#include "model/checkpoint_io.h"
#include "support.h"
#include "tensor/ops.h"

namespace quadrille::model {
namespace {

std::filesystem::path golden(const std::string& name) {
  return testing::goldens() / "parity" / name;
}

at::Tensor logits_of(const Transformer& model) {
  const at::NoGradGuard no_grad;
  const Batch batch = pack_sequences({{3, 1, 4, 1, 5, 9, 2, 6}, {2, 7, 1}}, at::kCPU);
  return tensor::logits(model.forward(batch), model.head());
}

using Shape = std::tuple<std::string, int64_t, int64_t, int64_t>;
class Upcycle : public ::testing::TestWithParam<Shape> {};

TEST_P(Upcycle, ComputesWhatTheDenseModelDoes) {
  const auto& [name, copies, split, top] = GetParam();
  const auto dense = load_model(golden(name), DtypeChoice::kFp32, at::kCPU);
  const auto moe = upcycle(
      *dense,
      {.copies = copies, .split = split, .top_copies = top, .router_scale = 0.5, .seed = 7});
  EXPECT_EQ(moe->config().experts, copies * split);
  EXPECT_EQ(moe->config().top_k, top * split);
  const at::Tensor expected = logits_of(*dense);
  const double scale = std::max(1.0, expected.abs().max().item().toDouble());
  EXPECT_LE(logits_of(*moe).sub(expected).abs().max().item().toDouble(), 1e-5 * scale);

  // And after a trip through files.
  const testing::TempFolder folder;
  save_model(*moe, folder.path(), {.carry_from = golden(name)});
  const auto again = load_model(folder.path(), DtypeChoice::kFp32, at::kCPU);
  EXPECT_EQ(again->config().family, dense->config().family == "llama" ? "mixtral" : "qwen3_moe");
  EXPECT_TRUE(logits_of(*again).equal(logits_of(*moe)));
}

INSTANTIATE_TEST_SUITE_P(Shapes, Upcycle,
                         ::testing::Values(Shape{"llama_llama3_rope", 3, 1, 1},
                                           Shape{"llama_llama3_rope", 3, 1, 2},
                                           Shape{"llama_untied_stop", 2, 2, 1},
                                           Shape{"qwen3_tied", 4, 2, 3}));

TEST(UpcycleErrors, NameTheNumbers) {
  const auto dense = load_model(golden("qwen3_tied"), DtypeChoice::kFp32, at::kCPU);
  EXPECT_THROW(upcycle(*dense, {.copies = 2, .top_copies = 3}), ConfigError);
  EXPECT_THROW(upcycle(*dense, {.copies = 2, .split = 1 + dense->config().dense_width}),
               ConfigError);
  const auto moe = load_model(golden("mixtral_base"), DtypeChoice::kFp32, at::kCPU);
  EXPECT_THROW(upcycle(*moe, {}), ConfigError);
}

TEST(UpcycleNoise, TellsCopiesApart) {
  const auto dense = load_model(golden("qwen3_tied"), DtypeChoice::kFp32, at::kCPU);
  const auto moe = upcycle(*dense, {.copies = 2, .noise = 0.01});
  for (const tensor::ParamPtr& param : moe->parameters()) {
    if (param->name == "layers.0.moe.gate_up") {
      EXPECT_FALSE(param->value.select(0, 0).equal(param->value.select(0, 1)));
    }
  }
}

}  // namespace
}  // namespace quadrille::model
