// What becomes of running statistics when a mini-batch passes a norm in micro-batches.
//
//  - Plain: each micro-batch updates them once, as a loop over micro-batches would. A recompute
//  does
//    not update them again. Statistics that several stages share are not updated while the stages
//    run, which would race, but logged, and committed in the loop's order after them. The log has a
//    copy of each input of the norms that use them, and so takes memory for a whole mini-batch.
//  - Deferred: micro-batches are normalised by their own statistics, and after the whole mini-batch
//    the running statistics are updated once, as if the layer had seen it as one (GPipe, Huang et
//    al. 2018, section 2; unbiased variance, like torch::nn::BatchNorm).
//
// Both work on operators: those that update running statistics, and the addition that counts
// batches. So they hold for any module that calls them; the user's modules are neither replaced nor
// changed. What a norm returns in training does not depend on its running statistics, so an
// operator that is not to touch them gets zeros in their place.
//
// Outside this: a module that reads its running statistics in a training forward sees those from
// before the mini-batch where they are deferred or shared, and one that is no torch::nn::BatchNorm
// and derives its momentum from its counter is updated with a momentum of that time.
#ifndef GPIPE_INTERNAL_BATCH_NORM_H_
#define GPIPE_INTERNAL_BATCH_NORM_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>
#include <torch/nn/module.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace gpipe::internal {

// The running statistics and counters in a model's modules as they are now. Made anew for each run,
// because a module may be replaced between two; it keeps the tensors alive, so that none that is
// made meanwhile is taken for one of them.
class TrackedStatistics {
 public:
  explicit TrackedStatistics(int64_t stages) : several_stages_(stages > 1) {}

  // `layer`, which belongs to `stage`, and the modules in it.
  void add(int64_t stage, torch::nn::Module& layer);

  struct Counter {
    bool cumulative;  // a batch norm's without momentum: the momentum is 1 / counter
  };
  // Null where `tensor` is none.
  const Counter* counter(const at::Tensor& tensor) const;

  // Whether modules of several stages have it, or another tensor with its memory.
  bool is_shared(const at::Tensor& tensor) const;

 private:
  void own(int64_t stage, const at::Tensor& tensor);

  bool several_stages_;
  absl::flat_hash_map<const c10::TensorImpl*, Counter> counters_;
  absl::flat_hash_map<const c10::StorageImpl*, int64_t> stages_;  // kShared: several
  std::vector<at::Tensor> alive_;
};

// Updates that are to be made after the run. Not thread-safe: written by one stage's worker,
// committed after it has stopped.
class StatisticsLog {
 public:
  // Where an update belongs.
  struct Place {
    int64_t micro_batch = 0;
    int64_t layer = 0;  // in the whole model
    // Updates of the micro-batches that belong together become one: for each call in a layer's
    // forward, told apart by what it updates and by how often that was updated before.
    bool deferred = false;
  };
  struct Statistics {
    at::Tensor running_mean;  // of the two, the undefined one is not updated
    at::Tensor running_var;
    double momentum = 0;
    int64_t instances = 0;  // of an instance norm; 0: it is a batch norm
    // Not deferred: LibTorch's operator makes the update from a copy of its input. To compute it
    // from mean and variance would take less memory, but not always give the same last bit.
    at::Tensor input;
    // Deferred: of an instance norm (instances * C) and unbiased variances, of a batch norm (C) and
    // sums of squared deviations.
    at::Tensor mean;
    at::Tensor spread;
    int64_t elements = 0;  // per channel, of a batch norm
  };

  // A counter's addition. Belongs to the update that follows, if that comes in the same place.
  void count(const Place& place, const at::Tensor& counter, bool cumulative, const c10::Scalar& by);
  bool counts(const Place& place) const;  // the last entry was a count(), in the same place
  void update(const Place& place, Statistics statistics);

  // Makes the updates of all stages' logs and empties them: deferred ones by layer, others by
  // micro-batch and layer.
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
  static void merge(Statistics& sum, Statistics& fresh);
  static void apply(Entry& entry);

  std::vector<Entry> entries_;
  std::optional<Entry> counted_;  // not among entries_ yet
  size_t next_ = 0;               // where put() expects the entry to merge with
};

enum class RunningStatistics : uint8_t {
  kUpdate,  // as the module would alone; shared ones by the log
  kKeep,    // a recompute: leave them
  kDefer,   // by the log, once per mini-batch
};

// Governs, on this thread and under an InterceptionScope, the norms called while it lives.
class RunningStatisticsScope {
 public:
  // `log` may be null with kKeep.
  RunningStatisticsScope(RunningStatistics policy, const TrackedStatistics& tracked,
                         StatisticsLog* log, int64_t micro_batch);
  ~RunningStatisticsScope();
  RunningStatisticsScope(const RunningStatisticsScope&) = delete;
  RunningStatisticsScope& operator=(const RunningStatisticsScope&) = delete;

  // From here on `layer` runs in the scope in force, if there is one.
  static void enter_layer(int64_t layer);

  // Called by the intercepted operators.
  static RunningStatisticsScope* current();
  // Whether the addition is not to be made now.
  bool takes_count(const at::Tensor& counter, const c10::Scalar& by);
  // Whether the update of these two is not to be made now.
  bool takes_update(const at::Tensor& running_mean, const at::Tensor& running_var) const;
  RunningStatistics policy() const { return policy_; }
  void update(StatisticsLog::Statistics statistics);

 private:
  RunningStatistics policy_;
  const TrackedStatistics& tracked_;
  StatisticsLog* log_;
  StatisticsLog::Place place_;
  RunningStatisticsScope* former_;
};

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_BATCH_NORM_H_
