// StatisticsUse: which stage alone updates which running statistics.
//
// A layer may use a norm that only a layer of another stage has registered, by a handle, and
// nothing tells of it before it runs. Where that is possible, the updates of all stages are logged
// and committed in the loop's order, until a run has shown who makes them.
#ifndef GPIPE_INTERNAL_OPERATORS_STATISTICS_USE_H_
#define GPIPE_INTERNAL_OPERATORS_STATISTICS_USE_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <mutex>

#include "absl/container/flat_hash_map.h"

namespace gpipe::internal {

// Tensors are told apart by their memory.
//
// Thread-safety: all functions are thread-safe.
class StatisticsUse {
 public:
  static constexpr int64_t kSeveral = -1;

  // Before a run: forgets what nobody else holds any more.
  void forget_freed();
  // That stage updates it. Returns the stage that alone does so, as far as is known then, or
  // kSeveral.
  int64_t note(int64_t stage, const at::Tensor& tensor);

 private:
  struct Use {
    at::Tensor tensor;  // alive, so that its memory is not given to another one
    int64_t stage;
  };
  mutable std::mutex mutex_;
  absl::flat_hash_map<const c10::StorageImpl*, Use> uses_;  // guarded by mutex_
};

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_OPERATORS_STATISTICS_USE_H_
