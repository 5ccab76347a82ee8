// ForeignNodes: graph nodes from outside the pipeline, each of which at most one stage may run.
#ifndef GPIPE_INTERNAL_BACKWARD_FOREIGN_NODES_H_
#define GPIPE_INTERNAL_BACKWARD_FOREIGN_NODES_H_

#include <torch/csrc/autograd/function.h>

#include <cstdint>
#include <mutex>

#include "absl/container/flat_hash_map.h"
#include "gpipe/internal/libtorch/versions.h"

namespace gpipe::internal {

// Graph nodes from outside the pipeline that cells have reached, and the stage that reached each.
// Two stages' workers must not run the same graph.
class ForeignNodes {
 public:
  // Throws c10::Error if another stage has reached the node. Thread-safe.
  void enter(const torch::autograd::Node& node, int64_t stage);
  void clear() { stages_.clear(); }

 private:
  struct Entry {
    WeakNodePtr node;  // expired: the node is gone, and another one may have its address
    int64_t stage;
  };

  std::mutex mutex_;
  absl::flat_hash_map<const torch::autograd::Node*, Entry> stages_;  // guarded by mutex_
};

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_BACKWARD_FOREIGN_NODES_H_
