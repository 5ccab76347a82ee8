#include "balance/choose/plan_setting.h"

#include "balance/cut/partition.h"

namespace gpipe::balance {

std::vector<int64_t> even_cut(const PlanProblem& problem, const PlanSetting& setting,
                              bool recompute) {
  std::vector<double> costs;
  for (const LayerProfile& layer : problem.cuts[setting.cut].profile.layers) {
    costs.push_back(layer.backward + layer.forward * (recompute ? 2 : 1));
  }
  PartitionOptions options;
  options.keep_together = problem.machine.keep_together;
  return partition(costs, setting.schedule.stages(), options);
}

}  // namespace gpipe::balance
