#include "learn/update.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "learn/router_losses.h"

namespace quadrille::learn {
namespace {

at::Tensor zeros(at::IntArrayRef shape, at::Device device) {
  return at::zeros(shape, at::TensorOptions().dtype(at::kDouble).device(device));
}

void check_model(const model::ModelConfig& model, const AlgorithmConfig& algorithm) {
  const bool wants_router = algorithm.load_balance_coef > 0 || algorithm.z_loss_coef > 0 ||
                            algorithm.router_bias_rate > 0;
  if (wants_router && model.moe_layers() == 0) {
    throw ConfigError(
        "algorithm.load_balance_coef = {}, z_loss_coef = {}, router_bias_rate = {}: the model has "
        "no experts",
        algorithm.load_balance_coef, algorithm.z_loss_coef, algorithm.router_bias_rate);
  }
  if (algorithm.router_bias_rate > 0 && !model.selection_bias) {
    throw ConfigError(
        "algorithm.router_bias_rate = {}: routers of family {} have no selection bias",
        algorithm.router_bias_rate, model.family);
  }
  if (model.moe_layers() > 0 && model.top_k == 1 && model.norm_topk) {
    log_warn(
        "each token goes to one expert with a renormalised weight, which is always 1: the router "
        "learns "
        "nothing from the loss");
  }
}

// The optimizer takes the parameters that have gradients, so they must be there before it.
const std::vector<tensor::ParamPtr>& with_gradients(model::Transformer& model) {
  if (!model.gradients_enabled()) model.enable_gradients();
  return model.parameters();
}

}  // namespace

StepTotals::StepTotals(const model::ModelConfig& model, at::Device device)
    : balance(zeros({}, device)), z(zeros({}, device)) {
  if (model.moe_layers() > 0) expert_counts_LE = zeros({model.moe_layers(), model.experts}, device);
}

Updater::Updater(model::Transformer& model, const AlgorithmConfig& algorithm,
                 const OptimizerConfig& optimizer, int64_t total_steps)
    : model_(model),
      algorithm_(algorithm),
      schedule_(optimizer),
      total_steps_(total_steps),
      optimizer_(with_gradients(model), optimizer) {
  check_model(model.config(), algorithm);
  model.set_recompute(algorithm.recompute);
  for (const tensor::ParamPtr& param : model.parameters()) {
    if (param->name.ends_with("selection_bias")) selection_biases_.push_back(param);
  }
}

// Experts' loads over a whole mini-batch, which the balance loss needs before the first backward.
at::Tensor Updater::count_experts(const MiniBatch& batch) const {
  const c10::NoGradGuard no_grad;
  at::Tensor counts_LE =
      zeros({model_.config().moe_layers(), model_.config().experts}, model_.device());
  for (const std::vector<size_t>& chosen :
       pack_micro_batches(batch.views, algorithm_.micro_batch_tokens)) {
    model::ForwardExtras extras;
    extras.want_routes = true;
    model_.forward(pack_rows(batch.views, chosen, model_.device()).batch, &extras);
    add_routes(extras, counts_LE);
  }
  return counts_LE;
}

void Updater::add_routes(const model::ForwardExtras& extras, at::Tensor& counts_LE) const {
  for (size_t l = 0; l < extras.routes_TK.size(); ++l) {
    counts_LE[static_cast<int64_t>(l)].add_(
        tensor::expert_counts(extras.routes_TK[l], model_.config().experts));
  }
}

// The routers' part of a micro-batch's loss; undefined where no coefficient asks for one.
at::Tensor Updater::router_loss(const model::ForwardExtras& extras,
                                const at::Tensor& global_counts_LE, int64_t micro_tokens,
                                int64_t all_tokens, StepTotals& totals) const {
  const model::ModelConfig& config = model_.config();
  const auto all = static_cast<double>(all_tokens);
  at::Tensor loss;
  const auto add = [&](const at::Tensor& term, double coef, at::Tensor& total) {
    total.add_(term.detach());
    loss = loss.defined() ? loss + term * coef : term * coef;
  };
  for (size_t l = 0; l < extras.router_logits_TE.size(); ++l) {
    const at::Tensor& logits_TE = extras.router_logits_TE[l];
    if (algorithm_.load_balance_coef > 0) {
      const bool global = global_counts_LE.defined();
      const at::Tensor counts_E = global
                                      ? global_counts_LE[static_cast<int64_t>(l)]
                                      : tensor::expert_counts(extras.routes_TK[l], config.experts);
      add(load_balance_loss(logits_TE, config.router, counts_E, config.top_k,
                            global ? all : static_cast<double>(micro_tokens), all),
          algorithm_.load_balance_coef, totals.balance);
    }
    if (algorithm_.z_loss_coef > 0)
      add(router_z_loss(logits_TE, all), algorithm_.z_loss_coef, totals.z);
  }
  return loss;
}

void Updater::step(const MiniBatch& batch, const LossFunction& loss_of, StepTotals& totals) {
  totals.lr = scheduled_lr(schedule_, ++counters.tried, total_steps_);
  if (!(batch.counts.trained_tokens > 0)) {
    ++counters.skipped_empty;
    return;
  }
  ++totals.mini_batches;
  totals.trained_tokens += batch.counts.trained_tokens;
  totals.sequences += batch.counts.sequences;

  const bool router_losses = algorithm_.load_balance_coef > 0 || algorithm_.z_loss_coef > 0;
  at::Tensor global_counts_LE;
  if (algorithm_.load_balance_coef > 0 && algorithm_.load_balance_scope == "global") {
    global_counts_LE = count_experts(batch);
  }
  at::Tensor counts_LE;
  if (totals.expert_counts_LE.defined())
    counts_LE = zeros(totals.expert_counts_LE.sizes(), model_.device());

  model_.zero_gradients();
  for (const std::vector<size_t>& chosen :
       pack_micro_batches(batch.views, algorithm_.micro_batch_tokens)) {
    const PackedRows packed = pack_rows(batch.views, chosen, model_.device());
    model::ForwardExtras extras;
    extras.want_routes = counts_LE.defined();
    extras.want_router_logits = router_losses;
    const at::Tensor hidden_TD = model_.forward(packed.batch, &extras);
    // Only rows that predict a trained token go through the head, the largest matrix of a small
    // model.
    const tensor::TokenLogprobs logprobs =
        tensor::token_logprobs(hidden_TD.index_select(0, packed.rows_N), model_.head(),
                               packed.targets_N, packed.temperature, batch.want_entropy);
    at::Tensor loss = loss_of(chosen, logprobs);
    const at::Tensor aux = router_loss(extras, global_counts_LE, packed.batch.tokens_T.size(0),
                                       batch.counts.input_tokens, totals);
    if (aux.defined()) loss = loss + aux;
    loss.backward();
    if (counts_LE.defined()) add_routes(extras, counts_LE);
  }
  if (counts_LE.defined()) totals.expert_counts_LE.add_(counts_LE);

  const Optimizer::Result result = optimizer_.step(totals.lr);
  if (result.skipped) {
    ++counters.skipped_not_finite;
    log_warn("optimizer step {} skipped: the gradient of {} is not finite", counters.tried,
             result.bad_parameter.empty() ? "all parameters together" : result.bad_parameter);
    return;
  }
  ++totals.updates;
  totals.grad_norm += result.grad_norm;
  if (algorithm_.router_bias_rate > 0) move_selection_biases(counts_LE);
}

void Updater::move_selection_biases(const at::Tensor& counts_LE) {
  for (size_t l = 0; l < selection_biases_.size(); ++l) {
    update_selection_bias(selection_biases_[l]->value, counts_LE[static_cast<int64_t>(l)],
                          algorithm_.router_bias_rate);
    selection_biases_[l]->changed();
  }
}

void Updater::add_metrics(const StepTotals& totals, Metrics& metrics) const {
  metrics["optim/lr"] = totals.lr;
  if (totals.updates > 0)
    metrics["optim/grad_norm"] = totals.grad_norm / static_cast<double>(totals.updates);
  metrics["optim/steps_total"] = static_cast<double>(counters.tried);
  metrics["optim/skipped_steps_total"] =
      static_cast<double>(counters.skipped_empty + counters.skipped_not_finite);
  metrics["optim/skipped_empty_total"] = static_cast<double>(counters.skipped_empty);
  metrics["optim/skipped_not_finite_total"] = static_cast<double>(counters.skipped_not_finite);
  if (totals.mini_batches == 0) return;
  const auto mini_batches = static_cast<double>(totals.mini_batches);
  metrics["policy/trained_tokens"] = totals.trained_tokens / mini_batches;
  metrics["policy/sequences"] = static_cast<double>(totals.sequences) / mini_batches;
  if (totals.expert_counts_LE.defined()) add_router_metrics(totals, metrics);
}

void Updater::add_router_metrics(const StepTotals& totals, Metrics& metrics) const {
  const at::Tensor counts_LE = totals.expert_counts_LE.cpu();
  const std::vector<int64_t> moe_index = model_.config().moe_index();
  double worst = 0;
  for (size_t layer = 0; layer < moe_index.size(); ++layer) {
    if (moe_index[layer] < 0) continue;
    const double violation = max_violation(counts_LE[moe_index[layer]]);
    metrics[fmt::format("moe/layer_{}/max_vio", layer)] = violation;
    worst = std::max(worst, violation);
  }
  metrics["moe/max_vio"] = worst;
  const double losses =
      static_cast<double>(counts_LE.size(0)) * static_cast<double>(totals.mini_batches);
  if (algorithm_.load_balance_coef > 0)
    metrics["moe/aux_loss"] = totals.balance.item<double>() / losses;
  if (algorithm_.z_loss_coef > 0) metrics["moe/z_loss"] = totals.z.item<double>() / losses;
}

}  // namespace quadrille::learn
