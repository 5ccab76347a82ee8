// Pipeline: the stages of a model, their workers, and the runs over them.
//
// A Pipeline sits between the public module (gpipe/gpipe.h), which checks what users give, and the
// torch-free runtime, which runs schedules. Stages pass tensors on as packets.
#ifndef GPIPE_INTERNAL_RUN_PIPELINE_H_
#define GPIPE_INTERNAL_RUN_PIPELINE_H_

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "gpipe/ablation.h"
#include "gpipe/internal/backward/group_sums.h"
#include "gpipe/internal/backward/leaf_sums.h"
#include "gpipe/internal/batch/caller_inputs.h"
#include "gpipe/internal/batch/micro_batch_loss.h"
#include "gpipe/internal/batch/mini_batch.h"
#include "gpipe/internal/cell/cell.h"
#include "gpipe/internal/cell/late_checks.h"
#include "gpipe/internal/cell/run_context.h"
#include "gpipe/internal/cell/unregistered_leaf.h"
#include "gpipe/internal/model/model_state.h"
#include "gpipe/internal/model/remote_tensors.h"
#include "gpipe/internal/operators/batch_norm.h"
#include "gpipe/internal/operators/statistics_use.h"
#include "gpipe/internal/processes/late_registrations.h"
#include "gpipe/internal/processes/local_parameters.h"
#include "gpipe/internal/processes/stage_map.h"
#include "gpipe/internal/processes/tied_over_processes.h"
#include "gpipe/internal/run/program_cache.h"
#include "gpipe/internal/run/tied_over_devices.h"
#include "gpipe/internal/stage/stage.h"
#include "gpipe/internal/tensors/packet.h"
#include "gpipe/internal/tensors/transfer.h"
#include "gpipe/internal/threads/process_settings.h"
#include "gpipe/internal/threads/stage_work.h"
#include "gpipe/options.h"
#include "gpipe/placement.h"
#include "gpipe/runtime/executor.h"
#include "gpipe/runtime/observer.h"
#include "gpipe/runtime/run_lock.h"
#include "gpipe/runtime/worker_pool.h"
#include "gpipe/schedule/schedule.h"
#include "gpipe/world.h"
#include "skip/layout.h"

namespace gpipe::internal {

class RunTransport;
class StageOffloads;

// One mini-batch on its way through the pipeline. It is made for a step, or for a forward and its
// backwards. It holds values. In a step it also refers to the call's loss function. Once it is
// destroyed, the pipeline keeps nothing of the mini-batch.
struct Pass {
  // The pass has cells for the stages of this process; for all stages if `stage_map` is null.
  Pass(int64_t stages, MiniBatch batch, const StageMap* stage_map = nullptr)
      : mini_batch(std::move(batch)),
        cells(stages),
        outputs(micro_batches()),
        input_gradients(micro_batches()),
        target_gradients(micro_batches()),
        statistics(stages),
        leaf_sums(micro_batches()),
        group_sums(stages) {
    for (int64_t stage = 0; stage < stages; ++stage) {
      if (stage_map == nullptr || stage_map->has_stage(stage)) cells[stage].resize(micro_batches());
    }
  }

  int64_t micro_batches() const { return mini_batch.micro_batches(); }

  MiniBatch mini_batch;
  CellPlan plan;
  CallerInputs inputs;
  std::vector<ProcessSetting> settings;  // those of the forward, if a backward may follow it later
  std::optional<MicroBatchLoss> loss;    // only in a step
  std::vector<std::vector<Cell>> cells;  // [stage][micro-batch]; a stage elsewhere has none
  // The streams on which the stages compute, one for each device of an accelerator: those that were
  // current where forward or step was called, as in autograd.
  std::vector<c10::Stream> streams;
  bool failed = false;  // a run over this pass failed; there can be no other run
  bool keep_outputs = true;
  std::vector<Packet> outputs;            // [micro-batch] what the last stage gives
  std::vector<Packet> input_gradients;    // [micro-batch], after a step
  std::vector<Packet> target_gradients;   // [micro-batch], after a step
  std::vector<StatisticsLog> statistics;  // [stage]
  std::vector<LeafSums> leaf_sums;        // [micro-batch]
  std::vector<GroupSums> group_sums;      // [stage]
};

// A request of autograd to the backward half of a pass.
struct BackwardRequest {
  std::vector<at::Tensor> output_gradients;     // [output] of the mini-batch
  bool keep_graph = false;                      // the backward half may run once more
  std::optional<RequestedGradients> requested;  // none: the leaves' .grad gets what arrives
};

// Thread-safety: thread-safe; runs of several threads follow one another.
class Pipeline {
 public:
  // `placement`, `cpu_threads_per_stage`, `graphs` and `world` are as in GPipeOptions. `layout` has
  // the skips of the whole model.
  Pipeline(std::vector<std::vector<Layer>> partitions, std::vector<c10::Device> devices,
           const skip::Layout& layout, int64_t cpu_threads_per_stage, const Placement& placement,
           const Ablation& ablation = {}, bool graphs = false, World world = World());

  int64_t stages() const { return static_cast<int64_t>(stages_.size()); }
  const StageMap& stage_map() const { return stage_map_; }
  bool has_first_stage() const { return stage_map_.has_stage(0); }
  bool has_last_stage() const { return stage_map_.has_stage(stages() - 1); }
  // The number of a process within its replica.
  int64_t process_of_first_stage() const { return stage_map_.process_of_stage(0); }
  int64_t process_of_last_stage() const { return stage_map_.process_of_stage(stages() - 1); }
  const Routes& routes() const { return programs_.routes(); }

  // The parameters that stages of several processes share. Parameters that only devices of one
  // process share are not here: see TiedOverDevices.
  TiedOverProcesses& tied_over_processes() { return tied_over_processes_; }
  // The lock that runs hold, and calls that must come between runs (BetweenRuns).
  RunLock& run_lock() const { return run_lock_; }
  LateRegistrations& late_registrations() { return late_registrations_; }
  // Whether a call failed that may have changed the parameters of some replicas and not of others.
  // Each process sets it for itself, and all have the same value. It is set after one exchange of
  // the call and reset after the call's last exchange; no code that may throw comes between an
  // exchange and it; and an exchange succeeds in all processes or in none
  // (docs/design/processes.md).
  bool replicas_may_differ() const { return replicas_may_differ_; }
  void set_replicas_may_differ(bool value) { replicas_may_differ_ = value; }

  // Returns what GPipe::local_parameters() returns.
  std::vector<at::Tensor> local_parameters() const;

  // The layers' parameters, buffers and modes as they are now. Must not be called during a run.
  ModelState model_state() const;

  // Throws, saying what to do, if no run is possible: std::logic_error in a forked child;
  // c10::ValueError if a layer's skips have been moved (Skippable::isolate); c10::Error if a
  // recompute of an earlier call turns out to have given other values than its forward (see
  // late_checks.h).
  void check_callable();
  void check_late() { late_checks_.look(); }

  // Run all forwards (inputs -> outputs), or all backwards. run_backward() returns the gradients of
  // the inputs: [micro-batch]. It throws c10::Error if the caller has changed, since the forward,
  // something that the backward needs.
  void run_forward(Pass& pass);
  std::vector<Packet> run_backward(Pass& pass, BackwardRequest& request);
  // Runs forward, loss and backward in the order of `schedule`. Throws c10::ValueError if the
  // schedule does not fit, and under `check_finite` (as in StepOptions) for the first value that is
  // not finite.
  void run_step(Pass& pass, const Schedule& schedule, const Observer& observer,
                bool check_finite = false);
  // Runs the forwards and the loss only, in the order of `schedule`. Otherwise like run_step().
  void run_evaluation(Pass& pass, const Schedule& schedule, const Observer& observer,
                      bool check_finite = false);

  // The use of graphs by stage; empty without graphs. Must not be called during a run.
  std::vector<GraphUse> graph_use() const;

  // Whether this function is called for the first time, for a warning that is given once.
  bool first_step_in_eval() { return !step_in_eval_.exchange(true); }

  // Returns the warning about a leaf that no layer has registered, once; empty if there is none.
  std::string unregistered_leaf_text();

  // The place of the last error in an action.
  std::optional<Failure> last_failure() const;

 private:
  struct Run;

  using Half = ProgramCache::Half;
  // `request`: for a backward, otherwise null.
  void run(Pass& pass, const Schedule& schedule, Half half, BackwardRequest* request,
           const Observer& observer, bool check_finite = false);
  // The parts of run() before its first cell and after its last one. end_run() returns what the run
  // throws; null if it succeeded.
  void begin_stages(TrackedStatistics& tracked);
  // Lets the stages offload cells if the schedule says so.
  void begin_offloads(const Schedule& schedule, RunContext& context);
  std::exception_ptr end_run(Pass& pass, Half half, const BackwardRequest* request,
                             const std::vector<c10::Stream>& of_caller, RunTransport& transport,
                             const std::optional<RunFailure>& failure);
  // GPipe's schedule on the placement, for a forward and for the backward that may follow it later.
  Schedule fill_drain(int64_t micro_batches) const;
  // The exception that the caller gets: the error with its place in the message. Records the place.
  std::exception_ptr describe(const RunFailure& failure);

  // Makes the updates of running statistics that were logged during the run.
  void commit_statistics(Pass& pass);
  // Checks what a step and an evaluation require of a schedule, and of a model under check_finite.
  // `gradients`: whether the run will add to the parameters' gradients.
  void check_step(const Pass& pass, const Schedule& schedule, bool check_finite,
                  bool gradients) const;
  // Under check_finite: throws for a gradient that is infinite although each of its terms was
  // finite.
  static void check_after_step(const Pass& pass);
  // Throws c10::ValueError for groups of gradients, which need terms in the order of micro-batches.
  static void check_sums(const Pass& pass, Half half, const ProgramCache::Compiled& compiled);
  // Throws c10::ValueError if the schedule has offloads that are not possible here.
  void check_offloads(const Schedule& schedule) const;
  TiedOverDevices::Partitions partitions() const;

  // Tells known_parameters_ which parameters are here now, because layers may have registered more.
  void know_parameters(const ModelState& model);

  // Throws c10::Error if a recompute would see other parameters, modes or inputs than the forward
  // saw.
  void check_unchanged(Pass& pass) const;

  // The calling thread's current streams on all devices of the stages' device types.
  std::vector<c10::Stream> streams_of_caller() const;
  // Throws c10::Error if this is a thread that the stages' backward may wait for.
  void check_backward_thread() const;
  // After a run, even if it failed: makes the caller's own streams wait for the run's.
  void give_back(const Pass& pass, const BackwardRequest* request,
                 const std::vector<c10::Stream>& of_caller);

  const Placement placement_;
  const World world_;
  const StageMap stage_map_;
  TiedOverProcesses tied_over_processes_;
  LateRegistrations late_registrations_;
  bool replicas_may_differ_ = false;
  RemoteTensors remote_tensors_;  // the tensors of all stages in other processes
  // [records] Whether a run may use remote tensors: true until a run has shown that it does not.
  // Guarded by run_lock_.
  std::array<bool, 2> may_use_remote_{true, true};
  TiedOverDevices
      tied_over_devices_;  // empty over processes: all stages of a process are on one device
  const Ablation ablation_;
  // The stages of all processes. Stages of other processes have layers without memory, and never
  // run.
  std::vector<Stage> stages_;
  std::vector<Action> actions_;       // [stage] the last action that began; written by its worker
  std::deque<StageWork> works_;       // [stage]
  std::vector<c10::Device> devices_;  // [stage]
  StatisticsUse statistics_use_;
  // [stage] The first stage of the same process on the same device.
  std::vector<int64_t> first_on_device_;
  Transfers transfers_;
  LateChecks late_checks_;
  bool workers_have_teams_ = false;       // each worker has a team of OpenMP threads
  std::vector<uint64_t> worker_threads_;  // [thread of the pool] its id in autograd's nodes
  std::unique_ptr<WorkerPool> pool_;

  RunLock& run_lock_;      // the lock of tied_over_devices_: one run at a time
  ProgramCache programs_;  // guarded by run_lock_
  std::chrono::steady_clock::duration last_run_{};  // the last run's time; guarded by run_lock_

  std::optional<LocalParameters> known_parameters_;  // none if the pipeline is in one process
  UnregisteredLeaf unregistered_leaf_;
  std::atomic<bool> step_in_eval_{false};  // see first_step_in_eval()
  mutable std::mutex failure_mutex_;
  std::optional<Failure> last_failure_;  // guarded by failure_mutex_
  // [stage] Null until a schedule has offloads.
  std::shared_ptr<std::vector<std::unique_ptr<StageOffloads>>> offloads_;
};

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_RUN_PIPELINE_H_
