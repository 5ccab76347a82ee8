#include "gpipe/timeline/simulate_again.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <stdexcept>
#include <utility>
#include <vector>

#include "gpipe/schedule/schedule.h"
#include "gpipe/schedule/simulate.h"

namespace gpipe {
namespace {

using Key = std::pair<ActionKind, int32_t>;          // kind and stage
using Samples = std::map<Key, std::vector<double>>;  // nanoseconds

// Returns the medians. For an even number of values, it takes the upper one of the two middle
// values.
std::map<Key, double> medians_of(Samples&& samples) {
  std::map<Key, double> medians;
  for (auto& [key, values] : samples) {
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    medians[key] = *middle;
  }
  return medians;
}

}  // namespace

std::optional<StepTimeline> simulate_again(const StepTimeline& real,
                                           const std::optional<Routes>& routes) {
  Samples work;
  Samples recompute;
  std::set<Action> recomputed;
  std::vector<std::vector<Action>> workers;
  int32_t stages = 0;
  int32_t micro_batches = 0;
  for (const std::vector<TimelineAction>& worker : real.workers) {
    std::vector<Action>& actions = workers.emplace_back();
    for (const TimelineAction& ran : worker) {
      const Action& action = ran.action;
      stages = std::max(stages, action.stage + 1);
      micro_batches = std::max(micro_batches, action.micro_batch + 1);
      const Key key = {action.kind, action.stage};
      work[key].push_back(static_cast<double>(ran.end - ran.begin - ran.recompute()));
      if (ran.recompute() > 0) {
        recompute[key].push_back(static_cast<double>(ran.recompute()));
        recomputed.insert(action);
      }
      actions.push_back(action);
    }
  }
  if (stages == 0 || !real.whole(routes ? routes->stages() : stages)) return std::nullopt;
  const std::map<Key, double> works = medians_of(std::move(work));
  const std::map<Key, double> recomputes = medians_of(std::move(recompute));
  const auto recompute_of = [&](const Action& action) {
    return recomputed.count(action) > 0 ? recomputes.at({action.kind, action.stage}) : 0;
  };
  SimulateOptions options;
  options.action = [&](const Action& action) {
    return works.at({action.kind, action.stage}) + recompute_of(action);
  };
  try {
    const Schedule schedule = Schedule::create(stages, micro_batches, std::move(workers));
    const Simulation simulation =
        routes ? simulate(schedule, *routes, options) : simulate(schedule, options);
    return to_timeline(simulation, 1e-9, recompute_of);
  } catch (const std::invalid_argument&) {  // the step has micro-batches that no stage ran
    return std::nullopt;
  }
}

}  // namespace gpipe
