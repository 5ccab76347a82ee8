// gather_timelines: joins the timelines that all processes recorded.
#ifndef GPIPE_DISTRIBUTED_GATHER_TIMELINES_H_
#define GPIPE_DISTRIBUTED_GATHER_TIMELINES_H_

#include <cstdint>
#include <vector>

#include "gpipe/timeline/step_timeline.h"
#include "gpipe/timeline/timeline.h"
#include "gpipe/world.h"

namespace gpipe {

// Returns timelines as [replica][step]. Each process records its own workers. This joins the steps
// of all processes, in all of them. Times are those of rank 0's clock, and the first step begins at
// 0. A step that failed has the actions that had begun. A replica that had no rows in a step has no
// entry for it: StepTimeline::run tells steps apart. Clocks of several machines are compared during
// this call, so call it soon after the steps.
//
// All processes call it, with a timeline of the same pipeline that was made, or cleared, between
// the same two steps. Throws c10::ValueError, in all processes, if a process of a replica has not
// recorded a step that succeeded in another process of that replica, or if two have recorded the
// same worker. Throws gpipe::distributed::DistributedFailure if a process fails.
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

// For tests: `clock` is the clock by which `steps` were recorded.
std::vector<std::vector<StepTimeline>> gather_timelines(const World& world,
                                                        std::vector<StepTimeline> steps,
                                                        const Clock& clock);

}  // namespace distributed
}  // namespace gpipe

#endif  // GPIPE_DISTRIBUTED_GATHER_TIMELINES_H_
