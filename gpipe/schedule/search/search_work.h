// search_work: how much work it is to make a schedule by its name.
//
// Internal: for callers that make many schedules and have little time.
#ifndef GPIPE_SCHEDULE_SEARCH_SEARCH_WORK_H_
#define GPIPE_SCHEDULE_SEARCH_SEARCH_WORK_H_

#include <cstdint>
#include <string_view>

#include "gpipe/schedule/named_schedule.h"

namespace gpipe::internal {

// How many simulated actions (about 10 ns each) schedule_by_name() tries at most, when it makes the
// schedule for the first time: 0 for schedules that follow rules. Throws as schedule_by_name()
// does.
int64_t search_work(std::string_view name, int64_t stages, int64_t micro_batches,
                    const NamedScheduleOptions& options = {});

}  // namespace gpipe::internal

#endif  // GPIPE_SCHEDULE_SEARCH_SEARCH_WORK_H_
