// StatisticsUse: which stage alone updates which running statistics.
//
// A layer may use a norm that only a layer of another stage has registered, and nothing shows that
// before the layer runs. If that is possible, the updates of all stages are logged and committed in
// the loop's order, until a run has shown which stages make them.
#ifndef GPIPE_INTERNAL_OPERATORS_STATISTICS_USE_H_
#define GPIPE_INTERNAL_OPERATORS_STATISTICS_USE_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <mutex>

#include "absl/container/flat_hash_map.h"

namespace gpipe::internal {

// Tensors over the same memory count as one tensor.
//
// Thread-safety: all functions are thread-safe.
class StatisticsUse {
 public:
  static constexpr int64_t kSeveral = -1;

  // Called before a run: forgets tensors that no other code holds any more.
  void forget_freed();
  // Notes that `stage` updates `tensor`. Returns the only stage that has updated it up to now, or
  // kSeveral.
  int64_t note(int64_t stage, const at::Tensor& tensor);

 private:
  struct Use {
    at::Tensor tensor;  // kept alive, so that no other tensor gets its memory
    int64_t stage;
  };
  mutable std::mutex mutex_;
  absl::flat_hash_map<const c10::StorageImpl*, Use> uses_;  // guarded by mutex_
};

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_OPERATORS_STATISTICS_USE_H_
