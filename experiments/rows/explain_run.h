// explain_run: finds out for --explain where the time of a variant's step goes, and what to change.
#ifndef GPIPE_EXPERIMENTS_ROWS_EXPLAIN_RUN_H_
#define GPIPE_EXPERIMENTS_ROWS_EXPLAIN_RUN_H_

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>

#include "experiments/frame/program.h"
#include "experiments/frame/report.h"
#include "experiments/frame/trainer.h"
#include "gpipe/schedule/schedule.h"

namespace gpipe::experiments {

// Diagnoses (diagnose/diagnose.h) steps of a pipeline on this mini-batch, writes the result for
// people to context.out, and returns it as JSON for an outcome's settings. If the trainer is not a
// pipeline, it writes that and returns null. The trainer's model is left as it was.
//
// `loss` is the task's (see Task). `param_scale` is how many times its size training keeps of a
// parameter (balance::ParamScale): 2 with its gradient, more with the state of an optimizer. Setups
// that are predicted not to fit the devices are not advised. After Ctrl-C it stops before the next
// part of the measurements and returns null. Throws what diagnose() throws.
Json explain_run(Trainer& trainer, const at::Tensor& input, const at::Tensor& target,
                 const std::function<at::Tensor(const at::Tensor&, const at::Tensor&)>& loss,
                 const ScheduleGenerator& schedule, double param_scale, const std::string& title,
                 const RunContext& context);

}  // namespace gpipe::experiments

#endif  // GPIPE_EXPERIMENTS_ROWS_EXPLAIN_RUN_H_
