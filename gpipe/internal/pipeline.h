// Pipeline: the stages of a model, their workers, and the runs over them.
//
// It sits between the public module (gpipe/gpipe.h), which checks what users give, and the
// torch-free runtime, which runs schedules. It knows tensors only as packets.
#ifndef GPIPE_INTERNAL_PIPELINE_H_
#define GPIPE_INTERNAL_PIPELINE_H_

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "gpipe/internal/batch_norm.h"
#include "gpipe/internal/caller_inputs.h"
#include "gpipe/internal/cell.h"
#include "gpipe/internal/late_checks.h"
#include "gpipe/internal/leaf_sums.h"
#include "gpipe/internal/micro_batch_loss.h"
#include "gpipe/internal/mini_batch.h"
#include "gpipe/internal/model_state.h"
#include "gpipe/internal/packet.h"
#include "gpipe/internal/program_cache.h"
#include "gpipe/internal/run_context.h"
#include "gpipe/internal/stage.h"
#include "gpipe/internal/transfer.h"
#include "gpipe/options.h"
#include "gpipe/runtime/executor.h"
#include "gpipe/runtime/observer.h"
#include "gpipe/runtime/run_lock.h"
#include "gpipe/runtime/worker_pool.h"
#include "gpipe/schedule/schedule.h"
#include "skip/layout.h"

namespace gpipe::internal {

// One mini-batch on its way through the pipeline: made for a step or a forward, whose backwards use
// it, too. It holds values only; when it is destroyed, nothing of the mini-batch is left.
struct Pass {
  Pass(int64_t stages, MiniBatch cut)
      : mini_batch(std::move(cut)),
        cells(stages),
        outputs(micro_batches()),
        input_gradients(micro_batches()),
        target_gradients(micro_batches()),
        statistics(stages),
        leaf_sums(micro_batches()) {
    for (std::vector<Cell>& row : cells) row.resize(micro_batches());
  }

  int64_t micro_batches() const { return mini_batch.micro_batches(); }

  MiniBatch mini_batch;
  CellPlan plan;
  CallerInputs inputs;
  std::optional<MicroBatchLoss> loss;    // of a step
  std::vector<std::vector<Cell>> cells;  // [stage][micro-batch]
  // Where the stages compute: on what was current where the forward was called, as autograd does.
  // One for each device of an accelerator.
  std::vector<c10::Stream> streams;
  bool failed = false;  // a run over it did, so no other one is possible
  bool keep_outputs = true;
  std::vector<Packet> outputs;            // [micro-batch], of the last stage
  std::vector<Packet> input_gradients;    // [micro-batch], after a step
  std::vector<Packet> target_gradients;   // the same
  std::vector<StatisticsLog> statistics;  // [stage]
  std::vector<LeafSums> leaf_sums;        // [micro-batch]
};

// What autograd asks of the backward half of a pass.
struct BackwardRequest {
  std::vector<at::Tensor> output_gradients;     // [output] of the mini-batch
  bool keep_graph = false;                      // the backward half may run once more
  std::optional<RequestedGradients> requested;  // none: the leaves' .grad gets what arrives
};

// Thread-safe: runs of several threads follow one another.
class Pipeline {
 public:
  // `cpu_threads_per_stage` as in GPipeOptions. `layout` has the skips of the whole model.
  Pipeline(std::vector<std::vector<Layer>> partitions, std::vector<c10::Device> devices,
           const skip::Layout& layout, int64_t cpu_threads_per_stage);

  int64_t stages() const { return static_cast<int64_t>(stages_.size()); }

  // The layers' parameters, buffers and modes as they are now. Not beside a run.
  ModelState model_state() const;

  // Throws, with what to do, where no run is possible: std::logic_error in a forked child,
  // c10::ValueError where the skips of a layer have been moved (Skippable::isolate), c10::Error
  // where a recompute of an earlier call turns out to have been another function's (see
  // late_checks.h).
  void check_callable();
  void check_late() { late_checks_.look(); }

  // Runs all forwards (inputs -> outputs), or all backwards; those return the gradients of the
  // inputs: [micro-batch]. A backward throws c10::Error
  // if the caller changed what it needs since the forward.
  void run_forward(Pass& pass);
  std::vector<Packet> run_backward(Pass& pass, BackwardRequest& request);
  // Runs forward, loss and backward as `schedule` says. Throws c10::ValueError if it does not fit.
  void run_step(Pass& pass, const Schedule& schedule, const Observer& observer);

  // Where the last error in an action happened.
  std::optional<Failure> last_failure() const;

 private:
  struct Run;

  using Half = ProgramCache::Half;
  // `request`: of a backward.
  void run(Pass& pass, const Schedule& schedule, Half half, BackwardRequest* request,
           const Observer& observer);
  // What the caller gets for it: the error with the place in its message. Notes the place.
  std::exception_ptr describe(const RunFailure& failure);

  // Throws c10::Error where a recompute would not see what the forward saw.
  void check_unchanged(Pass& pass) const;

  // The calling thread's, on all devices of the stages' types.
  std::vector<c10::Stream> streams_of_caller() const;
  // Throws c10::Error on a thread that the stages' backward may wait for.
  void check_backward_thread() const;
  // After a run, also one that failed: what the caller does next on its own streams comes behind.
  void give_back(const Pass& pass, const BackwardRequest* request,
                 const std::vector<c10::Stream>& of_caller);

  std::vector<Stage> stages_;
  std::vector<c10::Device> devices_;      // [stage]
  std::vector<int64_t> first_on_device_;  // [stage]
  Transfers transfers_;
  LateChecks late_checks_;
  std::unique_ptr<WorkerPool> pool_;

  RunLock run_lock_;       // one run at a time
  ProgramCache programs_;  // guarded by run_lock_

  mutable std::mutex failure_mutex_;
  std::optional<Failure> last_failure_;  // guarded by failure_mutex_
};

// Whether this thread, or the thread on whose behalf autograd uses it, is running a layer of some
// pipeline.
bool inside_pipeline();

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_PIPELINE_H_
