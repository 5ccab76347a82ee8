#include "balance/choose/plan_setting.h"

#include "balance/step/cut_costs.h"

namespace gpipe::balance {

std::vector<int64_t> even_cut(const PlanProblem& problem, const PlanSetting& setting,
                              bool recompute) {
  return even_cut(problem.cuts[setting.cut].profile, setting.schedule.stages(),
                  problem.machine.keep_together, recompute);
}

}  // namespace gpipe::balance
