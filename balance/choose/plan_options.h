// pipe_options, step_options: turn a plan into the options of a pipeline and of its steps.
#ifndef BALANCE_CHOOSE_PLAN_OPTIONS_H_
#define BALANCE_CHOOSE_PLAN_OPTIONS_H_

#include <c10/core/Device.h>

#include <vector>

#include "balance/choose/pipeline_plan.h"
#include "gpipe/options.h"

namespace gpipe::balance {

// Sets balance, chunks, checkpoint modes, placement, shared inputs and whether batch norms are
// deferred. The caller may set the rest afterwards.
//
// `devices`: one for each device of the plan; it gets the stages that the placement puts there. If
// empty, the pipeline's default holds: each stage gets a CUDA device of its own, if there are any.
// Give devices if the plan has several stages on a device.
//
// Throws std::invalid_argument if the number of devices is not the plan's.
//
// Example:
//   PipelinePlan plan = load_plan("plan.json");
//   GPipe pipe(model, pipe_options(plan).cpu_threads_per_stage(2));
//   pipe->step({input}, {target}, loss, step_options(plan));
GPipeOptions pipe_options(const PipelinePlan& plan, const std::vector<c10::Device>& devices = {});

// Sets the schedule. A mini-batch with fewer micro-batches than the plan's, such as the last one of
// an epoch, gets the schedule of the same name for its number of micro-batches. If the schedule was
// searched, such a mini-batch gets the default schedule of the placement. If the plan has offloads,
// a smaller one gets the plan's own schedule without the micro-batches that are missing, so that it
// needs no more memory.
StepOptions step_options(const PipelinePlan& plan);

}  // namespace gpipe::balance

#endif  // BALANCE_CHOOSE_PLAN_OPTIONS_H_
