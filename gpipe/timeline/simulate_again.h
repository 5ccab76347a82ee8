// simulate_again: a real step beside what its schedule could be.
#ifndef GPIPE_TIMELINE_SIMULATE_AGAIN_H_
#define GPIPE_TIMELINE_SIMULATE_AGAIN_H_

#include <optional>

#include "gpipe/schedule/routes.h"
#include "gpipe/timeline/step_timeline.h"

namespace gpipe {

// The actions of a whole step in the order in which each worker ran them, simulated: each takes the
// median of its kind and stage in that step, and of what that stage recomputes if it did recompute;
// transfers and the pipeline itself take no time. What is longer in the real one was lost to other
// micro-batches' being slower, to transfers, to waking up, or to what else ran on the machine. It
// can be shorter, too: where most actions of a kind were slow and those that the step waited for
// were not, the median is above what counted.
//
// `routes`: the pipeline's (GPipe::routes); without them only neighboring stages wait for each
// other. Nothing for a step that is not whole or has no actions.
std::optional<StepTimeline> simulate_again(const StepTimeline& real,
                                           const std::optional<Routes>& routes);

}  // namespace gpipe

#endif  // GPIPE_TIMELINE_SIMULATE_AGAIN_H_
