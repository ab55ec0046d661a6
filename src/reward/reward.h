// Rewards: answers in, numbers out.
//
// A verifier never fails a run: an answer that it cannot judge gets NaN with the reason, leaves its
// group, and is counted. Configuration mistakes (a bad pattern, a command that does not exist)
// throw when the reward is made.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/config.h"

namespace quadrille::reward {

struct RewardItem {
  std::string id;          // Unique within one call.
  std::string prompt;      // As the model saw it, chat template included.
  std::string completion;  // Special tokens left out.
  std::shared_ptr<const nlohmann::ordered_json> row;  // The data set's line, all fields.
};

struct RewardResult {
  float reward = 0;                    // NaN: could not be judged.
  std::map<std::string, float> parts;  // By part name; unweighted.
  std::string error;                   // Why not.
  // The answer that was read from the completion and compared with the row's, for a majority vote;
  // empty if the completion holds none. nullopt: this kind of reward reads none.
  std::optional<std::string> extracted;
};

class Reward {
 public:
  virtual ~Reward() = default;
  // One result an item, in order. Returns within the configured deadlines, whatever a worker does.
  virtual std::vector<RewardResult> score(std::span<const RewardItem> items) = 0;
};

struct RewardPart {
  std::string name = "reward";
  std::string kind = "exact";
  double weight = 1;
  std::string pattern;
  double tolerance = 1e-6;
  std::vector<std::string> command;
  double timeout_s = 10;
  int64_t workers = 2;
};

struct RewardConfig {
  RewardPart single;              // [reward]: used if there are no parts.
  std::vector<RewardPart> parts;  // [[reward.part]]: the reward is their weighted sum.
};

// Binds [reward]; [[reward.part]] tables are let through and read by read_parts.
void bind(RewardConfig& config, ConfigBinder& binder);
// The [[reward.part]] tables of a configuration file's text, checked like any other section.
std::vector<RewardPart> read_parts(const std::string& toml, const std::string& origin);
// The tables as TOML, to be appended to the resolved configuration; empty without parts.
std::string parts_to_toml(const RewardConfig& config);

std::unique_ptr<Reward> make_reward(const RewardConfig& config);

}  // namespace quadrille::reward
