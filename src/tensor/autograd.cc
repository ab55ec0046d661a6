#include "tensor/autograd.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <utility>

#include "base/error.h"

namespace quadrille::tensor {
namespace {

class LambdaNode : public torch::autograd::Node {
 public:
  LambdaNode(const char* name, Backward backward) : name_(name), backward_(std::move(backward)) {}

  torch::autograd::variable_list apply(torch::autograd::variable_list&& grads) override {
    if (!backward_) throw Error("backward of {} ran twice; what it had kept is gone", name_);
    for (const at::Tensor& grad : grads) {
      if (grad.defined()) return backward_(grads);
    }
    return torch::autograd::variable_list(num_outputs());
  }
  void release_variables() override { backward_ = nullptr; }
  std::string name() const override { return name_; }

 private:
  const char* name_;
  Backward backward_;
};

}  // namespace

bool wants_node(std::initializer_list<at::Tensor> inputs, std::initializer_list<ParamPtr> params) {
  if (!at::GradMode::is_enabled()) return false;
  for (const at::Tensor& input : inputs) {
    if (input.defined() && input.requires_grad()) return true;
  }
  for (const ParamPtr& param : params) {
    if (param && param->grad.defined()) return true;
  }
  return false;
}

void record(const char* name, std::vector<at::Tensor> inputs,
            std::initializer_list<at::Tensor> outputs, Backward backward) {
  auto node = c10::make_intrusive<LambdaNode>(name, std::move(backward));
  node->set_next_edges(torch::autograd::collect_next_edges(inputs));
  for (const at::Tensor& output : outputs) {
    torch::autograd::set_history(output, node);
  }
}

}  // namespace quadrille::tensor
