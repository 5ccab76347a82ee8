// StatisticsLog: updates of running statistics that wait until the run has ended.
#ifndef GPIPE_INTERNAL_OPERATORS_STATISTICS_LOG_H_
#define GPIPE_INTERNAL_OPERATORS_STATISTICS_LOG_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Scalar.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "gpipe/internal/threads/caller_state.h"

namespace gpipe::internal {

// Updates that are to be made after the run.
//
// Thread-safety: none. One stage's worker writes the log. It is committed after that worker has
// stopped.
class StatisticsLog {
 public:
  // The place of an update in the loop's order.
  struct Place {
    int64_t micro_batch = 0;
    int64_t layer = 0;  // index in the whole model
    // Several micro-batches' updates become one update for each call of a norm in a layer's
    // forward. Calls are told apart by the tensors that they update, and by the number of updates
    // of these tensors before.
    bool deferred = false;
    bool any_order = false;  // the micro-batches come in any order
  };
  struct Statistics {
    at::Tensor running_mean;  // not updated if undefined, like running_var
    at::Tensor running_var;
    double momentum = 0;
    int64_t instances = 0;  // the number of instances of an instance norm; 0 for a batch norm
    // If the update is not deferred, LibTorch's operator makes it, from this copy of its input.
    // Computing the update from mean and variance would take less memory, but would not always give
    // the same last bit.
    at::Tensor input;
    // The modes that the layer ran under, because a layer may set autocast or rounding itself.
    std::optional<CallerState> modes;
    // The layer's number of intra-op threads. LibTorch's operator sums a part of a channels-last
    // input per thread, so another number gives other last bits.
    int threads = 0;
    // Only for deferred updates. For an instance norm these are means and unbiased variances, of
    // shape (instances * C). For a batch norm they are means and sums of squared deviations, of
    // shape (C).
    at::Tensor mean;
    at::Tensor spread;
    int64_t elements = 0;  // per channel, for a batch norm
  };

  // Logs the addition to a counter. The addition belongs to the update that follows, if that update
  // has the same place.
  void count(const Place& place, const at::Tensor& counter, bool cumulative, const c10::Scalar& by);
  bool counts(const Place& place) const;  // whether the last entry is a count() at `place`
  // `cumulative`: the momentum was 1 / counter, as for count().
  void update(const Place& place, Statistics statistics, bool cumulative = false);

  // Deferred updates for another replica, which has the same stages and other micro-batches.
  struct Updates {
    std::vector<double> numbers;  // all but the moments
    at::Tensor moments;           // the values of all of them, one after another, in double
  };
  // The deferred updates of all stages' logs, with moments on `device`. add() adds the updates of
  // another replica to the logs here. `buffers`: the buffers of all layers of this process, in the
  // same order in all replicas. Throws c10::Error for statistics that are not among them.
  //
  // Requirements: the logs have only deferred updates, in any order.
  static Updates updates(std::vector<StatisticsLog>& stages, const std::vector<at::Tensor>& buffers,
                         c10::Device device);
  static void add(std::vector<StatisticsLog>& stages, const std::vector<at::Tensor>& buffers,
                  const Updates& updates);
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
  std::optional<Entry> counted_;  // a count() that is not yet in entries_
  size_t next_ = 0;               // where put() looks first for the entry that it extends
};

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_OPERATORS_STATISTICS_LOG_H_
