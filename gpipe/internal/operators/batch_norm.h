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
// batches. So they work for any module that calls these operators; the user's modules are neither
// replaced nor changed. The output of a norm in training does not depend on its running statistics,
// so an operator that must not change them gets zeros in their place.
//
// Limits: a module that reads its running statistics in a training forward sees the values from
// before the mini-batch if they are deferred, shared, or of a stage with forwards out of order. If
// a module is not a torch::nn::BatchNorm and derives its momentum from its counter, the update uses
// the momentum that the module had in its forward.
#ifndef GPIPE_INTERNAL_OPERATORS_BATCH_NORM_H_
#define GPIPE_INTERNAL_OPERATORS_BATCH_NORM_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>
#include <torch/nn/module.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "gpipe/internal/operators/statistics_use.h"
#include "gpipe/internal/threads/caller_state.h"

namespace gpipe::internal {

// The running statistics and counters in a model's modules as they are now. It is made anew for
// each run, because a module may be replaced between two runs. It keeps the tensors alive, so that
// no new tensor is taken for one of them.
class TrackedStatistics {
 public:
  // `use`: what earlier runs have shown; null: each stage updates what it has registered.
  explicit TrackedStatistics(int64_t stages, StatisticsUse* use = nullptr)
      : several_stages_(stages > 1), use_(use) {}

  // Adds the statistics of `layer`, which belongs to `stage`, and of the modules in it.
  void add(int64_t stage, torch::nn::Module& layer);

  struct Counter {
    bool cumulative;  // of a batch norm without momentum: the momentum is 1 / counter
  };
  // Null if `tensor` is not a counter.
  const Counter* counter(const at::Tensor& tensor) const;

  // Whether modules of several stages have the tensor, or another tensor with its memory.
  bool is_shared(const at::Tensor& tensor) const;

  // Whether updates of the tensor must not be made before the run has ended, because another stage
  // than the one that has registered it updates it, too.
  bool must_wait(const at::Tensor& tensor) const;
  // The same for an update that `stage` is about to make. Throws c10::Error if it turns out only
  // now that several stages update the tensor.
  bool must_wait(int64_t stage, const at::Tensor& tensor) const;

 private:
  struct Owner {
    int64_t stage;  // StatisticsUse::kSeveral: several stages have registered it
    bool alone;     // no other stage updates it
    size_t module;  // in modules_
  };
  void own(int64_t stage, const at::Tensor& tensor);

  bool several_stages_;
  StatisticsUse* use_;
  absl::flat_hash_map<const c10::TensorImpl*, Counter> counters_;
  absl::flat_hash_map<const c10::StorageImpl*, Owner> owners_;
  std::vector<std::vector<at::Tensor>> modules_;  // the tensors of each module
};

// Updates that are to be made after the run.
//
// Thread-safety: none. One stage's worker writes the log. It is committed after that worker has
// stopped.
class StatisticsLog {
 public:
  // The place of an update in the loop's order.
  struct Place {
    int64_t micro_batch = 0;
    int64_t layer = 0;  // in the whole model
    // Several micro-batches' updates become one update for each call of a norm in a layer's
    // forward. Calls are told apart by the tensors that they update, and by the number of updates
    // of these tensors before.
    bool deferred = false;
    bool any_order = false;  // the micro-batches come in any order
  };
  struct Statistics {
    at::Tensor running_mean;  // this one and running_var: not updated if undefined
    at::Tensor running_var;
    double momentum = 0;
    int64_t instances = 0;  // the number of instances of an instance norm; 0: a batch norm
    // Not deferred: LibTorch's operator makes the update, from a copy of its input. Computing the
    // update from mean and variance would take less memory, but would not always give the same last
    // bit.
    at::Tensor input;
    // The modes that the layer ran under: it may set autocast or rounding itself.
    std::optional<CallerState> modes;
    // The layer's number of intra-op threads. LibTorch's operator sums a part of a
    // channels-last input per thread, so that another number gives other last bits.
    int threads = 0;
    // Deferred only. For an instance norm: means and unbiased variances, of shape (instances * C).
    // For a batch norm: means and sums of squared deviations, of shape (C).
    at::Tensor mean;
    at::Tensor spread;
    int64_t elements = 0;  // per channel, for a batch norm
  };

  // Logs the addition to a counter. It belongs to the update that follows, if that has the same
  // place.
  void count(const Place& place, const at::Tensor& counter, bool cumulative, const c10::Scalar& by);
  bool counts(const Place& place) const;  // whether the last entry is a count() there
  void update(const Place& place, Statistics statistics);

  // The deferred updates of all stages' logs as numbers, for another replica, which has the same
  // stages and other micro-batches. add_numbers() adds the numbers of another replica to the logs
  // here. `buffers`: the buffers of all layers of this process, in the same order in all replicas.
  // Throws c10::Error for statistics that are not among them.
  //
  // Requirements: the logs have only deferred updates, in any order.
  static std::vector<double> to_numbers(std::vector<StatisticsLog>& stages,
                                        const std::vector<at::Tensor>& buffers);
  static void add_numbers(std::vector<StatisticsLog>& stages,
                          const std::vector<at::Tensor>& buffers,
                          const std::vector<double>& numbers);
  // Returns, by buffer, whether the logs will update it.
  static std::vector<bool> updated(const std::vector<StatisticsLog>& stages,
                                   const std::vector<at::Tensor>& buffers);

  // Makes the updates of all stages' logs and empties the logs: deferred updates in the order of
  // the layers, others in the order of micro-batch and layer.
  static void commit(std::vector<StatisticsLog>& stages);

 private:
  struct Entry {
    Place place;
    at::Tensor counter;
    bool cumulative = false;
    c10::Scalar by = 0;
    Statistics statistics;
  };
  void settle();
  void put(Entry entry);
  void merge_in_order();
  static void merge(Statistics& sum, Statistics& fresh);
  static void apply(Entry& entry);

  std::vector<Entry> entries_;
  std::optional<Entry> counted_;  // not yet in entries_
  size_t next_ = 0;               // where put() looks first for the entry that it extends
};

enum class RunningStatistics : uint8_t {
  kUpdate,  // like the module on its own; through the log if shared or out of order
  kKeep,    // in a recompute: leave them unchanged
  kDefer,   // through the log, once per mini-batch
};

// While the scope lives, it sets the policy for the norms called on this thread.
//
// Requirements: it is used under an InterceptionScope.
class RunningStatisticsScope {
 public:
  // `log` may be null with kKeep. `any_order`: the forwards of this stage do not ascend.
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
  // Whether the addition must not be made now.
  bool takes_count(const at::Tensor& counter, const c10::Scalar& by);
  // Whether the update of these two must not be made now.
  bool takes_update(const at::Tensor& running_mean, const at::Tensor& running_var);
  RunningStatistics policy() const { return policy_; }
  void update(StatisticsLog::Statistics statistics);

  // Whether an operator has updated this tensor in this scope.
  bool has_updated(const at::Tensor& tensor) const;

 private:
  // Whether the module itself makes the update, unless stages share the statistics.
  bool updates_at_once() const {
    return policy_ == RunningStatistics::kUpdate && !place_.any_order;
  }

  RunningStatistics policy_;
  const TrackedStatistics& tracked_;
  StatisticsLog* log_;
  StatisticsLog::Place place_;
  int64_t stage_;
  std::vector<const c10::TensorImpl*> updated_;
  RunningStatisticsScope* former_;
};

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_OPERATORS_BATCH_NORM_H_
