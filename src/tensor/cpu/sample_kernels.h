// What sample.cc asks of an instruction set. A row is walked in chunks, whose maxima and sums let
// the sampler look at few of them twice.
#pragma once

#include <cstdint>

namespace quadrille::tensor::cpu {

// The stretch over which softmax_stats (pointwise.h) sums in fp32: the sampler adds in the very
// same order, so that its log-probabilities have the bits of the trainer's.
inline constexpr int64_t kSoftmaxChunk = 1024;
inline int64_t softmax_chunks(int64_t n) {
  return (n + kSoftmaxChunk - 1) / kSoftmaxChunk;
}

struct SampleKernels {
  // Largest of each chunk; false when there is a NaN.
  bool (*maxima)(const float* x, int64_t n, float* of_chunk) = nullptr;
  // Sum over each chunk of exp(z - top).
  void (*exp_sums)(const float* z, int64_t n, float top, double* of_chunk) = nullptr;
  // out = x / temperature.
  void (*temper)(const float* x, int64_t n, float temperature, float* out) = nullptr;
  // out = exp(z - top).
  void (*weights)(const float* z, int64_t n, float top, float* out) = nullptr;
  // The same, but 0 where z < bound or the weight is below `least`; returns the sum. For one chunk.
  double (*kept_weights)(const float* z, int64_t n, float top, float bound, float least,
                         float* out) = nullptr;
  // Over one chunk: how many z > bound there are, and the sum of their weights (null: only count).
  void (*above)(const float* z, const float* weight, int64_t n, float bound, int64_t* count,
                double* mass) = nullptr;
  // Of one chunk, the indices with low < z <= high, ascending; returns their number.
  int64_t (*between)(const float* z, int64_t n, float low, float high, int32_t* index) = nullptr;
  // First index at which the running sum of w passes `left`; never one without weight. -1: none has
  // any.
  int64_t (*pick)(const float* w, int64_t n, double left) = nullptr;
};

SampleKernels generic_sample_kernels();
SampleKernels avx2_sample_kernels();
SampleKernels avx512_sample_kernels();
const SampleKernels& sample_kernels();

}  // namespace quadrille::tensor::cpu
