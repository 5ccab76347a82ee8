// RunContext: what the cells of one call, and of one run over them, have in common.
//
// A call of step() is one run. A call of forward() is one, and each backward through its outputs is
// another: the plan is the call's and is kept between them.
#ifndef GPIPE_INTERNAL_RUN_CONTEXT_H_
#define GPIPE_INTERNAL_RUN_CONTEXT_H_

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "gpipe/checkpoint.h"
#include "gpipe/internal/caller_state.h"
#include "gpipe/internal/model_state.h"

namespace gpipe::internal {

class ForeignNodes;
class LateChecks;
class TrackedStatistics;
class Transfers;

// What one call of forward() or step() fixes for all of its cells. A value.
struct CellPlan {
  uint64_t step_seed = 0;
  bool record = true;                   // gradients will be asked for
  std::vector<Checkpoint> checkpoints;  // [stage]
  bool defer_batch_norm = false;
  ModelState model;           // at forward
  CallerState forward_state;  // at forward, for recomputes
  // On the calling thread, when the call began: graph nodes made since then are the pipeline's.
  uint64_t thread = 0;
  uint64_t begin = 0;
};

// What torch::autograd::grad, or a backward with a list of inputs, asks for: the gradients of these
// leaves are collected here, and every .grad stays as it is. Each sum is written by the stage that
// owns the leaf.
struct RequestedGradients {
  std::vector<const torch::autograd::Node*> leaves;       // accumulators
  std::vector<at::Tensor> sums;                           // [leaf]; undefined: none arrived
  absl::flat_hash_set<const torch::autograd::Node*> all;  // that were asked for, inputs included
};

// What the cells of one run use beside the plan. It lives as long as the run; what it refers to is
// the pipeline's, or lives as long.
struct RunContext {
  const CellPlan& plan;
  // [stage][micro-batch] the cell's backward is its worker's next action after its forward.
  const std::vector<std::vector<bool>>& follows_at_once;
  const std::vector<int64_t>& first_on_device;  // [stage] the first stage on the same device
  const TrackedStatistics& tracked;             // of the run's start
  ForeignNodes& foreign;
  // For recomputes whose values are not known at once, and what brings them to the host.
  LateChecks& late_checks;
  Transfers& transfers;
  bool on_caller = false;                   // the cells run on the calling thread
  bool keep_graph = false;                  // the backward may run once more
  RequestedGradients* requested = nullptr;  // null: the leaves' .grad gets what arrives
};

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_RUN_CONTEXT_H_
