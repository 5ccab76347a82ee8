// Pipeline: the stages of a model, their workers, and the runs over them.
//
// It sits between the public module (gpipe/gpipe.h), which checks what users give, and the
// torch-free runtime, which runs schedules. It knows tensors only as packets.
#ifndef GPIPE_INTERNAL_PIPELINE_H_
#define GPIPE_INTERNAL_PIPELINE_H_

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/checkpoint.h"
#include "gpipe/internal/batch_norm.h"
#include "gpipe/internal/caller_inputs.h"
#include "gpipe/internal/caller_state.h"
#include "gpipe/internal/cell.h"
#include "gpipe/internal/late_checks.h"
#include "gpipe/internal/leaf_sums.h"
#include "gpipe/internal/mini_batch.h"
#include "gpipe/internal/model_state.h"
#include "gpipe/internal/packet.h"
#include "gpipe/internal/stage.h"
#include "gpipe/internal/transfer.h"
#include "gpipe/runtime/executor.h"
#include "gpipe/runtime/observer.h"
#include "gpipe/runtime/run_lock.h"
#include "gpipe/runtime/worker_pool.h"
#include "gpipe/schedule/program.h"
#include "gpipe/schedule/routes.h"
#include "gpipe/schedule/schedule.h"
#include "skip/layout.h"

namespace gpipe::internal {

// One mini-batch on its way through the pipeline: made by a forward, used up by its backward.
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

  // Why there is nothing to run a backward on any more.
  enum class Used : uint8_t { kNo, kByBackward, kByFailure };

  MiniBatch mini_batch;
  CellPlan plan;
  CallerState forward_state;
  CallerInputs inputs;
  std::vector<std::vector<Cell>> cells;  // [stage][micro-batch]
  // Where the stages compute: on what was current where the forward was called, as autograd does.
  // One for each device of an accelerator.
  std::vector<c10::Stream> streams;
  // Cuts out micro-batch i of the outputs' gradients; empty in a step. Called by the workers of the
  // last stage, so that the cutting overlaps with the other stages' work.
  std::function<Packet(int64_t micro_batch)> output_gradient_of;
  std::vector<Packet> outputs;            // [micro-batch], of the last stage
  std::vector<Packet> input_gradients;    // [micro-batch], after a backward half
  std::vector<Packet> target_gradients;   // the same, after a step
  std::vector<StatisticsLog> statistics;  // [stage]
  std::vector<LeafSums> leaf_sums;        // [micro-batch]
  CellLoss loss;
  bool keep_outputs = true;
  bool keep_graph = false;           // the backward half may run once more
  std::optional<Captured> captured;  // none: the leaves' gradients are accumulated
  ForeignNodes foreign;
  Used used = Used::kNo;
};

// Where the last error of a pipeline happened.
struct FailurePlace {
  Action action;
  std::string layer;
  std::string to_text() const;  // "in the forward of stage 1, micro-batch 3, layer 5 ('relu')"
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

  // Runs all forwards (inputs -> outputs) or all backwards (output_gradient_of -> input_gradients).
  // A backward throws c10::Error if the caller changed what it needs since the forward.
  void run_forward(Pass& pass);
  void run_backward(Pass& pass);
  // Runs forward, loss and backward as `schedule` says. Throws c10::ValueError if it does not fit.
  void run_step(Pass& pass, const Schedule& schedule, const Observer& observer);

  std::optional<FailurePlace> last_failure() const;

 private:
  enum class Half { kForward, kBackward, kBoth };
  // Compiled programs, by schedule and half: verified once, then looked up in every step.
  struct Compiled {
    Schedule schedule;
    Half half;
    Program program;
    // See CellPlan.
    std::vector<std::vector<bool>> follows_at_once;
  };
  const Compiled& program_for(const Schedule& schedule, Half half);
  void run(Pass& pass, const Compiled& compiled, const Observer& observer);
  void handle(Pass& pass, const Action& action, std::vector<Packet>& received,
              std::vector<Packet>& sent);

  // Throws c10::Error where a recompute would not see what the forward saw.
  void check_unchanged(Pass& pass);

  // The calling thread's, on all devices of the stages' types.
  std::vector<c10::Stream> streams_of_caller() const;
  // Throws c10::Error on a thread that the stages' backward may wait for.
  void check_backward_thread() const;
  // After a run, also one that failed: what the caller does next on its own streams comes behind.
  void give_back(const Pass& pass, const std::vector<c10::Stream>& of_caller);

  std::vector<Stage> stages_;
  std::vector<int64_t> first_on_device_;  // [stage]
  Transfers transfers_;
  LateChecks late_checks_;
  Routes routes_;
  std::unique_ptr<WorkerPool> pool_;

  RunLock run_lock_;                                 // one run at a time
  std::vector<std::unique_ptr<Compiled>> programs_;  // guarded by run_lock_

  mutable std::mutex failure_mutex_;
  std::optional<FailurePlace> last_failure_;  // guarded by failure_mutex_
};

// Whether this thread, or the thread on whose behalf autograd uses it, is running a layer of some
// pipeline.
bool inside_pipeline();

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_PIPELINE_H_
