// One transformer for every family, for generation and training alike.
//
// The parts that differ (attention, router, feed-forward) are chosen by ModelConfig; the block
// around them is one piece of code. Weights live in `parameters`, in Quadrille's own fused layout
// (qkv, gate_up, experts stacked); checkpoint_io.h maps them to and from the families' files.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "model/batch.h"
#include "model/config.h"
#include "tensor/param.h"

namespace quadrille::model {

struct ParameterPlan;  // layout.h

class Transformer {
 public:
  // Parameters are allocated, not initialised: load or initialize_random fills them.
  Transformer(ModelConfig config, at::ScalarType dtype, at::Device device);
  ~Transformer();
  Transformer(const Transformer&) = delete;
  Transformer& operator=(const Transformer&) = delete;

  // Final normed hidden states [T, D]. Builds a graph if gradients are enabled on the parameters
  // and in the thread; with `recompute` set, only block inputs are kept and blocks run again in
  // backward.
  at::Tensor forward(const Batch& batch, ForwardExtras* extras = nullptr) const;

  const ModelConfig& config() const;
  at::ScalarType dtype() const;
  at::Device device() const;
  // In a fixed order; names are unique.
  const std::vector<tensor::ParamPtr>& parameters() const;
  // How each of them is shaped, initialised and stored, in the same order.
  const std::vector<ParameterPlan>& plans() const;
  const tensor::ParamPtr& head() const;  // [V, D]; the embedding itself when tied.
  tensor::KvShape kv_shape() const;

  // Allocates zeroed fp32 gradients (a tied head has one). The router's selection bias gets none:
  // it is moved by the load of the experts, not by a loss.
  void enable_gradients();
  void zero_gradients();
  bool gradients_enabled() const;
  void set_recompute(bool recompute);
  int64_t parameter_count() const;
  int64_t active_parameter_count() const;  // Non-expert weights plus K/E of the experts'.

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Normal(0, scale) for matrices with residual outputs scaled by 1/sqrt(2 * layers), ones for norms,
// zeros for biases; a pure function of (seed, parameter name, element).
void initialize_random(Transformer& model, uint64_t seed, double scale = 0.02);

// Same weights in another object (the frozen reference, or bf16 beside fp32): casts, shares
// nothing.
void copy_parameters(const Transformer& from, Transformer& to);

}  // namespace quadrille::model
