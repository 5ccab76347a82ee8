// Call agreement: the messages that the processes of a pipeline exchange before and after its runs.
#ifndef GPIPE_INTERNAL_CALL_CALL_AGREEMENT_H_
#define GPIPE_INTERNAL_CALL_CALL_AGREEMENT_H_

#include <c10/core/DeviceType.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/ordered_dict.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "gpipe/internal/processes/call_terms.h"
#include "gpipe/internal/processes/late_registrations.h"
#include "gpipe/internal/processes/processes.h"
#include "gpipe/options.h"
#include "gpipe/schedule/schedule.h"
#include "gpipe/world.h"

namespace gpipe::internal {

class Pipeline;

// All processes call these functions, within in_call(). An error that all of them find is thrown as
// FoundByAll.

// Compares all that a pipeline is made of, except the values of parameters, because each process
// has its own parameters.
void agree_on_pipeline(Processes& processes, const std::string& name,
                       const torch::nn::Sequential& module, const GPipeOptions& options,
                       const Placement& placement, c10::DeviceType device,
                       int64_t cpu_threads_per_stage);

// Adds the parts of StepOptions that must be the same everywhere.
void add_terms(const StepOptions& options, CallTerms& terms);

struct CallBegin {
  int64_t rows = 0;
  uint64_t seed = 0;
  std::string changed_tied_parameters;
  std::vector<std::string> trained_tied_parameters;  // [rank]
};
// Begins a call: exchanges and compares the terms of all processes. `first`: the process of the
// first stage, in each replica. `chunks`: the number for all replicas. `name`: the name of the
// call.
CallBegin agree_at_begin(const World& world, const std::string& name, const CallTerms& terms,
                         int64_t first, int64_t chunks);

// The weights of the micro-batches of all replicas, in the replicas' order. The last stage is in
// process `last` of each replica. `own`: the weights here; empty unless the last stage is here.
std::vector<double> weights_of_all(const World& world, const std::string& name,
                                   const std::vector<double>& own, int64_t last);

// Returns a seed that rank 0 has drawn. Without processes, it is drawn here.
uint64_t shared_seed(Processes* processes, const std::string& name);

// Compares the caller's own schedule within each replica, because other replicas may have fewer
// micro-batches.
void agree_on_schedule(const World& world, const std::string& name, const Schedule& schedule);

// Compares the values of parameters and buffers between replicas. They must be equal before the
// first step. `named`: the tensors of the whole model; a tensor on meta is in another process.
void agree_on_values(const World& world, const std::string& name,
                     const torch::OrderedDict<std::string, at::Tensor>& named);

// Compares the model's parameters as agree_on_values() does, if a ZeroOptimizer::step has failed
// that may have updated some of the replicas (Pipeline::replicas_may_differ). Each call that uses
// or changes parameters begins with it.
void agree_after_failed_update(const World& world, const std::string& name, Pipeline& pipeline,
                               const torch::nn::Module& model);

struct CallLosses {
  std::vector<double> values;  // [micro-batch]
  std::vector<double> shares;  // share of each loss in the mini-batch
};
// Ends a call. Returns the losses of all replicas, in the replicas' order. The last stage is in
// process `last` of each replica, which gives its `losses`; others give none. Afterwards all
// processes know what layers have registered in the call.
CallLosses agree_at_end(const World& world, const std::string& name,
                        const std::optional<CallLosses>& losses, int64_t last,
                        LateRegistrations& registrations);

// Begins a call that takes all parameters by their names, and compares its arguments. Afterwards
// all processes know what layers have registered since the last call that succeeded, e.g. in a step
// that failed. So the names are the same in all processes.
void agree_on_names(const World& world, const std::string& name, const std::string& arguments,
                    LateRegistrations& registrations);

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_CALL_CALL_AGREEMENT_H_
