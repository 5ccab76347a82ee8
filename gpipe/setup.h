// pipe_options, step_options: turn a PipelineSetup into the options of a pipeline and of its steps.
// balance/choose/plan_options.h does it for a plan.
#ifndef GPIPE_SETUP_H_
#define GPIPE_SETUP_H_

#include <c10/core/Device.h>

#include <vector>

#include "gpipe/options.h"
#include "gpipe/pipeline_setup.h"  // IWYU pragma: export

namespace gpipe {

// Sets what the setup has. The caller may set the rest afterwards. `devices` as in GPipeOptions.
//
//   GPipe pipe(model, pipe_options(setup).cpu_threads_per_stage(2));
//   pipe->step({input}, {target}, loss, step_options(setup));
inline GPipeOptions pipe_options(const PipelineSetup& setup,
                                 const std::vector<c10::Device>& devices = {}) {
  return GPipeOptions(setup.balance)
      .devices(devices)
      .chunks(setup.chunks)
      .shared_inputs(setup.shared_inputs)
      .partition_checkpoints(setup.checkpoints)
      .ablation({setup.direct_skips});
}

inline StepOptions step_options(const PipelineSetup& setup) {
  return StepOptions().schedule(setup.schedule.make);
}

}  // namespace gpipe

#endif  // GPIPE_SETUP_H_
