#include "model/transformer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include "model/layout.h"
#include "support.h"
#include "tensor/threads.h"

namespace quadrille::model {
namespace {

using namespace testing;

// The models are tiny: a second thread would only wait for the first.
class OneThread : public ::testing::Environment {
 public:
  void SetUp() override { tensor::set_threads(1); }
};
const auto* const kOneThread = ::testing::AddGlobalTestEnvironment(new OneThread);

class EveryFamily : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Families, EveryFamily, ::testing::ValuesIn(families()),
                         [](const auto& info) { return info.param; });

TEST_P(EveryFamily, PackedSequencesAreAsAlone) {
  at::NoGradGuard no_grad;
  const auto model = make_tiny(GetParam());
  const auto sequences = random_sequences({9, 1, 23, 40, 2}, 61, 1);
  const at::Tensor together = model->forward(pack_sequences(sequences, at::kCPU));
  int64_t row = 0;
  for (const auto& sequence : sequences) {
    const auto length = static_cast<int64_t>(sequence.size());
    const at::Tensor alone = model->forward(pack_sequences({sequence}, at::kCPU));
    EXPECT_TRUE(same_bits(alone, together.narrow(0, row, length)))
        << length << ": " << largest_difference(alone, together.narrow(0, row, length));
    row += length;
  }
}

TEST_P(EveryFamily, PagedInChunksIsAsPacked) {
  at::NoGradGuard no_grad;
  const auto model = make_tiny(GetParam());
  const auto sequences = random_sequences({41, 17, 33}, 61, 2);
  // Chunks of every kind: whole pages, part of a page, single tokens as in decoding.
  const std::vector<std::vector<size_t>> chunks = {{16, 5, 1, 1, 18}, {1, 15, 1}, {32, 1}};
  PagedRun run(*model, 3, 48);
  std::vector<std::vector<at::Tensor>> rows(3);
  std::vector<size_t> done(3, 0);
  for (size_t step = 0; step < 5; ++step) {
    std::vector<size_t> which;
    std::vector<std::vector<int32_t>> tokens;
    for (size_t s = 0; s < 3; ++s) {
      if (step >= chunks[s].size()) continue;
      which.push_back(s);
      const auto begin = sequences[s].begin() + static_cast<int64_t>(done[s]);
      tokens.emplace_back(begin, begin + static_cast<int64_t>(chunks[s][step]));
      done[s] += chunks[s][step];
    }
    const at::Tensor hidden = run.feed(which, tokens);
    int64_t row = 0;
    for (size_t i = 0; i < which.size(); ++i) {
      const auto count = static_cast<int64_t>(tokens[i].size());
      rows[which[i]].push_back(hidden.narrow(0, row, count));
      row += count;
    }
  }
  for (size_t s = 0; s < 3; ++s) {
    const at::Tensor packed = model->forward(pack_sequences({sequences[s]}, at::kCPU));
    const at::Tensor paged = at::cat(rows[s], 0);
    EXPECT_TRUE(same_bits(packed, paged)) << s << ": " << largest_difference(packed, paged);
  }
}

std::vector<at::Tensor> gradients(Transformer& model,
                                  const std::vector<std::vector<int32_t>>& sequences,
                                  bool with_router_loss) {
  model.zero_gradients();
  ForwardExtras extras;
  extras.want_router_logits = with_router_loss;
  extras.want_routes = with_router_loss;
  at::Tensor loss = mean_loss(model, sequences, &extras);
  if (with_router_loss) {
    EXPECT_EQ(static_cast<int64_t>(extras.router_logits_TE.size()), model.config().moe_layers());
    for (const auto& logits : extras.router_logits_TE) {
      EXPECT_TRUE(logits.requires_grad());
      loss = loss.add(logits.logsumexp(1).square().mean(), 0.01);
    }
  }
  loss.backward();
  std::vector<at::Tensor> result;
  for (const auto& param : model.parameters())
    result.push_back(param->grad.defined() ? param->grad.clone() : at::Tensor());
  return result;
}

TEST_P(EveryFamily, RecomputingKeepsEveryBitOfTheGradients) {
  const auto sequences = random_sequences({20, 7, 31}, 61, 3);
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const bool router_loss : {false, true}) {
      const auto model = make_tiny(GetParam(), dtype);
      model->enable_gradients();
      const auto kept = gradients(*model, sequences, router_loss);
      model->set_recompute(true);
      const auto again = gradients(*model, sequences, router_loss);
      for (size_t i = 0; i < kept.size(); ++i) {
        const std::string& name = model->parameters()[i]->name;
        ASSERT_EQ(kept[i].defined(), name.find("selection_bias") == std::string::npos) << name;
        if (!kept[i].defined()) continue;
        EXPECT_TRUE(same_bits(kept[i], again[i]))
            << name << " " << largest_difference(kept[i], again[i]);
        if (name.find("moe.") == std::string::npos) {
          EXPECT_GT(kept[i].abs().max().item<double>(), 0) << name;
        }
      }
    }
  }
}

TEST_P(EveryFamily, NoGraphWithoutGradients) {
  const auto model = make_tiny(GetParam());
  const Batch batch = pack_sequences(random_sequences({5}, 61, 4), at::kCPU);
  EXPECT_FALSE(model->forward(batch).requires_grad());
  model->enable_gradients();
  EXPECT_TRUE(model->forward(batch).requires_grad());
  at::NoGradGuard no_grad;
  EXPECT_FALSE(model->forward(batch).requires_grad());
}

TEST_P(EveryFamily, ReplayedRoutesGiveTheSameBits) {
  at::NoGradGuard no_grad;
  const auto model = make_tiny(GetParam());
  if (model->config().moe_layers() == 0) return;  // No router.
  Batch batch = pack_sequences(random_sequences({12, 30}, 61, 5), at::kCPU);
  ForwardExtras extras;
  extras.want_routes = true;
  const at::Tensor live = model->forward(batch, &extras);
  ASSERT_EQ(static_cast<int64_t>(extras.routes_TK.size()), model->config().moe_layers());
  EXPECT_TRUE(extras.router_logits_TE.empty());
  std::vector<at::Tensor> routes = extras.routes_TK;
  batch.replay_TLK = at::stack(routes, 1);
  EXPECT_TRUE(same_bits(live, model->forward(batch)));
  // -1 takes the live choice.
  batch.replay_TLK.narrow(0, 0, 20).fill_(-1);
  EXPECT_TRUE(same_bits(live, model->forward(batch)));
  // Other experts change the numbers, and are told back.
  batch.replay_TLK = at::stack(routes, 1).add(1).remainder(model->config().experts);
  EXPECT_FALSE(same_bits(live, model->forward(batch, &extras)));
  EXPECT_TRUE(same_bits(extras.routes_TK[0], batch.replay_TLK.select(1, 0)));
}

TEST_P(EveryFamily, Bf16IsCloseToFp32) {
  at::NoGradGuard no_grad;
  const auto fp32 = make_tiny(GetParam());
  const auto bf16 = make_tiny(GetParam(), at::kBFloat16);
  const Batch batch = pack_sequences(random_sequences({40}, 61, 6), at::kCPU);
  // Experts may flip under rounding, so both take the routes of fp32.
  ForwardExtras extras;
  extras.want_routes = true;
  const at::Tensor exact = fp32->forward(batch, &extras);
  Batch replayed = batch;
  if (!extras.routes_TK.empty()) replayed.replay_TLK = at::stack(extras.routes_TK, 1);
  const at::Tensor rounded = bf16->forward(replayed);
  EXPECT_EQ(rounded.scalar_type(), at::kBFloat16);
  EXPECT_LE(rounded.to(at::kFloat).sub(exact).norm().item<double>() / exact.norm().item<double>(),
            0.05);
}

TEST(Transformer, RouterDtypes) {
  const auto dtype_of = [](const Transformer& model, const std::string& name) {
    for (const auto& param : model.parameters()) {
      if (param->name == name) return param->value.scalar_type();
    }
    return at::ScalarType::Undefined;
  };
  EXPECT_EQ(dtype_of(*make_tiny("deepseek_v3", at::kBFloat16), "layers.1.moe.router"), at::kFloat);
  EXPECT_EQ(dtype_of(*make_tiny("deepseek_v3", at::kBFloat16), "layers.1.moe.selection_bias"),
            at::kFloat);
  EXPECT_EQ(dtype_of(*make_tiny("qwen3_moe", at::kBFloat16), "layers.1.moe.router"), at::kBFloat16);
  ModelConfig config = make_model_config(tiny("qwen3_moe"));
  config.router_fp32 = true;
  EXPECT_EQ(dtype_of(Transformer(config, at::kBFloat16, at::kCPU), "layers.1.moe.router"),
            at::kFloat);
}

TEST(Transformer, CountsParameters) {
  // OLMoE-1B-7B, whose totals are published; counted from the table, nothing is allocated.
  InitConfig init;
  init.family = "olmoe";
  init.vocab = 50304;
  init.layers = 16;
  init.hidden = 2048;
  init.heads = 16;
  init.experts = 64;
  init.top_k = 8;
  init.expert_width = 1024;
  int64_t total = 0;
  int64_t experts = 0;
  for (const auto& plan : plan_parameters(make_model_config(init))) {
    int64_t size = 1;
    for (const int64_t dimension : plan.shape) size *= dimension;
    total += size;
    if (plan.by_expert) experts += size;
  }
  EXPECT_NEAR(static_cast<double>(total) / 1e9, 6.919, 0.0005);
  EXPECT_NEAR(static_cast<double>(total - experts + experts / 8) / 1e9, 1.282, 0.0005);

  const auto model = make_tiny("qwen3_moe");
  int64_t counted = 0;
  for (const auto& param : model->parameters()) counted += param->value.numel();
  EXPECT_EQ(model->parameter_count(), counted);
  const int64_t expert_numbers = 2 * 6 * 3 * 12 * 32;
  EXPECT_EQ(model->active_parameter_count(), counted - expert_numbers + expert_numbers / 6 * 2);
}

TEST(Transformer, TiedHeadIsOneParameter) {
  InitConfig init = tiny("qwen3");
  init.tied = true;
  Transformer model(make_model_config(init), at::kFloat, at::kCPU);
  initialize_random(model, 1, 0.2);
  EXPECT_EQ(model.head().get(), model.parameters()[0].get());
  model.enable_gradients();
  const auto sequences = random_sequences({9, 4}, 61, 1);
  mean_loss(model, sequences).backward();
  const at::Tensor both = model.head()->grad.clone();

  // The same weights untied: the two gradients add up to the one of the tied model.
  init.tied = false;
  Transformer untied(make_model_config(init), at::kFloat, at::kCPU);
  for (size_t i = 0; i < untied.parameters().size(); ++i) {
    const auto& from =
        i < model.parameters().size() ? model.parameters()[i] : model.parameters()[0];
    untied.parameters()[i]->value.copy_(from->value);
    untied.parameters()[i]->changed();
  }
  untied.enable_gradients();
  mean_loss(untied, sequences).backward();
  EXPECT_LE(largest_difference(both, untied.parameters()[0]->grad.add(untied.head()->grad)), 1e-6);
}

TEST(Initialize, IsAFunctionOfSeedAndName) {
  const auto a = make_tiny("qwen3_moe", at::kFloat, 1);
  const auto b = make_tiny("qwen3_moe", at::kFloat, 1);
  const auto c = make_tiny("qwen3_moe", at::kFloat, 2);
  // A deeper model shares the layers the two have in common, but for the scale of the residual
  // outputs.
  InitConfig init = tiny("qwen3_moe");
  init.layers = 5;
  Transformer deeper(make_model_config(init), at::kFloat, at::kCPU);
  initialize_random(deeper, 1, init.init_scale);
  for (size_t i = 0; i < a->parameters().size(); ++i) {
    const auto& name = a->parameters()[i]->name;
    const at::Tensor& value = a->parameters()[i]->value;
    EXPECT_TRUE(same_bits(value, b->parameters()[i]->value)) << name;
    if (a->plans()[i].init == InitKind::kOnes) {
      EXPECT_EQ(value.min().item<double>(), 1) << name;
      continue;
    }
    if (a->plans()[i].init == InitKind::kZeros) {
      EXPECT_EQ(value.abs().max().item<double>(), 0) << name;
      continue;
    }
    EXPECT_FALSE(same_bits(value, c->parameters()[i]->value)) << name;
    const double expected =
        0.2 / (a->plans()[i].init == InitKind::kResidual ? std::sqrt(6.0) : 1.0);
    EXPECT_NEAR(value.std().item<double>() / expected, 1, 0.15) << name;
    EXPECT_NEAR(value.mean().item<double>() / expected, 0, 0.15) << name;
    for (const auto& param : deeper.parameters()) {
      if (param->name == name && a->plans()[i].init == InitKind::kMatrix) {
        EXPECT_TRUE(same_bits(value, param->value)) << name;
      }
    }
  }
}

TEST(Initialize, CopiesAcrossDtypes) {
  const auto from = make_tiny("deepseek_v3");
  const auto to = make_tiny("deepseek_v3", at::kBFloat16, 99);
  const uint64_t version = to->parameters()[3]->version;
  copy_parameters(*from, *to);
  for (size_t i = 0; i < from->parameters().size(); ++i) {
    const auto& target = to->parameters()[i]->value;
    EXPECT_TRUE(same_bits(from->parameters()[i]->value.to(target.scalar_type()), target));
  }
  EXPECT_GT(to->parameters()[3]->version, version);
}

}  // namespace
}  // namespace quadrille::model
