// TrackedStatistics: which tensors of a model are running statistics, and which stages update them.
#ifndef GPIPE_INTERNAL_OPERATORS_TRACKED_STATISTICS_H_
#define GPIPE_INTERNAL_OPERATORS_TRACKED_STATISTICS_H_

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "gpipe/internal/operators/statistics_use.h"

namespace gpipe::internal {

// The running statistics and counters in a model's modules as they are now. The object is made anew
// for each run, because a module may be replaced between two runs. It keeps the tensors alive, so
// that no new tensor is taken for one of them.
class TrackedStatistics {
 public:
  // `use`: what earlier runs have shown. If it is null, each stage updates what it has registered.
  explicit TrackedStatistics(int64_t stages, StatisticsUse* use = nullptr)
      : several_stages_(stages > 1), use_(use) {}

  // Adds the statistics of `layer`, which belongs to `stage`, and of the modules in it.
  void add(int64_t stage, torch::nn::Module& layer);

  struct Counter {
    bool cumulative = false;  // for a batch norm without momentum: the momentum is 1 / counter
    bool is_norms = false;    // certainly a norm's; if false, its name and neighbors say so
  };
  // Returns null if `tensor` is not a counter.
  const Counter* counter(const at::Tensor& tensor) const;

  // Whether a module that was in training mode at the start of the run has the tensor, or another
  // tensor over its memory, so that the run may update it.
  bool trains(const at::Tensor& tensor) const;

  // Whether modules of several stages have the tensor, or another tensor with its memory.
  bool is_shared(const at::Tensor& tensor) const;

  // Whether updates of the tensor must not be made before the run has ended, because another stage
  // than the one that has registered it updates it, too.
  bool must_wait(const at::Tensor& tensor) const;
  // Whether an update that `stage` is about to make must wait. Throws c10::Error if it turns out
  // only now that several stages update the tensor.
  bool must_wait(int64_t stage, const at::Tensor& tensor) const;

 private:
  struct Owner {
    int64_t stage;  // StatisticsUse::kSeveral if several stages have registered it
    bool alone;     // whether no other stage updates the tensor
    size_t module;  // index in modules_
  };
  void own(int64_t stage, const at::Tensor& tensor, bool trains);

  bool several_stages_;
  StatisticsUse* use_;
  absl::flat_hash_map<const c10::TensorImpl*, Counter> counters_;
  absl::flat_hash_set<const c10::TensorImpl*> training_;
  absl::flat_hash_map<const c10::StorageImpl*, Owner> owners_;
  std::vector<std::vector<at::Tensor>> modules_;  // the tensors of each module
};

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_OPERATORS_TRACKED_STATISTICS_H_
