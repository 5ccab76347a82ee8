// to_chrome_trace: timelines in the JSON format of Chrome's tracing, which ui.perfetto.dev opens.
#ifndef GPIPE_TIMELINE_CHROME_TRACE_H_
#define GPIPE_TIMELINE_CHROME_TRACE_H_

#include <optional>
#include <string>
#include <vector>

#include "gpipe/schedule/routes.h"
#include "gpipe/timeline/step_timeline.h"

namespace gpipe {

// A group of tracks in the trace: those of a pipeline, real or simulated.
struct TraceProcess {
  std::string name;
  std::vector<StepTimeline> steps;
  // The routes of the pipeline. Without them, the chain of activations and gradients is assumed.
  std::optional<Routes> routes;
};

// The trace has one process for each entry, with one track for each worker and one for the steps.
// An action is a complete event, "F0.3" with its kind, stage and micro-batch as arguments. A
// recompute is another event within it. A value that goes from one worker to another is an arrow
// (flow events) from the end of the action that made it to the begin of the one that took it. An
// action that threw has "failed" in its name and its arguments.
//
// Throws std::invalid_argument for routes that do not reach all stages.
std::string to_chrome_trace(const std::vector<TraceProcess>& processes);

}  // namespace gpipe

#endif  // GPIPE_TIMELINE_CHROME_TRACE_H_
