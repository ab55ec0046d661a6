#include "loop/run_checkpoint.h"

#include <ATen/core/grad_mode.h>

#include <array>
#include <ctime>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/export.h"
#include "model/checkpoint_io.h"

namespace quadrille::loop {
namespace {

constexpr const char* kDateFormat = "%Y-%m-%dT%H:%M:%S";

std::string date_text(const std::tm& date) {
  std::array<char, 32> text{};
  return {text.data(), std::strftime(text.data(), text.size(), kDateFormat, &date)};
}

void restore_date(const nlohmann::json& state, const std::filesystem::path& folder,
                  Session& session) {
  if (!state.contains("date")) {
    if (session.chat_template) {
      log_warn("{}: does not say when its run began; a chat template that tells the date tells {}",
               folder.string(), date_text(session.date));
    }
    return;
  }
  const auto text = state.at("date").get<std::string>();
  std::tm date{};
  const char* end = ::strptime(text.c_str(), kDateFormat, &date);
  if (end == nullptr || *end != '\0')
    throw FormatError("{}/state.json: \"{}\" is no date", folder.string(), text);
  date.tm_isdst = -1;  // As local_time() leaves it.
  session.set_date(date);
}

nlohmann::json state_json(const RunState& state, const std::tm& date, const std::string& trainer) {
  return {{"step", state.step},
          {"version", state.version},
          {"next_group_id", state.next_group_id},
          {"sampler", {{"epoch", state.sampler.epoch}, {"position", state.sampler.position}}},
          {"unfinished", state.unfinished},
          {"date", date_text(date)},
          {"trainer", nlohmann::json::parse(trainer)}};
}

}  // namespace

void save_run_state(const std::filesystem::path& checkpoints, const RunState& state,
                    const Session& session, std::optional<double> accuracy) {
  checkpoint::Content content;
  content.step = state.step;
  content.weights = session.trainer->weights();
  content.moments = session.trainer->moments();
  content.state_json = state_json(state, session.date, session.trainer->state_json()).dump();
  content.model_files = checkpoint::model_files(session.model->config(), session.text_folder);
  content.metric = accuracy;
  checkpoint::save(checkpoints, content, session.config.checkpoint);
}

std::optional<RunState> load_run_state(const std::filesystem::path& checkpoints, Session& session) {
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
    session.trainer->load([&](const std::string& name) { return found->tensor(name); },
                          json.at("trainer").dump());
    restore_date(json, found->folder(), session);
    return state;
  } catch (const nlohmann::json::exception& error) {
    throw FormatError("{}/state.json: {}", found->folder().string(), error.what());
  }
}

void load_for_evaluation(const std::filesystem::path& folder, Session& session) {
  const checkpoint::Checkpoint checkpoint(folder);
  const at::NoGradGuard no_grad;
  for (const tensor::ParamPtr& param : session.model->parameters()) {
    const at::Tensor value = checkpoint.tensor(param->name);
    if (value.sizes() != param->value.sizes()) {
      throw FormatError("{}: {} has another shape than the configuration's model", folder.string(),
                        param->name);
    }
    param->value.copy_(value);
    param->changed();
  }
  try {
    restore_date(nlohmann::json::parse(checkpoint.state_json()), folder, session);
  } catch (const nlohmann::json::exception& error) {
    throw FormatError("{}/state.json: {}", folder.string(), error.what());
  }
}

void export_checkpoint(const std::filesystem::path& folder, const std::filesystem::path& output,
                       at::ScalarType dtype) {
  checkpoint::export_model(checkpoint::Checkpoint(folder), output, {.dtype = dtype});
}

}  // namespace quadrille::loop
