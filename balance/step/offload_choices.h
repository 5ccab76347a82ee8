// offload_choices: the schedules with offloads that offloaded_schedule() chooses from.
//
// Needs no LibTorch. Internal to //balance; balance/step/explain.h is for users, and explain.cc has
// both, because they take costs and bytes from explain()'s own model.
#ifndef BALANCE_STEP_OFFLOAD_CHOICES_H_
#define BALANCE_STEP_OFFLOAD_CHOICES_H_

#include <cstdint>
#include <vector>

#include "balance/costs/profile.h"
#include "balance/step/explain.h"
#include "gpipe/schedule/schedule.h"

namespace gpipe::balance {

// The schedule with which the fullest worker needs the least memory comes first: that of
// offloaded_schedule(). Those behind it are faster, each with the least memory of those that are as
// fast. Empty: offloads lower nothing.
std::vector<Schedule> offload_choices(const Profile& profile, const std::vector<int64_t>& balance,
                                      const ExplainOptions& options, double more_time,
                                      const std::vector<int64_t>& most);

}  // namespace gpipe::balance

#endif  // BALANCE_STEP_OFFLOAD_CHOICES_H_
