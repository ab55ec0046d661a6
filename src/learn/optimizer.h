// AdamW over a model's parameters, with fp32 masters, clipping by the global norm, and the
// learning-rate schedule.
//
// A model that computes in fp32 is its own master. Matrices decay, vectors (norms, biases) do not,
// as is the custom of the field. An expert without tokens has a zero gradient and takes part like
// any other: its moments fade and its weights decay, so its state after a resume is what it would
// have been without one.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/config.h"
#include "tensor/param.h"

namespace quadrille::learn {

struct OptimizerConfig {
  double lr = 1e-6;
  std::vector<double> betas = {0.9, 0.98};
  double eps = 1e-8;
  double weight_decay = 0.1;
  double clip_norm = 1.0;
  std::string schedule = "constant";
  int64_t warmup_steps = 0;
  double min_lr_ratio = 0;

  void validate() const;
};
void bind(OptimizerConfig& config, ConfigBinder& binder);

// Learning rate of optimizer step `step` (from 1) of `total`: rises in a line over the warm-up, so
// that step warmup_steps is the first at the peak, then falls as the schedule says. lr *
// min_lr_ratio would be reached one step after the last, so that no step is made at a rate of zero.
double scheduled_lr(const OptimizerConfig& config, int64_t step, int64_t total);

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

class Optimizer {
 public:
  // Parameters without a gradient are frozen and left alone. `config` is validated.
  Optimizer(const std::vector<tensor::ParamPtr>& parameters, OptimizerConfig config);

  struct Result {
    double grad_norm = 0;
    bool skipped = false;       // The norm is not finite: nothing was changed.
    std::string bad_parameter;  // The first whose gradient is not finite, in name order.
  };
  Result step(double lr);

  int64_t steps() const { return steps_; }

  // "m.<parameter>" and "v.<parameter>" in name order, and the masters under the parameters' own
  // names. The tensors are the live ones: write them out before the next step.
  NamedTensors moments() const;
  NamedTensors masters() const;
  // Copies from `find(name)`, which throws if there is none; sizes are checked. Values follow their
  // masters.
  void load(const std::function<at::Tensor(const std::string&)>& find, int64_t steps);

 private:
  struct Slot {
    tensor::ParamPtr param;
    at::Tensor master;  // The value itself when that is fp32.
    at::Tensor m;
    at::Tensor v;
  };

  OptimizerConfig config_;
  std::vector<Slot> slots_;  // In name order.
  int64_t steps_ = 0;        // Of those that changed something: Adam's bias correction.
};

}  // namespace quadrille::learn
