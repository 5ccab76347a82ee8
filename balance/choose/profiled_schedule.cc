#include "balance/choose/profiled_schedule.h"

#include <algorithm>
#include <vector>

#include "gpipe/schedule/named_schedule.h"
#include "gpipe/schedule/search/generators.h"

namespace gpipe::balance {
namespace {

// The costs of one of `stages` equal stages.
GeneratorCosts mean_costs(const Profile& profile, int64_t stages, const ExplainOptions& machine) {
  GeneratorCosts costs{{0, 0, 0, 0}, 0};
  double bytes = 0;
  const auto share = static_cast<double>(stages);
  for (const LayerProfile& layer : profile.layers) {
    const SplitBackward halves = split_backward(layer);
    costs.stage.forward += layer.forward / share;
    costs.stage.backward += layer.backward / share;
    costs.stage.input_gradient += halves.input / share;
    costs.stage.weight_gradient += halves.weight / share;
    bytes += static_cast<double>(layer.output) / static_cast<double>(profile.layers.size());
  }
  if (!(costs.stage.forward + costs.stage.backward > 0)) return GeneratorCosts();
  costs.transfer = machine.seconds(bytes);
  return costs;
}

}  // namespace

Schedule profiled_schedule(const std::string& name, int64_t devices, int64_t stages_per_device,
                           int64_t micro_batches, const Profile& profile,
                           const ExplainOptions& machine) {
  const int64_t stages = devices * stages_per_device;
  NamedScheduleOptions options;
  // A schedule that has all stages on one worker takes no number of stages.
  const std::vector<NamedSchedule>& all = named_schedules();
  const bool one_worker = std::any_of(all.begin(), all.end(), [&](const NamedSchedule& named) {
    return named.name == name && named.shape == PlacementShape::kOneWorker;
  });
  if (!one_worker) options.stages_per_worker = stages_per_device;
  options.costs = mean_costs(profile, stages, machine);
  return schedule_by_name(name, stages, micro_batches, options);
}

}  // namespace gpipe::balance
