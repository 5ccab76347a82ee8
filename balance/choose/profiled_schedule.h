// profiled_schedule: makes the schedule of a given name for the layers of a profile.
//
// Some schedules are made for the costs of the stages. Those costs are computed here only, so that
// a plan's table can be made again from the plan and the profile. Needs no LibTorch. Internal to
// //balance.
#ifndef BALANCE_CHOOSE_PROFILED_SCHEDULE_H_
#define BALANCE_CHOOSE_PROFILED_SCHEDULE_H_

#include <cstdint>
#include <string>

#include "balance/costs/profile.h"
#include "balance/step/explain.h"
#include "gpipe/schedule/schedule.h"

namespace gpipe::balance {

// Makes the schedule as if every stage cost an equal share of all layers, and every transfer
// carried an output of mean size over the machine's links. Throws as schedule_by_name() does.
Schedule profiled_schedule(const std::string& name, int64_t devices, int64_t stages_per_device,
                           int64_t micro_batches, const Profile& profile,
                           const ExplainOptions& machine);

}  // namespace gpipe::balance

#endif  // BALANCE_CHOOSE_PROFILED_SCHEDULE_H_
