// pipe_options, step_options: a plan as the options of a pipeline and of its steps.
#ifndef BALANCE_CHOOSE_PLAN_OPTIONS_H_
#define BALANCE_CHOOSE_PLAN_OPTIONS_H_

#include <c10/core/Device.h>

#include <vector>

#include "balance/choose/pipeline_plan.h"
#include "gpipe/options.h"

namespace gpipe::balance {

// Balance, chunks, checkpoint modes, placement, shared inputs and whether batch norms are deferred;
// the rest may be set afterwards.
//
// `devices`: of the plan, each of which then has the stages that the placement puts there. None:
// the pipeline's default, which gives each stage a CUDA device of its own if there are any; give
// them where a device has several stages.
//
// Throws std::invalid_argument for another number of devices than the plan's.
//
// Example:
//   PipelinePlan plan = load_plan("plan.json");
//   GPipe pipe(model, pipe_options(plan).cpu_threads_per_stage(2));
//   pipe->step({input}, {target}, loss, step_options(plan));
GPipeOptions pipe_options(const PipelinePlan& plan, const std::vector<c10::Device>& devices = {});

// The schedule. A mini-batch with fewer micro-batches than the plan's, such as the last of an
// epoch, gets the schedule of that name made for it, or the default of the placement if it was
// searched.
StepOptions step_options(const PipelinePlan& plan);

}  // namespace gpipe::balance

#endif  // BALANCE_CHOOSE_PLAN_OPTIONS_H_
