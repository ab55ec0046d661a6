#include "model/rope.h"

#include <ATen/ops/tensor.h>

#include "model/config_json.h"
#include "support.h"

namespace quadrille::model {
namespace {

using namespace testing;

TEST(Rope, FrequenciesAsTheReferenceComputesThem) {
  const auto golden = read_json(goldens() / "rope.json");
  ASSERT_GE(golden["cases"].size(), 20U);
  for (const auto& c : golden["cases"]) {
    const nlohmann::json file = {{"max_position_embeddings", c["max_position_embeddings"]},
                                 {"rope_parameters", c["rope_parameters"]}};
    const RopeConfig rope = read_rope(ConfigJson(file, "golden"), 10000);
    const auto got = rope_frequencies(rope, c["head_dim"].get<int64_t>());
    const auto want = c["inv_freq"].get<std::vector<float>>();
    ASSERT_EQ(got.inv_freq.numel(), static_cast<int64_t>(want.size())) << c["name"];
    for (size_t j = 0; j < want.size(); ++j) {
      EXPECT_FLOAT_EQ(got.inv_freq.const_data_ptr<float>()[j], want[j]) << c["name"] << " " << j;
    }
    EXPECT_NEAR(got.attention_factor, c["attention_factor"].get<double>(), 1e-7) << c["name"];
  }
}

// The three rows of docs/models.md.
TEST(Rope, DocumentedValues) {
  struct Case {
    RopeConfig rope;
    std::vector<double> inv_freq;
    double factor;
  };
  const std::vector<Case> cases = {
      {{.theta = 5e5,
        .type = "llama3",
        .factor = 8,
        .low_freq_factor = 1,
        .high_freq_factor = 4,
        .original_max_positions = 8192},
       {1, 1.939228e-1, 3.760603e-2, 7.292665e-3, 5.248460e-4, 3.428102e-5, 6.647870e-6,
        1.289173e-6},
       1},
      {{.theta = 1e4,
        .type = "yarn",
        .factor = 40,
        .mscale = 1,
        .mscale_all_dim = 1,
        .original_max_positions = 4096},
       {1, 3.162278e-1, 1e-1, 2.391472e-2, 5.125000e-3, 8.498622e-4, 2.5e-5, 7.905694e-6},
       1},
      {{.theta = 1.5e5,
        .type = "yarn",
        .factor = 32,
        .truncate = false,
        .original_max_positions = 4096},
       {1, 2.254180e-1, 5.081327e-2, 6.794959e-3, 4.564839e-4, 1.818834e-5, 4.099978e-6,
        9.242090e-7},
       1.346574},
  };
  for (const auto& c : cases) {
    const auto got = rope_frequencies(c.rope, 16);
    for (size_t j = 0; j < 8; ++j) {
      EXPECT_NEAR(got.inv_freq.const_data_ptr<float>()[j] / c.inv_freq[j], 1, 1e-6)
          << c.rope.type << " " << j;
    }
    EXPECT_NEAR(got.attention_factor, c.factor, 1e-6);
  }
}

TEST(Rope, TableHoldsCosAndSinTimesTheFactor) {
  RopeConfig rope;
  rope.type = "yarn";
  rope.factor = 4;
  rope.original_max_positions = 64;
  rope.attention_factor = 1.25;
  const auto table = make_rope_table(rope, 8, 10, at::kCPU);
  const auto frequencies = rope_frequencies(rope, 8);
  for (int64_t p = 0; p < 10; ++p) {
    for (int64_t j = 0; j < 4; ++j) {
      const double angle = static_cast<double>(p) * frequencies.inv_freq.const_data_ptr<float>()[j];
      EXPECT_NEAR(table.cos.const_data_ptr<float>()[p * 4 + j], 1.25 * std::cos(angle), 1e-6);
      EXPECT_NEAR(table.sin.const_data_ptr<float>()[p * 4 + j], 1.25 * std::sin(angle), 1e-6);
    }
  }
}

TEST(Rope, DeepSeekCorrectsTheScaleToo) {
  ModelConfig c;
  c.attention = AttentionKind::kLatent;
  c.qk_nope_dim = 128;
  c.qk_rope_dim = 64;
  EXPECT_NEAR(c.attention_scale(), 0.072169, 1e-6);
  c.rope.type = "yarn";
  c.rope.factor = 40;
  c.rope.mscale_all_dim = 1;
  EXPECT_NEAR(c.attention_scale(), 0.135234, 1e-6);
}

}  // namespace
}  // namespace quadrille::model
