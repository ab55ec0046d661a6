// Matrix products against libtorch's, at the shapes of a small mixture of experts and of a larger
// one.
//
// Checked against double first. Times are the best of several runs, since this is about the kernel
// and not about the neighbours; `spread` is the median over the best. `peak` is a loop of
// multiply-adds on registers, one thread.
//   bench_gemm [threads...]     default: 1 and all
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "tensor/cpu/gemm.h"
#include "tensor/cpu/isa.h"
#include "tensor/cpu/packed.h"
#include "tensor/ops.h"
#include "tensor/threads.h"

namespace {

using namespace quadrille;
using namespace quadrille::tensor;

double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Timing {
  double best_s = 0;
  double spread = 0;
};
Timing time_it(const std::function<void()>& f) {
  constexpr double kRun = 4e-3;
  const double start = seconds();
  f();
  const double once = std::max(1e-7, seconds() - start);
  const int repeats = std::clamp(static_cast<int>(kRun / once), 1, 5000);
  std::vector<double> runs(21);
  for (double& run : runs) {
    const double begin = seconds();
    for (int i = 0; i < repeats; ++i) f();
    run = (seconds() - begin) / repeats;
  }
  std::sort(runs.begin(), runs.end());
  return {runs[0], runs[runs.size() / 2] / runs[0]};
}

#if defined(__x86_64__)
__attribute__((target("avx512f"), noinline)) double peak_avx512() {
  constexpr int kChains = 24;
  constexpr int kSteps = 100000;
  __m512 sums[kChains];
  for (__m512& sum : sums) sum = _mm512_setzero_ps();
  __m512 x = _mm512_set1_ps(1.0F);
  double best = 1e9;
  for (int run = 0; run < 5; ++run) {
    const double begin = seconds();
    for (int i = 0; i < kSteps; ++i) {
#pragma GCC unroll 24
      for (__m512& sum : sums) sum = _mm512_fmadd_ps(x, x, sum);
      asm volatile("" : "+v"(x));
    }
    best = std::min(best, seconds() - begin);
  }
  __m512 all = sums[0];
  for (const __m512& sum : sums) all = _mm512_add_ps(all, sum);
  asm volatile("" : : "v"(all));
  return 32.0 * kChains * kSteps / best;
}
#endif
double peak() {
#if defined(__x86_64__)
  if (cpu::supported(cpu::Isa::kAvx512)) return peak_avx512();
#endif
  return 0;
}

ParamPtr weight(const at::Tensor& value) {
  auto param = std::make_shared<Param>();
  param->value = value;
  param->grad = at::zeros(value.sizes(), at::kFloat);
  return param;
}

void check(const at::Tensor& ours, const at::Tensor& exact, double tolerance, const char* what) {
  const double error = (ours.to(at::kDouble) - exact).abs().max().item<double>() /
                       (1 + exact.abs().max().item<double>());
  if (!(error < tolerance)) {
    fmt::print(stderr, "{}: error {}\n", what, error);
    std::exit(1);
  }
}

std::string results;
double peak_flops = 0;

void report(const std::string& what, const std::string& shape, at::ScalarType dtype, int threads,
            double flops, const Timing& ours, const Timing* theirs) {
  results += fmt::format(
      "{}\n    {{\"op\": \"{}\", \"shape\": \"{}\", \"dtype\": \"{}\", \"threads\": {}, \"us\": "
      "{:.1f}, "
      "\"gflops\": {:.1f}, \"of_fp32_peak\": {:.2f}, \"spread\": {:.2f}",
      results.empty() ? "" : ",", what, shape, dtype == at::kFloat ? "fp32" : "bf16", threads,
      ours.best_s * 1e6, flops / ours.best_s * 1e-9,
      peak_flops > 0 ? flops / ours.best_s / (peak_flops * threads) : 0.0, ours.spread);
  if (theirs != nullptr) {
    results += fmt::format(", \"libtorch_us\": {:.1f}, \"speedup\": {:.2f}", theirs->best_s * 1e6,
                           theirs->best_s / ours.best_s);
  }
  results += "}";
}

// x · Wᵀ as ops.h gives it, its two gradients as the kernels give them, each beside libtorch.
void bench_linear(int64_t m, int64_t k, int64_t n, at::ScalarType dtype, int threads) {
  const at::Tensor x = at::randn({m, k}).to(dtype);
  const ParamPtr w = weight((at::randn({n, k}) * 0.1).to(dtype));
  const std::string shape = fmt::format("[{},{},{}]", m, k, n);
  const double flops =
      2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  const double tolerance = dtype == at::kFloat ? 1e-5 : 1e-2;
  const at::NoGradGuard no_grad;
  check(linear(x, w), at::linear(x.to(at::kDouble), w->value.to(at::kDouble)), tolerance, "linear");
  const Timing ours = time_it([&] { linear(x, w); });
  const Timing theirs = time_it([&] { at::linear(x, w->value); });
  report("linear", shape, dtype, threads, flops, ours, &theirs);

  const cpu::Type type = dtype == at::kFloat ? cpu::Type::kFp32 : cpu::Type::kBf16;
  const at::Tensor dy = at::randn({m, n}).to(dtype);
  at::Tensor dx = at::zeros({m, k}, dtype);
  cpu::Gemm g{.m = m, .n = k, .k = n, .compute = type};
  g.a = dy.const_data_ptr();
  g.b = w->value.const_data_ptr();
  g.c = dx.data_ptr();
  g.a_type = g.b_type = g.c_type = type;
  g.a_row = n;
  g.b_row = g.c_row = k;
  cpu::run(g, threads);
  check(dx, at::mm(dy.to(at::kDouble), w->value.to(at::kDouble)), tolerance, "dx");
  const Timing ours_dx = time_it([&] { cpu::run(g, threads); });
  const Timing theirs_dx = time_it([&] { at::mm(dy, w->value); });
  report("dx", shape, dtype, threads, flops, ours_dx, &theirs_dx);

  g = {.m = n, .n = k, .k = m, .compute = type};
  g.a = dy.const_data_ptr();
  g.b = x.const_data_ptr();
  g.c = w->grad.data_ptr();
  g.a_type = g.b_type = type;
  g.a_row = 1;
  g.a_col = n;
  g.b_row = g.c_row = k;
  g.accumulate = true;
  cpu::run(g, threads);
  check(w->grad, at::mm(dy.to(at::kDouble).t(), x.to(at::kDouble)), 1e-5, "dw");
  const Timing ours_dw = time_it([&] { cpu::run(g, threads); });
  const Timing theirs_dw = time_it([&] { w->grad.add_(at::mm(dy.t(), x)); });
  report("dw", shape, dtype, threads, flops, ours_dw, &theirs_dw);
}

// Rows spread evenly over the experts; libtorch runs one expert after the other.
void bench_experts(int64_t rows, int64_t hidden, int64_t width, int64_t experts,
                   at::ScalarType dtype, int threads) {
  const at::Tensor x = at::randn({rows, hidden}).to(dtype);
  const ParamPtr gate_up = weight((at::randn({experts, 2 * width, hidden}) * 0.1).to(dtype));
  const ParamPtr down = weight((at::randn({experts, hidden, width}) * 0.1).to(dtype));
  std::vector<int64_t> cuts;
  for (int64_t e = 0; e <= experts; ++e) cuts.push_back(rows * e / experts);
  const at::Tensor offsets = at::tensor(cuts, at::kLong);
  const std::string shape = fmt::format("[{} rows,{},{},{} experts]", rows, hidden, width, experts);
  const double flops = 6.0 * static_cast<double>(rows) * static_cast<double>(hidden * width);
  {
    const at::NoGradGuard no_grad;
    const auto loop = [&] {
      for (int64_t e = 0; e < experts; ++e) {
        const at::Tensor rows_e = x.narrow(0, cuts[e], cuts[e + 1] - cuts[e]);
        at::linear(silu_mul(at::linear(rows_e, gate_up->value[e])), down->value[e]);
      }
    };
    const Timing ours = time_it([&] { grouped_mlp(x, offsets, gate_up, down); });
    const Timing theirs = time_it(loop);
    report("grouped_mlp", shape, dtype, threads, flops, ours, &theirs);
  }
  at::Tensor asks = x.detach().set_requires_grad(true);
  const at::Tensor dy = at::randn({rows, hidden}).to(dtype);
  const Timing both = time_it([&] { grouped_mlp(asks, offsets, gate_up, down).backward(dy); });
  report("grouped_mlp forward and backward", shape, dtype, threads, 3 * flops, both, nullptr);
}

void bench_logprobs(int64_t rows, int64_t hidden, int64_t vocabulary, at::ScalarType dtype,
                    int threads) {
  at::Tensor x = at::randn({rows, hidden}).to(dtype).set_requires_grad(true);
  const ParamPtr head = weight((at::randn({vocabulary, hidden}) * 0.1).to(dtype));
  const at::Tensor targets = at::zeros({rows}, at::kLong);
  const at::Tensor one = at::randn({rows});
  const std::string shape = fmt::format("[{},{},{}]", rows, hidden, vocabulary);
  const double flops = 2.0 * static_cast<double>(rows) * static_cast<double>(hidden * vocabulary);
  {
    const at::NoGradGuard no_grad;
    const Timing forward = time_it([&] { token_logprobs(x, head, targets, 1.0, false); });
    report("token_logprobs", shape, dtype, threads, flops, forward, nullptr);
  }
  const Timing both =
      time_it([&] { token_logprobs(x, head, targets, 1.0, true).logprobs_N.backward(one); });
  report("token_logprobs forward and backward", shape, dtype, threads, 3 * flops, both, nullptr);
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<int> teams;
  for (int i = 1; i < argc; ++i) teams.push_back(std::atoi(argv[i]));
  if (teams.empty()) teams = {1, at::get_num_threads()};
  peak_flops = peak();
  for (const int team : teams) {
    set_threads(team);
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      const int64_t shapes[][3] = {{64, 128, 384}, {64, 128, 128},   {64, 128, 8},
                                   {8, 256, 256},  {4400, 128, 384}, {4400, 128, 128},
                                   {4400, 128, 8}, {4400, 576, 1536}};
      for (const auto& [m, k, n] : shapes) bench_linear(m, k, n, dtype, team);
      bench_experts(128, 128, 64, 8, dtype, team);
      bench_experts(8800, 128, 64, 8, dtype, team);
      bench_experts(2048, 512, 768, 16, dtype, team);
      bench_logprobs(64, 128, 49, dtype, team);
      bench_logprobs(4400, 128, 49, dtype, team);
      bench_logprobs(512, 576, 49152, dtype, team);
    }
  }
  fmt::print(
      "{{\"bench\": \"gemm\", \"isa\": \"{}\", \"peak_gflops_a_thread\": {:.1f}, \"results\": "
      "[{}\n]}}\n",
      cpu::name(cpu::isa()), peak_flops * 1e-9, results);
}
