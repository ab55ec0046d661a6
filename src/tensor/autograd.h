// Autograd nodes from a lambda: the one way in which the functions of ops.h join libtorch's graph.
//
// The heavy autograd headers stay in autograd.cc. A weight (Param) is no input of the graph: the
// lambda captures its ParamPtr and adds to its grad, and a node whose inputs ask for no gradient
// (an embedding) still runs because its output asks for one.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <initializer_list>
#include <vector>

#include "tensor/param.h"

namespace quadrille::tensor {

// Gets one gradient an output (undefined: zero) and returns one an input (undefined: none).
using Backward = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

// True when gradients are enabled in this thread and an input or a weight (null allowed) asks for
// one.
bool wants_node(std::initializer_list<at::Tensor> inputs, std::initializer_list<ParamPtr> params);

// Makes `backward` the history of `outputs`, fresh tensors that are no views. A lambda that needs
// an output must capture its detach(): the output itself would own the node that owns the output.
// It is dropped after it ran.
void record(const char* name, std::vector<at::Tensor> inputs,
            std::initializer_list<at::Tensor> outputs, Backward backward);

}  // namespace quadrille::tensor
