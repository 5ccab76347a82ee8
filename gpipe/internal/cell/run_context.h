// RunContext: what the cells of one call, and of one run over them, have in common.
//
// A call of step() is one run. A call of forward() is one run, and each backward through its
// outputs is another. The plan belongs to the call and is kept between its runs.
#ifndef GPIPE_INTERNAL_CELL_RUN_CONTEXT_H_
#define GPIPE_INTERNAL_CELL_RUN_CONTEXT_H_

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "gpipe/checkpoint.h"
#include "gpipe/internal/model/model_state.h"
#include "gpipe/internal/threads/caller_state.h"

namespace gpipe::internal {

class ForeignNodes;
class RemoteTensors;
class LateChecks;
class StageOffloads;
class TrackedStatistics;
class Transfers;
class UnregisteredLeaf;

// The settings of one call of forward() or step() for all of its cells. A value type.
struct CellPlan {
  uint64_t step_seed = 0;
  // The number, in the mini-batch of all replicas, of the first micro-batch here.
  int64_t first_micro_batch = 0;
  int64_t group_size = 0;    // micro-batches in each group of GPipeOptions::groups; 0: no groups
  int64_t groups_each = 0;   // number of groups of each replica
  bool in_replicas = false;  // other replicas have micro-batches, too
  bool record = true;        // gradients will be asked for
  std::vector<Checkpoint> checkpoints;  // [stage]
  bool defer_batch_norm = false;
  ModelState model;           // the model's state at the forward
  CallerState forward_state;  // the caller's state at the forward, for recomputes
  // The calling thread, and its next sequence number when the call began: graph nodes made there
  // since then are the pipeline's.
  uint64_t thread = 0;
  uint64_t begin = 0;

  // The number of a micro-batch here in the mini-batch of all replicas, and its group.
  int64_t number_of(int64_t micro_batch) const { return first_micro_batch + micro_batch; }
  int64_t group_of(int64_t micro_batch) const { return number_of(micro_batch) / group_size; }
};

// The request of torch::autograd::grad, or of a backward with a list of inputs. The gradients of
// these leaves are collected here, and every .grad stays as it is. Each sum is written by the stage
// that owns the leaf.
struct RequestedGradients {
  std::vector<const torch::autograd::Node*> leaves;       // accumulators
  std::vector<at::Tensor> sums;                           // [leaf]; undefined: nothing has arrived
  absl::flat_hash_set<const torch::autograd::Node*> all;  // asked-for nodes, inputs included
};

// The time that a stage's action spent on making graphs again. If both times are equal, it made
// none.
struct RecomputeTime {
  std::chrono::steady_clock::time_point begin{};
  std::chrono::steady_clock::time_point end{};
};

// The objects that the cells of one run use besides the plan. The context lives as long as the run.
// The objects belong to the pipeline or live as long as the run.
struct RunContext {
  const CellPlan& plan;
  // [stage][micro-batch] whether the cell's backward is its worker's next action after its forward.
  const std::vector<std::vector<bool>>& follows_at_once;
  const std::vector<bool>& forwards_ascend;     // [stage] as in ProgramCache::Compiled
  const std::vector<int64_t>& first_on_device;  // [stage] the first stage on the same device
  const TrackedStatistics& tracked;             // the statistics as of the start of the run
  ForeignNodes& foreign;
  // `late_checks` is for recomputes whose values are not known at once. `transfers` bring the
  // answers to the host.
  LateChecks& late_checks;
  Transfers& transfers;
  const std::vector<uint64_t>& worker_threads;       // thread numbers, as graph nodes have them
  bool on_caller = false;                            // the cells run on the calling thread
  bool keep_graph = false;                           // the backward may run once more
  bool check_finite = false;                         // as in StepOptions
  UnregisteredLeaf* unregistered = nullptr;          // null: not recorded
  const RemoteTensors* remote_tensors = nullptr;     // null: uses of them are not watched
  RequestedGradients* requested = nullptr;           // null: gradients go to the leaves' .grad
  std::vector<RecomputeTime>* recomputes = nullptr;  // [stage]; null: not observed
  // [stage] The memory of cells on its way to the host and back; null: the schedule has no
  // offloads.
  const std::vector<std::unique_ptr<StageOffloads>>* offloads = nullptr;
};

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_CELL_RUN_CONTEXT_H_
