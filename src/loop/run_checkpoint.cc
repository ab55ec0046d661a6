#include "loop/run_checkpoint.h"

#include <ATen/core/grad_mode.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/export.h"
#include "model/checkpoint_io.h"

namespace quadrille::loop {
namespace {

nlohmann::json state_json(const RunState& state, const std::string& trainer) {
  return {{"step", state.step},
          {"version", state.version},
          {"next_group_id", state.next_group_id},
          {"sampler", {{"epoch", state.sampler.epoch}, {"position", state.sampler.position}}},
          {"unfinished", state.unfinished},
          {"trainer", nlohmann::json::parse(trainer)}};
}

}  // namespace

void save_run_state(const std::filesystem::path& checkpoints, const RunState& state,
                    const Session& session, std::optional<double> accuracy) {
  checkpoint::Content content;
  content.step = state.step;
  content.weights = session.trainer->weights();
  content.moments = session.trainer->moments();
  content.state_json = state_json(state, session.trainer->state_json()).dump();
  content.model_files = checkpoint::model_files(session.model->config(), session.text_folder);
  content.metric = accuracy;
  checkpoint::save(checkpoints, content, session.config.checkpoint);
}

std::optional<RunState> load_run_state(const std::filesystem::path& checkpoints,
                                       learn::Trainer& trainer) {
  const std::optional<checkpoint::Checkpoint> found = checkpoint::load_newest(checkpoints);
  if (!found) return std::nullopt;
  try {
    const nlohmann::json json = nlohmann::json::parse(found->state_json());
    RunState state;
    state.step = json.at("step").get<int64_t>();
    state.version = json.at("version").get<int64_t>();
    state.next_group_id = json.at("next_group_id").get<uint64_t>();
    state.sampler.epoch = json.at("sampler").at("epoch").get<int64_t>();
    state.sampler.position = json.at("sampler").at("position").get<int64_t>();
    state.unfinished = json.at("unfinished").get<Metrics>();
    trainer.load([&](const std::string& name) { return found->tensor(name); },
                 json.at("trainer").dump());
    return state;
  } catch (const nlohmann::json::exception& error) {
    throw FormatError("{}/state.json: {}", found->folder().string(), error.what());
  }
}

void load_checkpoint_weights(const std::filesystem::path& folder, model::Transformer& model) {
  const checkpoint::Checkpoint checkpoint(folder);
  const at::NoGradGuard no_grad;
  for (const tensor::ParamPtr& param : model.parameters()) {
    const at::Tensor value = checkpoint.tensor(param->name);
    if (value.sizes() != param->value.sizes()) {
      throw FormatError("{}: {} has another shape than the configuration's model", folder.string(),
                        param->name);
    }
    param->value.copy_(value);
    param->changed();
  }
}

void export_checkpoint(const std::filesystem::path& folder, const std::filesystem::path& output,
                       at::ScalarType dtype) {
  checkpoint::export_model(checkpoint::Checkpoint(folder), output, {.dtype = dtype});
}

}  // namespace quadrille::loop
