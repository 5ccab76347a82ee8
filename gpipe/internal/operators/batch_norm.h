// Running statistics: how they are updated when a mini-batch passes a norm in micro-batches.
//
// - Plain: each micro-batch updates them once, as a loop over micro-batches would. A recompute does
//   not update them again. Two kinds of statistics are not updated while the stages run: those that
//   several stages share, or may share (StatisticsUse), because that would be a race, and those of
//   a stage whose forwards a schedule runs out of order, because the later of two updates counts
//   more. Their updates are logged, and committed after the run in the loop's order. The log has a
//   copy of each input of the norms that use them, so it takes memory for a whole mini-batch.
// - Deferred: micro-batches are normalized by their own statistics. After the whole mini-batch the
//   running statistics are updated once, as if the layer had seen it as one batch (GPipe, Huang et
//   al. 2018, section 2; unbiased variance, like torch::nn::BatchNorm). In a stage with forwards
//   out of order, each micro-batch's moments are kept until then and added up in the loop's order.
//
// Both ways intercept operators: those that update running statistics, and the addition that counts
// batches. So they work for any module that calls these operators. The user's modules are neither
// replaced nor changed. The output of a norm in training does not depend on its running statistics,
// so an operator that must not change them gets zeros in their place.
//
// Autograd is not told of these updates. A norm in evaluation mode saves its running statistics for
// its backward, and updates of later micro-batches come before that backward. So if a module that
// trains uses its statistics in evaluation mode, the operator gets copies (lend()).
//
// Limits: a module that reads its running statistics in a training forward sees the values from
// before the mini-batch if they are deferred, shared, or of a stage with forwards out of order. Its
// counter it sees with the additions of its own forward (read()). If a module is not a
// torch::nn::BatchNorm and derives its momentum from its counter in another way than 1 / counter,
// the update uses the momentum that the module had in its forward.
#ifndef GPIPE_INTERNAL_OPERATORS_BATCH_NORM_H_
#define GPIPE_INTERNAL_OPERATORS_BATCH_NORM_H_

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Scalar.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "gpipe/internal/operators/statistics_log.h"
#include "gpipe/internal/operators/tracked_statistics.h"

namespace gpipe::internal {

enum class RunningStatistics : uint8_t {
  kUpdate,  // as the module itself does; through the log if shared or out of order
  kKeep,    // in a recompute: leave them unchanged
  kDefer,   // through the log, once per mini-batch
};

// While the scope lives, it sets the policy for the norms called on this thread.
//
// Requirements: it is used under an InterceptionScope.
class RunningStatisticsScope {
 public:
  // `log` may be null with kKeep. `any_order`: the forwards of this stage do not ascend. With kKeep
  // `any_order` is also set if the stage's updates are deferred.
  RunningStatisticsScope(RunningStatistics policy, const TrackedStatistics& tracked,
                         StatisticsLog* log, int64_t micro_batch, bool any_order = false,
                         int64_t stage = 0);
  ~RunningStatisticsScope();
  RunningStatisticsScope(const RunningStatisticsScope&) = delete;
  RunningStatisticsScope& operator=(const RunningStatisticsScope&) = delete;

  // From here on `layer` runs in the current scope, if there is one.
  static void enter_layer(int64_t layer);

  // The following functions are called by the intercepted operators. current() is null outside a
  // scope.
  static RunningStatisticsScope* current();
  // Whether it is the counter of mini-batches of a layer's.
  bool is_counter(const at::Tensor& tensor) const;
  // Whether the addition to `counter` must not be made now.
  bool takes_count(const at::Tensor& counter, const c10::Scalar& by);
  // The value of `counter` with the additions of this scope that are not made now.
  at::Scalar read(const at::Tensor& counter, const at::Scalar& value);
  // Whether the update of these two tensors must not be made now.
  bool takes_update(const at::Tensor& running_mean, const at::Tensor& running_var);
  RunningStatistics policy() const { return policy_; }
  void update(StatisticsLog::Statistics statistics);
  // Replaces `running`, statistics that an operator is about to save without an update, by a copy
  // if this run may update them. When the scope ends, the copy gets the values that the forward has
  // left in them.
  void lend(c10::IValue& running);

  // Whether an operator has updated this tensor in this scope, or will after the run.
  bool has_updated(const at::Tensor& tensor) const;

 private:
  // Whether the module itself makes the update, unless several stages share the statistics.
  bool updates_at_once() const {
    return policy_ == RunningStatistics::kUpdate && !place_.any_order;
  }

  RunningStatistics policy_;
  const TrackedStatistics& tracked_;
  StatisticsLog* log_;
  StatisticsLog::Place place_;
  int64_t stage_;
  std::vector<const c10::TensorImpl*> updated_;
  struct Waiting {
    const c10::TensorImpl* counter;
    int64_t by;
  };
  std::vector<Waiting> waiting_;
  // The counter that was counted last, and what read() has given of it; 0: nothing.
  struct Read {
    const c10::TensorImpl* counter = nullptr;
    int64_t value = 0;
  };
  Read read_;
  struct Loan {
    at::Tensor running;
    at::Tensor copy;
    size_t updates;  // size of updated_ when the copy was made
  };
  std::vector<Loan> loans_;
  RunningStatisticsScope* former_;
};

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_OPERATORS_BATCH_NORM_H_
