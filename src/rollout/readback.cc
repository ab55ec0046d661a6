#include "rollout/readback.h"

#include <ATen/ops/empty.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace quadrille::rollout {
namespace {

at::Tensor to_host(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.device().is_cpu()) {
    return tensor.defined() ? tensor.contiguous() : tensor;
  }
  at::Tensor host =
      at::empty(tensor.sizes(), tensor.options().device(at::kCPU).pinned_memory(true));
  host.copy_(tensor, /*non_blocking=*/true);
  return host;
}

}  // namespace

void Readback::start(const tensor::Sampled& sampled, const std::vector<at::Tensor>& routes_TK) {
  tokens_ = to_host(sampled.tokens_B);
  logprobs_ = to_host(sampled.logprobs_B);
  sampling_logprobs_ = to_host(sampled.sampling_logprobs_B);
  tempered_logprobs_ = to_host(sampled.tempered_logprobs_B);
  routes_TK_.clear();
  for (const at::Tensor& routes : routes_TK) routes_TK_.push_back(to_host(routes));
  const at::Tensor& any =
      sampled.tokens_B.defined() || routes_TK.empty() ? sampled.tokens_B : routes_TK[0];
  copied_.reset();
  if (any.defined() && !any.device().is_cpu()) {
    copied_.emplace(any.device().type());
    copied_->record(c10::impl::VirtualGuardImpl(any.device().type()).getStream(any.device()));
  }
}

void Readback::wait() {
  if (copied_.has_value()) copied_->synchronize();
  copied_.reset();
}

}  // namespace quadrille::rollout
