// simulate_again: a real step, simulated, to compare both.
#ifndef GPIPE_TIMELINE_SIMULATE_AGAIN_H_
#define GPIPE_TIMELINE_SIMULATE_AGAIN_H_

#include <optional>

#include "gpipe/schedule/routes.h"
#include "gpipe/timeline/step_timeline.h"

namespace gpipe {

// Simulates the actions of a whole step in the order in which each worker ran them. Each action
// takes the median time of its kind and stage in that step, plus the median recompute of that stage
// if it did recompute. Transfers and the pipeline itself take no time. If the real step is longer,
// the difference was lost to slower micro-batches, to transfers, to waking up, or to other work on
// the machine. The real step can be shorter, too: if most actions of a kind were slow, but those
// that the step waited for were not, the median is above the times that counted.
//
// `routes`: those of the pipeline (GPipe::routes). Without them only neighboring stages wait for
// each other. Returns nullopt for a step that is not whole or has no actions.
std::optional<StepTimeline> simulate_again(const StepTimeline& real,
                                           const std::optional<Routes>& routes);

}  // namespace gpipe

#endif  // GPIPE_TIMELINE_SIMULATE_AGAIN_H_
