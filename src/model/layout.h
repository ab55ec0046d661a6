// The one table of a model's parameters: name, shape, and which pieces of which file tensors they
// are made of. Allocation, loading, saving, the completeness check and partial loads of
// expert-parallel ranks all walk it.
//
// Quadrille's own layout is fused, so that a layer takes few, large products:
//   attention.qkv [(H+2G)d, D]    q rows, then k, then v
//   mlp.gate_up [2F, D]           gate rows, then up
//   moe.gate_up [E, 2F, D], moe.down [E, D, F], moe.shared_gate_up, moe.shared_down likewise
// Files hold the pieces apart; a piece is always a run of whole rows, so copying it is one memcpy.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "model/config.h"
#include "tensor/safetensors.h"

namespace quadrille::model {

struct FilePiece {
  std::string name;            // Tensor in the file.
  std::vector<int64_t> shape;  // Its shape there.
  int64_t expert = -1;         // Slice of a parameter stacked by expert; -1: the parameter itself.
  int64_t row = 0;             // First row in the parameter, or in the slice.
};

enum class InitKind { kMatrix, kResidual, kOnes, kZeros };

struct ParameterPlan {
  std::string name;
  std::vector<int64_t> shape;
  InitKind init = InitKind::kMatrix;
  bool by_expert = false;     // The first dimension counts experts.
  bool trainable = true;      // False: no gradient ever (the router's selection bias).
  bool held_fp32 = false;     // Whatever the compute dtype is.
  bool written_fp32 = false;  // Whatever dtype is asked for.
  // How files may store it: the first is the original layout, and the one we write.
  std::vector<std::vector<FilePiece>> layouts;
};

// In the order of Transformer::parameters(). With config.tied there is no "head".
std::vector<ParameterPlan> plan_parameters(const ModelConfig& config);

// Experts [begin, end): what one rank of an expert-parallel group holds.
struct ExpertRange {
  int64_t begin = 0;
  int64_t end = 0;
};

// For each parameter the layout (index into `layouts`) in which the folder holds it. Throws
// FormatError with the names if a tensor is missing, is there twice (in two layouts), has another
// shape, holds no floats, or is not expected at all.
std::vector<size_t> match_files(const std::vector<ParameterPlan>& plans, const ModelConfig& config,
                                const tensor::SafetensorsFolder& files);

// Copies one parameter from the files, converting to the destination's dtype. `destination` has the
// plan's shape, or for stacked parameters the experts of `experts` only: bytes of the others are
// not read.
void read_parameter(const ParameterPlan& plan, size_t layout,
                    const tensor::SafetensorsFolder& files, const at::Tensor& destination,
                    const ExpertRange& experts);

// The part of a parameter's value that a piece is, as a view.
at::Tensor piece_of(const at::Tensor& value, const FilePiece& piece);

}  // namespace quadrille::model
