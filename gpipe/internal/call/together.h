// Together: what the processes of a pipeline tell each other around its runs.
#ifndef GPIPE_INTERNAL_CALL_TOGETHER_H_
#define GPIPE_INTERNAL_CALL_TOGETHER_H_

#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "gpipe/internal/processes/call_terms.h"
#include "gpipe/internal/processes/processes.h"
#include "gpipe/options.h"
#include "gpipe/schedule/schedule.h"

namespace gpipe::internal {

// All of these are called within in_call(), by all processes. What all of them find wrong is thrown
// as FoundByAll.

// Compares what a pipeline is made of: everything but the values of parameters, of which each
// process keeps its own.
void agree_on_pipeline(Processes& processes, const std::string& name,
                       const torch::nn::Sequential& module, const GPipeOptions& options,
                       const Placement& placement, int64_t cpu_threads_per_stage);

// What StepOptions say that must be the same everywhere.
void add_terms(const StepOptions& options, CallTerms& terms);

struct CallBegin {
  int64_t rows = 0;
  uint64_t seed = 0;
};
// `first`: the process of the first stage. `name`: of the call.
CallBegin begin_together(Processes& processes, const std::string& name, const CallTerms& terms,
                         int64_t first);

// A seed that rank 0 has drawn; without processes, one that is drawn here.
uint64_t shared_seed(Processes* processes, const std::string& name);

// Compares a schedule that is the caller's own.
void agree_on_schedule(Processes& processes, const Schedule& schedule);

struct CallLosses {
  double total = 0;
  std::vector<double> values;  // [micro-batch]
};
// The end of a call: those of the process of the last stage, which is `last`; others give none.
CallLosses end_together(Processes& processes, const std::string& name,
                        const std::optional<CallLosses>& losses, int64_t last);

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_CALL_TOGETHER_H_
