// named_choices: the schedules with a name that a pipeline can run as it is.
#ifndef DIAGNOSE_NAMED_CHOICES_H_
#define DIAGNOSE_NAMED_CHOICES_H_

#include <cstdint>
#include <set>
#include <vector>

#include "gpipe/pipeline_setup.h"
#include "gpipe/placement.h"

namespace gpipe::diagnosis {

// Simulated actions that making a schedule may take in all, about 10 ns each.
constexpr int64_t kMostSearchWork = 125'000'000;

// Those that have their stages where `placement` has them, 1F1B first, made for the costs that
// their names stand for (NamedScheduleOptions). Left out are those that search
// (gpipe/schedule/named_schedule.h) and would take longer than kMostSearchWork for these numbers of
// micro-batches together, and a loop with a stage on each worker, which is 1F1B, fill-drain or
// ZB-H1. Empty for a placement that no schedule with a name has.
std::vector<ScheduleChoice> named_choices(const Placement& placement,
                                          const std::set<int64_t>& micro_batches);

}  // namespace gpipe::diagnosis

#endif  // DIAGNOSE_NAMED_CHOICES_H_
