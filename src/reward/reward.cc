#include "reward/reward.h"

#include <toml++/toml.h>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "base/error.h"
#include "reward/verifiers.h"
#include "reward/worker_pool.h"

namespace quadrille::reward {
namespace {

const std::vector<std::string> kKinds = {"exact", "numeric", "regex", "format", "worker"};

void bind_part(RewardPart& p, ConfigBinder& b) {
  b.field("kind", p.kind,
          "exact: the answer field; numeric: the last number against the answer's; regex: pattern "
          "found (its first "
          "group against the answer); format: pattern matches all; worker: a program of yours.",
          kKinds);
  b.field("pattern", p.pattern, "PCRE2 pattern of regex and format.");
  b.field("tolerance", p.tolerance, "Of numeric, relative to the larger of 1 and the answer.");
  b.field("command", p.command,
          "Of worker: program and arguments, e.g. [\"python3\", \"reward.py\"]; docs/rewards.md.");
  b.field("timeout_s", p.timeout_s,
          "Of worker: seconds an answer may take; then it is tried once more, then dropped.");
  b.field("workers", p.workers, "Of worker: processes.");
}

void check(const RewardPart& p, const std::string& where) {
  if (!(p.weight > 0) && !(p.weight < 0))
    throw ConfigError("{}: weight = {} would leave the part out", where, p.weight);
  if (p.kind != "worker") return;
  if (p.command.empty())
    throw ConfigError("{}: kind = \"worker\" needs command, e.g. [\"python3\", \"reward.py\"]",
                      where);
  if (!(p.timeout_s > 0))
    throw ConfigError("{}: timeout_s = {} must be above 0", where, p.timeout_s);
  if (p.workers < 1 || p.workers > 256)
    throw ConfigError("{}: workers = {} must be 1 to 256", where, p.workers);
}

class PartReward {
 public:
  explicit PartReward(const RewardPart& part) : part_(part) {
    if (part.kind == "worker") {
      pool_ = std::make_unique<WorkerPool>(part);
    } else {
      verifier_ = make_verifier(part);
    }
  }

  const RewardPart& part() const { return part_; }

  std::vector<RewardResult> score(std::span<const RewardItem> items) {
    if (pool_) return pool_->score(items);
    std::vector<RewardResult> results;
    results.reserve(items.size());
    for (const RewardItem& item : items) {
      const Verdict verdict = verifier_(item);
      results.push_back({verdict.reward, {}, verdict.error, verdict.extracted});
    }
    return results;
  }

 private:
  RewardPart part_;
  Verifier verifier_;
  std::unique_ptr<WorkerPool> pool_;
};

// The weighted sum of the parts; one that is NaN makes the whole NaN. The answer is that of the
// first part that reads one.
class SumReward final : public Reward {
 public:
  SumReward(const std::vector<RewardPart>& parts, bool named) : named_(named) {
    for (const RewardPart& part : parts) parts_.push_back(std::make_unique<PartReward>(part));
  }

  std::vector<RewardResult> score(std::span<const RewardItem> items) override {
    std::vector<RewardResult> sums(items.size());
    for (const auto& part : parts_) {
      const std::vector<RewardResult> results = part->score(items);
      for (size_t i = 0; i < items.size(); ++i) {
        RewardResult& sum = sums[i];
        sum.reward += static_cast<float>(part->part().weight) * results[i].reward;
        if (named_) sum.parts[part->part().name] = results[i].reward;
        for (const auto& [name, value] : results[i].parts) {
          sum.parts[named_ ? part->part().name + "_" + name : name] = value;
        }
        if (sum.error.empty()) sum.error = results[i].error;
        if (!sum.extracted) sum.extracted = results[i].extracted;
      }
    }
    return sums;
  }

 private:
  bool named_;
  std::vector<std::unique_ptr<PartReward>> parts_;
};

}  // namespace

void bind(RewardConfig& config, ConfigBinder& b) {
  bind_part(config.single, b);
  b.allow_tables("reward", "part");
}

std::vector<RewardPart> read_parts(const std::string& text, const std::string& origin) {
  std::vector<RewardPart> parts;
  const toml::table root = toml::parse(text, origin);
  const toml::array* tables = root["reward"]["part"].as_array();
  if (tables == nullptr) return parts;
  std::set<std::string> names;
  for (const toml::node& node : *tables) {
    const toml::table* table = node.as_table();
    if (table == nullptr) throw UsageError("{}: [[reward.part]] must be a table", origin);
    RewardPart part;
    part.name = fmt::format("part{}", parts.size());
    ConfigBinder binder;
    binder.section("part", "One part of the reward.");
    binder.field("name", part.name, "In metrics: reward/part_<name>_mean.");
    binder.field("weight", part.weight, "In the sum.");
    bind_part(part, binder);
    std::ostringstream one;
    one << toml::table{{"part", *table}};
    binder.read_text(one.str(),
                     fmt::format("{}: [[reward.part]] number {}", origin, parts.size() + 1));
    if (!names.insert(part.name).second)
      throw UsageError("{}: two [[reward.part]] named {}", origin, part.name);
    parts.push_back(std::move(part));
  }
  return parts;
}

std::string parts_to_toml(const RewardConfig& config) {
  std::string out;
  for (RewardPart part : config.parts) {
    ConfigBinder binder;
    binder.section("reward.part", "");
    binder.field("name", part.name, "");
    binder.field("weight", part.weight, "");
    bind_part(part, binder);
    std::string table = binder.to_toml();
    out += "\n[" + table.insert(table.find(']') + 1, "]");
  }
  return out;
}

std::unique_ptr<Reward> make_reward(const RewardConfig& config) {
  if (config.parts.empty()) {
    check(config.single, "[reward]");
    return std::make_unique<SumReward>(std::vector{config.single}, /*named=*/false);
  }
  for (const RewardPart& part : config.parts) check(part, "[[reward.part]] " + part.name);
  return std::make_unique<SumReward>(config.parts, /*named=*/true);
}

}  // namespace quadrille::reward
