// gather_timelines: what the workers of all processes did, as one timeline.
#ifndef GPIPE_DISTRIBUTED_GATHER_TIMELINES_H_
#define GPIPE_DISTRIBUTED_GATHER_TIMELINES_H_

#include <cstdint>
#include <vector>

#include "gpipe/timeline/step_timeline.h"
#include "gpipe/timeline/timeline.h"
#include "gpipe/world.h"

namespace gpipe {

// [replica][step] Each process records its own workers. This puts the steps together, on the clock
// of rank 0, which begins with the first of them; all processes get the whole. Of a step that
// failed there is what had begun. A replica that had no rows in a step has no entry for it:
// StepTimeline::run tells steps apart. Clocks of several machines are compared now, so call it soon
// after the steps.
//
// All processes call it, with a timeline of the same pipeline that was made, or cleared, at the
// same place. Throws c10::ValueError, in all of them, if a process of a replica has recorded
// nothing of a step that went well in another one, or if two have recorded the same worker;
// gpipe::distributed::DistributedFailure if a process fails.
//
// Example:
//   gpipe::Timeline timeline;
//   pipe->step(..., gpipe::StepOptions().on_event(timeline.observer()));
//   const auto replicas = gpipe::gather_timelines(world, timeline);
//   if (world.rank() == 0) {
//     std::ofstream("trace.json") << gpipe::to_chrome_trace(
//         {{"pipeline", replicas[0], pipe->routes()}});
//     std::cout << gpipe::to_text(gpipe::split_time(replicas[0], pipe->routes()));
//   }
std::vector<std::vector<StepTimeline>> gather_timelines(const World& world,
                                                        const Timeline& timeline);

namespace distributed {

struct Clock;

// For tests: with another clock, which is that of `steps`.
std::vector<std::vector<StepTimeline>> gather_timelines(const World& world,
                                                        std::vector<StepTimeline> steps,
                                                        const Clock& clock);

}  // namespace distributed
}  // namespace gpipe

#endif  // GPIPE_DISTRIBUTED_GATHER_TIMELINES_H_
