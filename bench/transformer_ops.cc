// Norms, rotary embedding, attention, routing and sampling at the shapes of a small GRPO run: each
// op is checked against plain ATen first, then timed, and compared with ATen doing the same and
// with a roofline.
//
//   bench_transformer_ops [peak_gflops] [gbytes_per_s]     (of all threads; for the fractions)
//
// Ratios and fractions compare the best of many runs, which a busy machine disturbs least.
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/multinomial.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/randperm.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "base/error.h"
#include "tensor/cpu/isa.h"
#include "tensor/ops.h"

namespace quadrille::tensor {
namespace {

double peak_gflops = 0;
double gbytes = 0;

struct Time {
  double median = 0;
  double best = 0;
  double spread = 0;  // Of the middle half, relative.
};
Time measure(const std::function<void()>& f) {
  f();
  f();
  std::vector<double> us;
  double total = 0;
  while (us.size() < 7 || (total < 0.2e6 && us.size() < 400)) {
    const auto start = std::chrono::steady_clock::now();
    f();
    us.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start)
                     .count());
    total += us.back();
  }
  std::sort(us.begin(), us.end());
  const double median = us[us.size() / 2];
  return {median, us[0], (us[us.size() * 3 / 4] - us[us.size() / 4]) / median};
}

bool first_row = true;
// flops and bytes: what the op cannot avoid. baseline: ATen doing the same, or empty.
void report(const std::string& name, const std::function<void()>& ours, double flops, double bytes,
            const std::function<void()>& baseline = {}) {
  const Time t = measure(ours);
  std::string line =
      fmt::format(R"(    {{"op": "{}", "us": {:.1f}, "best_us": {:.1f}, "spread": {:.2f})", name,
                  t.median, t.best, t.spread);
  if (baseline) {
    const Time b = measure(baseline);
    line +=
        fmt::format(R"(, "aten_us": {:.1f}, "times_faster": {:.2f})", b.median, b.best / t.best);
  }
  if (peak_gflops > 0 && gbytes > 0) {
    const double least = std::max(flops / peak_gflops, bytes / gbytes) * 1e-3;
    line += fmt::format(R"(, "roofline_us": {:.1f}, "fraction": {:.2f})", least, least / t.best);
  }
  fmt::print("{}{}}}", first_row ? "" : ",\n", line);
  std::fflush(stdout);
  first_row = false;
}

void check(const char* what, const at::Tensor& got, const at::Tensor& want, double tolerance) {
  const double off = (got.to(at::kDouble) - want.to(at::kDouble)).abs().max().item<double>();
  QD_CHECK(off <= tolerance, "{} is off by {}", what, off);
}

ParamPtr param(const at::Tensor& value) {
  auto p = std::make_shared<Param>();
  p->value = value;
  p->grad = at::zeros(value.sizes());
  return p;
}

struct Model {
  const char* name;
  int64_t hidden, heads, kv_heads, head_dim, experts, top_k, vocabulary;
  int64_t tokens, length;  // Training batch.
  int64_t batch;           // Decode.
};

double bytes_of(std::initializer_list<at::Tensor> tensors) {
  double sum = 0;
  for (const at::Tensor& t : tensors) sum += static_cast<double>(t.nbytes());
  return sum;
}

// Forward and backward of f at leaves x, whose gradients start empty each time.
std::function<void()> both_ways(std::vector<at::Tensor> x,
                                std::function<at::Tensor(const std::vector<at::Tensor>&)> f,
                                at::Tensor dy) {
  for (at::Tensor& t : x) t.requires_grad_(true);
  return [x, f, dy] {
    for (const at::Tensor& t : x) t.mutable_grad() = at::Tensor();
    f(x).backward(dy);
  };
}

void norms(const Model& m, int64_t tokens, const std::string& tag) {
  const at::Tensor x = at::randn({tokens, m.hidden});
  const at::Tensor residual = at::randn({tokens, m.hidden});
  const ParamPtr w = param(at::randn({m.hidden}));
  const auto aten = [&](const at::Tensor& at_x, const at::Tensor& weight) {
    return weight * (at_x * (at_x * at_x).mean(-1, true).add(1e-6).rsqrt());
  };
  {
    at::NoGradGuard no_grad;
    check("rms_norm", rms_norm(x, w, 1e-6), aten(x, w->value), 1e-4);
    report(
        tag + "rms_norm", [&] { rms_norm(x, w, 1e-6); }, 0, 2 * bytes_of({x}),
        [&] { aten(x, w->value); });
    report(
        tag + "add_rms_norm", [&] { add_rms_norm(x, residual, w, 1e-6); }, 0, 4 * bytes_of({x}),
        [&] { aten(x + residual, w->value); });
  }
  if (tokens == m.batch) return;
  const at::Tensor dy = at::randn({tokens, m.hidden});
  report(tag + "rms_norm forward+backward",
         both_ways(
             {x.clone()}, [&](const auto& v) { return rms_norm(v[0], w, 1e-6); }, dy),
         0, 5 * bytes_of({x}),
         both_ways(
             {x.clone(), w->value.clone()}, [&](const auto& v) { return aten(v[0], v[1]); }, dy));
}

void rope_and_split(const Model& m, int64_t tokens, bool norm, const std::string& tag) {
  const int64_t d = m.head_dim;
  const at::Tensor angle =
      at::outer(at::arange(2048.0), at::arange(0, d, 2).mul(-9.2 / static_cast<double>(d)).exp());
  const RopeTable rope{angle.cos(), angle.sin(), false};
  const at::Tensor positions = at::arange(tokens, at::kLong).remainder(m.length);
  const at::Tensor qkv = at::randn({tokens, (m.heads + 2 * m.kv_heads) * d});
  QkvSpec spec{m.heads, m.kv_heads, d,    norm ? QkNorm::kPerHead : QkNorm::kNone,
               nullptr, nullptr,    1e-6, 0};
  if (norm) {
    spec.q_norm = param(at::randn({d}));
    spec.k_norm = param(at::randn({d}));
  }
  const auto aten = [&] {
    const auto part = [&](int64_t at, int64_t heads, const ParamPtr& w) {
      at::Tensor x = qkv.narrow(1, at * d, heads * d).view({tokens, heads, d});
      if (w) x = w->value * (x * (x * x).mean(-1, true).add(1e-6).rsqrt());
      const at::Tensor cos = rope.cos.index_select(0, positions).unsqueeze(1);
      const at::Tensor sin = rope.sin.index_select(0, positions).unsqueeze(1);
      const at::Tensor a = x.narrow(-1, 0, d / 2);
      const at::Tensor b = x.narrow(-1, d / 2, d / 2);
      return at::cat({a * cos - b * sin, b * cos + a * sin}, -1);
    };
    part(m.heads, m.kv_heads, spec.k_norm);
    qkv.narrow(1, (m.heads + m.kv_heads) * d, m.kv_heads * d).contiguous();
    return part(0, m.heads, spec.q_norm);
  };
  {
    at::NoGradGuard no_grad;
    check("prepare_qkv", prepare_qkv(qkv, spec, rope, positions).q_THd, aten(), 1e-4);
    report(
        tag + (norm ? "prepare_qkv (q/k norm)" : "prepare_qkv"),
        [&] { prepare_qkv(qkv, spec, rope, positions); }, 0, 2 * bytes_of({qkv}), [&] { aten(); });
  }
  if (tokens == m.batch) return;
  at::Tensor leaf = qkv.clone().requires_grad_(true);
  const at::Tensor dq = at::randn({tokens, m.heads, d});
  report(
      tag + "prepare_qkv forward+backward",
      [&] {
        leaf.mutable_grad() = at::Tensor();
        prepare_qkv(leaf, spec, rope, positions).q_THd.backward(dq);
      },
      0, 5 * bytes_of({qkv}));
}

at::Tensor bounds(int64_t sequences, int64_t length) {
  return at::arange(sequences + 1, at::kInt).mul(length).to(at::kInt);
}

void attention_train(const Model& m, const std::string& tag) {
  const int64_t sequences = m.tokens / m.length;
  const int64_t tokens = sequences * m.length;
  const at::Tensor q = at::randn({tokens, m.heads, m.head_dim});
  const at::Tensor k = at::randn({tokens, m.kv_heads, m.head_dim});
  const at::Tensor v = at::randn({tokens, m.kv_heads, m.head_dim});
  const at::Tensor dout = at::randn({tokens, m.heads, m.head_dim});
  const at::Tensor cu = bounds(sequences, m.length);
  const AttentionSpec spec{1 / std::sqrt(static_cast<double>(m.head_dim)), 0};
  // All sequences are of one length, so that ATen can have them as one batch.
  const auto aten = [&](const std::vector<at::Tensor>& x) {
    const auto batch = [&](const at::Tensor& t) {
      return t.view({sequences, m.length, t.size(1), t.size(2)}).transpose(1, 2);
    };
    return at::scaled_dot_product_attention(batch(x[0]), batch(x[1]), batch(x[2]), {}, 0, true,
                                            spec.scale, true)
        .transpose(1, 2)
        .reshape(x[0].sizes());
  };
  const auto ours = [&](const std::vector<at::Tensor>& x) {
    return attention_packed(x[0], x[1], x[2], cu, m.length, spec);
  };
  const double pairs = static_cast<double>(sequences * m.length * (m.length + 1) / 2 * m.heads);
  const double flops = pairs * 4 * static_cast<double>(m.head_dim);
  const double bytes = 2 * bytes_of({q, k});
  {
    at::NoGradGuard no_grad;
    check("attention_packed", ours({q, k, v}), aten({q, k, v}), 1e-4);
    report(
        tag + "attention_packed",
        [&] {
          ours({q, k, v});
        },
        flops, bytes,
        [&] {
          aten({q, k, v});
        });
  }
  report(tag + "attention_packed forward+backward",
         both_ways({q.clone(), k.clone(), v.clone()}, ours, dout), 3.5 * flops, 3 * bytes,
         both_ways({q.clone(), k.clone(), v.clone()}, aten, dout));
}

void attention_decode(const Model& m, const std::string& tag) {
  at::NoGradGuard no_grad;
  const int64_t context = m.length;
  const int64_t width = (context + kPageTokens - 1) / kPageTokens;
  KvCache cache =
      make_kv_cache({1, m.kv_heads, m.head_dim, m.head_dim}, m.batch * width, at::kFloat, at::kCPU);
  const at::Tensor table =
      at::arange(m.batch * width, at::kInt).view({width, m.batch}).t().contiguous();
  const at::Tensor k = at::randn({m.batch, context, m.kv_heads, m.head_dim});
  const at::Tensor v = at::randn({m.batch, context, m.kv_heads, m.head_dim});
  const auto slots = [&](int64_t t) {
    return table.select(1, t / kPageTokens).to(at::kLong).mul(kPageTokens).add(t % kPageTokens);
  };
  for (int64_t t = 0; t < context; ++t)
    kv_write(cache, 0, k.select(1, t).contiguous(), v.select(1, t).contiguous(), slots(t));
  const at::Tensor q = at::randn({m.batch, m.heads, m.head_dim});
  const at::Tensor cu = bounds(m.batch, 1);
  const at::Tensor contexts = at::full({m.batch}, context, at::kInt);
  const AttentionSpec spec{1 / std::sqrt(static_cast<double>(m.head_dim)), 0};
  const at::Tensor keys = k.transpose(1, 2).contiguous();
  const at::Tensor values = v.transpose(1, 2).contiguous();
  const auto aten = [&] {
    return at::scaled_dot_product_attention(q.unsqueeze(2), keys, values, {}, 0, false, spec.scale,
                                            true)
        .squeeze(2);
  };
  check("attention_paged", attention_paged(q, cache, 0, cu, table, contexts, spec), aten(), 1e-4);
  report(
      tag + "attention_paged, context " + std::to_string(context),
      [&] { attention_paged(q, cache, 0, cu, table, contexts, spec); },
      static_cast<double>(m.batch * context * m.heads * m.head_dim * 4), bytes_of({k, v}),
      [&] { aten(); });
  const at::Tensor one_k = k.select(1, 0).contiguous();
  const at::Tensor one_v = v.select(1, 0).contiguous();
  const at::Tensor at_slots = slots(context - 1);
  report(
      tag + "kv_write", [&] { kv_write(cache, 0, one_k, one_v, at_slots); }, 0,
      2 * bytes_of({one_k, one_v}));
}

void routing(const Model& m, int64_t tokens, const std::string& tag) {
  if (m.experts == 0) return;
  RouterSpec spec;
  spec.top_k = m.top_k;
  spec.normalize = true;
  const at::Tensor logits = at::randn({tokens, m.experts});
  const at::Tensor x = at::randn({tokens, m.hidden});
  const auto aten = [&] {
    auto [w, ids] = at::topk(at::softmax(logits, -1), m.top_k);
    return w / w.sum(-1, true);
  };
  const Routes routes = route(logits, spec);
  const Dispatched sent = dispatch_local(x, routes.ids_TK, m.experts);
  {
    at::NoGradGuard no_grad;
    check("route", routes.weights_TK, aten(), 1e-5);
    report(
        tag + "route", [&] { route(logits, spec); }, 0, bytes_of({logits}), [&] { aten(); });
    report(
        tag + "dispatch_local", [&] { dispatch_local(x, routes.ids_TK, m.experts); }, 0,
        bytes_of({x, sent.x_RD}));
    check("combine_local", combine_local(sent.x_RD, sent.row_of_TK, routes.weights_TK), x, 1e-5);
    report(
        tag + "combine_local", [&] { combine_local(sent.x_RD, sent.row_of_TK, routes.weights_TK); },
        0, bytes_of({x, sent.x_RD}));
  }
  if (tokens == m.batch) return;
  report(tag + "route forward+backward",
         both_ways(
             {logits.clone()}, [&](const auto& v) { return route(v[0], spec).weights_TK; },
             at::randn({tokens, m.top_k})),
         0, 3 * bytes_of({logits}));
  const at::Tensor dx = at::randn({tokens, m.hidden});
  report(tag + "dispatch+combine forward+backward",
         both_ways(
             {x.clone(), routes.weights_TK.clone()},
             [&](const auto& v) {
               const Dispatched d = dispatch_local(v[0], routes.ids_TK, m.experts);
               return combine_local(d.x_RD, d.row_of_TK, v[1]);
             },
             dx),
         0, 6 * bytes_of({x, sent.x_RD}));
}

void sampling(const Model& m, const std::string& tag) {
  at::NoGradGuard no_grad;
  // Zipf's law with noise: the flat tail of a language model under a few likely tokens.
  const at::Tensor logits = at::arange(1, m.vocabulary + 1, at::kFloat)
                                .log()
                                .mul(-1.2)
                                .add(at::randn({m.batch, m.vocabulary}))
                                .index_select(1, at::randperm(m.vocabulary));
  SamplingParams p;
  p.temperature_B = at::full({m.batch}, 1.0, at::kFloat);
  p.top_k_B = at::full({m.batch}, 0, at::kInt);
  p.top_p_B = at::full({m.batch}, 1.0, at::kFloat);
  p.min_p_B = at::full({m.batch}, 0.0, at::kFloat);
  p.seed_B = at::full({m.batch}, 1, at::kLong);
  p.counter_B = at::arange(m.batch, at::kLong);
  const auto aten = [&] {
    const at::Tensor logp = at::log_softmax(logits, -1);
    return logp.gather(1, at::multinomial(logp.exp(), 1));
  };
  const Sampled got = sample(logits, p);
  check("sample", got.logprobs_B,
        at::log_softmax(logits, -1).gather(1, got.tokens_B.unsqueeze(1)).squeeze(1), 1e-5);
  const double bytes = bytes_of({logits});
  const std::string v = ", V " + std::to_string(m.vocabulary);
  report(
      tag + "sample" + v, [&] { sample(logits, p); }, 0, bytes, [&] { aten(); });
  p.temperature_B.fill_(0.7);
  report(
      tag + "sample, temperature 0.7" + v, [&] { sample(logits, p); }, 0, bytes);
  p.temperature_B.fill_(1.0);
  p.top_p_B.fill_(0.95);
  report(
      tag + "sample, top_p 0.95" + v, [&] { sample(logits, p); }, 0, bytes);
  p.top_k_B.fill_(50);
  report(
      tag + "sample, top_k 50, top_p 0.95" + v, [&] { sample(logits, p); }, 0, bytes);
}

void run() {
  const std::vector<Model> models = {
      {"tiny MoE: ", 128, 4, 2, 32, 8, 2, 512, 4410, 70, 64},
      {"135M: ", 576, 9, 3, 64, 0, 0, 49152, 3000, 300, 16},
      {"router 128: ", 2048, 32, 4, 128, 128, 8, 151936, 1024, 256, 8},
  };
  fmt::print("{{\n  \"isa\": \"{}\", \"threads\": {},\n  \"ops\": [\n", cpu::name(cpu::isa()),
             at::get_num_threads());
  for (const Model& m : models) {
    for (const bool train : {false, true}) {
      const int64_t tokens = train ? m.tokens / m.length * m.length : m.batch;
      const std::string tag = fmt::format("{}{} tokens: ", m.name, tokens);
      norms(m, tokens, tag);
      rope_and_split(m, tokens, false, tag);
      rope_and_split(m, tokens, true, tag);
      routing(m, tokens, tag);
      if (train) {
        attention_train(m, tag);
      } else {
        attention_decode(m, tag);
        sampling(m, tag);
      }
    }
  }
  fmt::print("\n  ]\n}}\n");
}

}  // namespace
}  // namespace quadrille::tensor

int main(int argc, char** argv) {
  if (argc > 2) {
    quadrille::tensor::peak_gflops = std::atof(argv[1]);
    quadrille::tensor::gbytes = std::atof(argv[2]);
  }
  quadrille::tensor::run();
  return 0;
}
