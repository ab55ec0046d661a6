// Activation recomputation: a stretch of the model of which only the input survives until backward.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace quadrille::model {

// One layer as seen from outside. Its input is the pair at the seam between blocks: the residual
// stream x and normed = norm(x). Only x is kept; `normed` is computed again from it, and the
// gradients of both are returned separately, so that the graph (and each bit of the gradients) is
// the one of a pass without recomputation.
struct Stretch {
  std::function<at::Tensor(const at::Tensor& x)> norm;
  // With `again`, the second run: it must choose the experts of the first.
  std::function<std::vector<at::Tensor>(const at::Tensor& x, const at::Tensor& normed, bool again)>
      run;
};

// Runs the stretch without a graph now, and with one in backward. At most three outputs; three are
// returned, the missing ones undefined.
std::vector<at::Tensor> recompute_in_backward(const at::Tensor& x, const at::Tensor& normed,
                                              Stretch stretch);

}  // namespace quadrille::model
