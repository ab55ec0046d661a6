// How the rooms report numbers without knowing who listens: names are "group/name" as
// docs/metrics.md lists them, one value per step, unit at the end of the name if it has one.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace quadrille {

// The metrics of one step, in name order.
using Metrics = std::map<std::string, double>;

class MetricsSink {
 public:
  virtual ~MetricsSink() = default;
  virtual void write(int64_t step, const Metrics& metrics) = 0;
};

}  // namespace quadrille
