#include "model/recompute.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <utility>

#include "base/error.h"
#include "tensor/autograd.h"

namespace quadrille::model {

std::vector<at::Tensor> recompute_in_backward(const at::Tensor& x, const at::Tensor& normed,
                                              Stretch stretch) {
  QD_CHECK(x.requires_grad() && normed.requires_grad(), "nothing to recompute for");
  std::vector<at::Tensor> outputs;
  {
    at::NoGradGuard no_grad;
    outputs = stretch.run(x, normed, /*again=*/false);
  }
  // The engine is entered again from inside backward: it allows that, and since stretches do not
  // nest the depth stays two, however many layers there are.
  QD_CHECK(outputs.size() <= 3, "{} outputs", outputs.size());
  outputs.resize(3);
  tensor::record("recompute", {x, normed}, {outputs[0], outputs[1], outputs[2]},
                 [x = x.detach(), stretch = std::move(stretch)](const auto& grads) {
                   at::Tensor x_again = x.detach();
                   at::Tensor normed_again;
                   {
                     at::NoGradGuard no_grad;
                     normed_again = stretch.norm(x);
                   }
                   x_again.set_requires_grad(true);
                   normed_again.set_requires_grad(true);
                   std::vector<at::Tensor> roots;
                   std::vector<at::Tensor> root_grads;
                   {
                     at::AutoGradMode with_graph(true);
                     auto outputs_again = stretch.run(x_again, normed_again, /*again=*/true);
                     for (size_t i = 0; i < outputs_again.size(); ++i) {
                       if (!grads[i].defined()) continue;
                       roots.push_back(outputs_again[i]);
                       root_grads.push_back(grads[i]);
                     }
                   }
                   return torch::autograd::grad(roots, {x_again, normed_again}, root_grads,
                                                /*retain_graph=*/false,
                                                /*create_graph=*/false, /*allow_unused=*/true);
                 });
  return outputs;
}

}  // namespace quadrille::model
