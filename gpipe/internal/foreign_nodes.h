// ForeignNodes: graphs from outside the pipeline, each of which one stage at most may run.
#ifndef GPIPE_INTERNAL_FOREIGN_NODES_H_
#define GPIPE_INTERNAL_FOREIGN_NODES_H_

#include <torch/csrc/autograd/function.h>

#include <cstdint>
#include <mutex>

#include "absl/container/flat_hash_map.h"

namespace gpipe::internal {

// Graph nodes from outside the pipeline that cells have reached, and the stage that did. Two
// stages' workers must not run one graph.
class ForeignNodes {
 public:
  // Throws c10::Error if another stage has reached it. Thread-safe.
  void enter(const torch::autograd::Node& node, int64_t stage);
  void clear() { stages_.clear(); }

 private:
  std::mutex mutex_;
  absl::flat_hash_map<const torch::autograd::Node*, int64_t> stages_;  // guarded by mutex_
};

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_FOREIGN_NODES_H_
