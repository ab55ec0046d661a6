#include "tensor/cpu/gemm.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "base/rng.h"
#include "tensor/cpu/isa.h"
#include "tensor/cpu/pointwise.h"

namespace quadrille::tensor::cpu {
namespace {

std::vector<float> numbers(int64_t count, uint64_t seed) {
  std::vector<float> v(static_cast<size_t>(count));
  Rng rng(seed);
  for (float& x : v) x = static_cast<float>(rng.normal());
  return v;
}
std::vector<Bf16> narrow(const std::vector<float>& v) {
  std::vector<Bf16> r(v.size());
  for (size_t i = 0; i < v.size(); ++i) r[i] = to_bf16(v[i]);
  return r;
}
std::vector<float> widen(const std::vector<Bf16>& v) {
  std::vector<float> r(v.size());
  for (size_t i = 0; i < v.size(); ++i) r[i] = to_float(v[i]);
  return r;
}
struct Aligned {
  explicit Aligned(int64_t count)
      : p(static_cast<float*>(
            std::aligned_alloc(64, static_cast<size_t>(count * 4 + 64) / 64 * 64))) {}
  ~Aligned() { std::free(p); }
  float* p;
};

// The three products a linear layer needs, by how A and B lie in memory.
enum class Form { kForward, kInput, kWeight };
const char* form_name(Form form) {
  return form == Form::kForward ? "x·Wᵀ" : form == Form::kInput ? "dy·W" : "dyᵀ·x";
}

struct Case {
  int64_t m, n, k;
  std::string text(Form form) const {
    return std::string(form_name(form)) + " m " + std::to_string(m) + " n " + std::to_string(n) +
           " k " + std::to_string(k);
  }
};

template <class T>
Gemm problem(Form form, const Case& c, const T* a, const T* b, void* out) {
  Gemm g{.m = c.m, .n = c.n, .k = c.k};
  g.a_type = g.b_type = g.compute = sizeof(T) == 4 ? Type::kFp32 : Type::kBf16;
  g.a = a;
  g.b = b;
  g.a_row = form == Form::kWeight ? 1 : c.k;
  g.a_col = form == Form::kWeight ? c.m : 1;
  g.b_row = form == Form::kForward ? 1 : c.n;
  g.b_col = form == Form::kForward ? c.k : 1;
  g.c = out;
  g.c_row = c.n;
  return g;
}

float element(const Gemm& g, const std::vector<float>& v, bool left, int64_t i, int64_t j) {
  const int64_t at = left ? i * g.a_row + j * g.a_col : i * g.b_row + j * g.b_col;
  return v[static_cast<size_t>(at)];
}

constexpr Case kCases[] = {{0, 5, 3},     {3, 0, 4},      {3, 5, 0},     {1, 1, 1},
                           {1, 33, 7},    {3, 31, 13},    {7, 65, 33},   {13, 32, 128},
                           {14, 64, 31},  {15, 49, 65},   {31, 16, 130}, {33, 17, 514},
                           {65, 8, 300},  {29, 257, 96},  {2, 300, 64},  {64, 96, 32},
                           {231, 70, 40}, {40, 40, 1100}, {3, 5, 2048},  {16, 160, 512}};

TEST(Gemm, EveryElementIsItsChains) {
  const bool fused = isa() != Isa::kGeneric;
  uint64_t seed = 1;
  for (const Case& c : kCases) {
    for (const Form form : {Form::kForward, Form::kInput, Form::kWeight}) {
      for (const bool accumulate : {false, true}) {
        ++seed;
        const auto a = numbers(c.m * c.k, seed);
        const auto b = numbers(c.k * c.n, seed + 1000);
        const auto bias = numbers(c.n, seed + 2000);
        auto out = numbers(c.m * c.n, seed + 3000);
        auto expected = out;
        Gemm g = problem(form, c, a.data(), b.data(), out.data());
        g.accumulate = accumulate;
        if (seed % 3 == 0) g.bias = bias.data();
        for (int64_t i = 0; i < c.m; ++i) {
          for (int64_t j = 0; j < c.n; ++j) {
            float& sum = expected[static_cast<size_t>(i * c.n + j)];
            if (!accumulate) sum = 0;
            const int64_t stretches = (c.k + kDepth - 1) / kDepth;
            for (int64_t s = 0, k = 0; s < stretches; ++s) {
              float chain = 0;
              const int64_t end = std::min(c.k, k + (c.k + stretches - 1) / stretches);
              for (; k < end; ++k) {
                const float x = element(g, a, true, i, k);
                const float y = element(g, b, false, k, j);
                if (fused) {
                  chain = std::fma(x, y, chain);
                } else {
                  const volatile float product = x * y;
                  chain += product;
                }
              }
              sum += chain;
            }
            if (g.bias != nullptr) sum += bias[static_cast<size_t>(j)];
          }
        }
        run(g, 2);
        ASSERT_EQ(out, expected) << c.text(form) << " seed " << seed;

        // The packed form gives the same bits.
        Aligned packed(packed_size(c.k, c.n, Type::kFp32));
        pack_b(g, packed.p);
        g.b = packed.p;
        g.b_packed = true;
        auto again = numbers(c.m * c.n, seed + 3000);
        g.c = again.data();
        run(g, 1);
        ASSERT_EQ(again, expected) << c.text(form) << " packed, seed " << seed;
      }
    }
  }
}

TEST(Gemm, Bf16AgreesWithDouble) {
  uint64_t seed = 100;
  for (const Case& c : kCases) {
    for (const Form form : {Form::kForward, Form::kInput, Form::kWeight}) {
      ++seed;
      const auto a = narrow(numbers(c.m * c.k, seed));
      const auto b = narrow(numbers(c.k * c.n, seed + 1000));
      const auto bias = numbers(c.n, seed + 2000);
      std::vector<Bf16> rounded(static_cast<size_t>(c.m * c.n));
      std::vector<float> on_grid(rounded.size());
      std::vector<float> whole(rounded.size());
      Gemm g = problem(form, c, a.data(), b.data(), whole.data());
      if (seed % 2 == 0) g.bias = bias.data();
      run(g, 2);
      g.c = on_grid.data();
      g.round_to_bf16 = true;
      run(g, 1);
      g.c = rounded.data();
      g.c_type = Type::kBf16;
      run(g, 2);
      const auto x = widen(a);
      const auto y = widen(b);
      for (int64_t i = 0; i < c.m; ++i) {
        for (int64_t j = 0; j < c.n; ++j) {
          const auto at = static_cast<size_t>(i * c.n + j);
          double sum = g.bias == nullptr ? 0 : static_cast<double>(bias[static_cast<size_t>(j)]);
          double size = std::abs(sum);
          for (int64_t k = 0; k < c.k; ++k) {
            const double product = static_cast<double>(element(g, x, true, i, k)) *
                                   static_cast<double>(element(g, y, false, k, j));
            sum += product;
            size += std::abs(product);
          }
          ASSERT_NEAR(whole[at], sum, 1e-6 * (size + 1)) << c.text(form) << " seed " << seed;
          ASSERT_EQ(on_grid[at], round_to_bf16(whole[at])) << c.text(form) << " seed " << seed;
          ASSERT_EQ(to_float(rounded[at]), on_grid[at]) << c.text(form) << " seed " << seed;
        }
      }
    }
  }
}

// Operands of other types than the products: a router in fp32 over bf16 rows, and fp32 gradients as
// bf16.
TEST(Gemm, MixedTypes) {
  const Case c{19, 45, 70};
  const auto a = narrow(numbers(c.m * c.k, 5));
  const auto b = narrow(numbers(c.k * c.n, 6));
  const auto x = widen(a);
  const auto y = widen(b);
  for (const Form form : {Form::kForward, Form::kInput, Form::kWeight}) {
    std::vector<float> expected(static_cast<size_t>(c.m * c.n));
    run(problem(form, c, x.data(), y.data(), expected.data()), 1);
    std::vector<float> out(expected.size());
    Gemm g = problem(form, c, a.data(), b.data(), out.data());
    g.compute = Type::kFp32;
    run(g, 1);
    EXPECT_EQ(out, expected) << form_name(form);

    Gemm mixed = problem(form, c, a.data(), b.data(), expected.data());
    run(mixed, 1);
    mixed.a = x.data();
    mixed.a_type = Type::kFp32;
    mixed.c = out.data();
    run(mixed, 1);
    EXPECT_EQ(out, expected) << form_name(form);
  }
}

TEST(Gemm, RowsDoNotKnowOfEachOther) {
  for (const Type type : {Type::kFp32, Type::kBf16}) {
    for (const int64_t k : {7, 64, 129, 600, 1024}) {
      const Case most{40, 49, k};
      const auto a = numbers(most.m * k, 8);
      const auto b = numbers(most.n * k, 9);
      const auto a16 = narrow(a);
      const auto b16 = narrow(b);
      const auto product = [&](int64_t m, int threads) {
        std::vector<float> out(static_cast<size_t>(m * most.n));
        const Case c{m, most.n, k};
        run(type == Type::kFp32 ? problem(Form::kForward, c, a.data(), b.data(), out.data())
                                : problem(Form::kForward, c, a16.data(), b16.data(), out.data()),
            threads);
        return out;
      };
      const auto whole = product(most.m, 1);
      for (int64_t m = 1; m <= most.m; ++m) {
        const auto part = product(m, 2);
        ASSERT_EQ(0, std::memcmp(part.data(), whole.data(), part.size() * sizeof(float)))
            << m << " rows, k " << k;
      }
    }
  }
}

TEST(Gemm, ThreadsDoNotChangeBits) {
  for (const Form form : {Form::kForward, Form::kInput, Form::kWeight}) {
    for (const Case& c : {Case{300, 200, 150}, Case{64, 384, 128}, Case{130, 70, 1500}}) {
      const auto a = numbers(c.m * c.k, 20);
      const auto b = numbers(c.k * c.n, 21);
      std::vector<float> one(static_cast<size_t>(c.m * c.n));
      run(problem(form, c, a.data(), b.data(), one.data()), 1);
      for (const int threads : {2, 3, 5}) {
        std::vector<float> many(one.size());
        run(problem(form, c, a.data(), b.data(), many.data()), threads);
        EXPECT_EQ(many, one) << c.text(form) << " threads " << threads;
      }
    }
  }
}

// Many problems of odd sizes as one team's work.
TEST(Gemm, ManyProblemsAtOnce) {
  std::vector<std::vector<float>> a, b, out, expected;
  std::vector<Gemm> all;
  const int64_t rows[] = {0, 1, 17, 3, 250, 0, 40};
  for (size_t i = 0; i < std::size(rows); ++i) {
    const Case c{rows[i], 64 + static_cast<int64_t>(i), 50};
    a.push_back(numbers(c.m * c.k, 30 + i));
    b.push_back(numbers(c.k * c.n, 50 + i));
    expected.emplace_back(static_cast<size_t>(c.m * c.n));
    out.emplace_back(static_cast<size_t>(c.m * c.n));
    Gemm g = problem(Form::kForward, c, a.back().data(), b.back().data(), expected.back().data());
    run(g, 1);
    g.c = out.back().data();
    all.push_back(g);
  }
  run(all, 2);
  EXPECT_EQ(out, expected);
}

TEST(Gemm, NanStaysInItsRow) {
  const Case c{9, 40, 20};
  auto a = numbers(c.m * c.k, 60);
  const auto b = numbers(c.k * c.n, 61);
  a[static_cast<size_t>(4 * c.k + 3)] = NAN;
  std::vector<float> out(static_cast<size_t>(c.m * c.n));
  run(problem(Form::kForward, c, a.data(), b.data(), out.data()), 1);
  for (int64_t i = 0; i < c.m * c.n; ++i) {
    EXPECT_EQ(std::isnan(out[static_cast<size_t>(i)]), i / c.n == 4) << i;
  }
}

TEST(Pointwise, ExpThroughSiluAndSoftmax) {
  // silu(x) * 1 over the range where exp is finite, against double.
  std::vector<float> gate;
  for (float x = -90; x < 90; x += 0.0137F) gate.push_back(x);
  const std::vector<float> up(gate.size(), 1.0F);
  std::vector<float> h(gate.size());
  pointwise_kernels().silu_mul(gate.data(), up.data(), h.data(), Type::kFp32,
                               static_cast<int64_t>(gate.size()));
  for (size_t i = 0; i < gate.size(); ++i) {
    const double x = gate[i];
    const double exact = x / (1 + std::exp(-x));
    ASSERT_NEAR(h[i], exact, 3e-7 * std::abs(exact) + 1e-36) << x;
  }
  const float wild[] = {-INFINITY, -1e30F, -200, 200, 1e30F, INFINITY, NAN};
  float out[7];
  pointwise_kernels().silu_mul(wild, up.data(), out, Type::kFp32, 7);
  EXPECT_EQ(out[2], 0.0F);
  EXPECT_EQ(out[3], 200.0F);
  EXPECT_EQ(out[4], 1e30F);
  EXPECT_EQ(out[5], INFINITY);
  EXPECT_TRUE(std::isnan(out[6]));
}

TEST(Pointwise, SoftmaxStatsAgainstDouble) {
  for (const int64_t n : {1, 3, 8, 16, 17, 49, 1024, 5000}) {
    auto z = numbers(n, static_cast<uint64_t>(n));
    for (float& x : z) x = 7 * x - 3;
    const float tau = 0.7F;
    const RowSoftmax stats = pointwise_kernels().softmax_stats(z.data(), n, tau, true);
    double top = -INFINITY;
    for (const float x : z) top = std::max(top, static_cast<double>(x) / tau);
    double sum = 0;
    double weighted = 0;
    for (const float x : z) {
      const double d = static_cast<double>(x) / tau - top;
      sum += std::exp(d);
      weighted += d * std::exp(d);
    }
    EXPECT_NEAR(stats.largest + stats.log_sum, top + std::log(sum), 2e-6) << n;
    EXPECT_NEAR(stats.entropy, std::log(sum) - weighted / sum, 2e-6) << n;
  }
  std::vector<float> z = numbers(20, 3);
  z[7] = NAN;
  EXPECT_TRUE(std::isnan(pointwise_kernels().softmax_stats(z.data(), 20, 1, false).log_sum));
  z[7] = -INFINITY;
  EXPECT_TRUE(std::isfinite(pointwise_kernels().softmax_stats(z.data(), 20, 1, true).entropy));
}

TEST(Pointwise, Bf16Rounding) {
  const float values[] = {1.0F, 1.00390625F, 1.01171875F, -3.1415927F, 1e-40F, INFINITY, 3.4e38F};
  const Bf16 expected[] = {0x3f80, 0x3f80, 0x3f82, 0xc049, 0x0001, 0x7f80, 0x7f80};
  Bf16 out[7];
  pointwise_kernels().convert(values, Type::kFp32, out, Type::kBf16, 7);
  for (int i = 0; i < 7; ++i) EXPECT_EQ(out[i], expected[i]) << values[i];
  std::vector<float> many = numbers(100, 4);
  many[50] = NAN;
  std::vector<Bf16> rounded(many.size());
  pointwise_kernels().convert(many.data(), Type::kFp32, rounded.data(), Type::kBf16, 100);
  EXPECT_EQ(rounded, narrow(many));
}

}  // namespace
}  // namespace quadrille::tensor::cpu
