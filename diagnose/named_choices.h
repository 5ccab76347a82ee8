// named_choices: the named schedules that a pipeline can run as it is.
#ifndef DIAGNOSE_NAMED_CHOICES_H_
#define DIAGNOSE_NAMED_CHOICES_H_

#include <cstdint>
#include <set>
#include <vector>

#include "gpipe/pipeline_setup.h"
#include "gpipe/placement.h"

namespace gpipe::diagnosis {

// The most simulated actions, about 10 ns each, that making a schedule may take in all.
constexpr int64_t kMostSearchWork = 125'000'000;

// The named schedules that have their stages where `placement` has them, 1F1B first, made for the
// default costs (NamedScheduleOptions). Left out are schedules that search
// (gpipe/schedule/named_schedule.h) and would take more than kMostSearchWork for these numbers of
// micro-batches together, and loops with a stage on each worker, which are 1F1B, fill-drain or
// ZB-H1. Empty for a placement that no named schedule has.
std::vector<ScheduleChoice> named_choices(const Placement& placement,
                                          const std::set<int64_t>& micro_batches);

}  // namespace gpipe::diagnosis

#endif  // DIAGNOSE_NAMED_CHOICES_H_
