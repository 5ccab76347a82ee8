// SavedVersions: the version counters of parameters as a recorded backward expects them.
#ifndef GPIPE_INTERNAL_GRAPHS_SAVED_VERSIONS_H_
#define GPIPE_INTERNAL_GRAPHS_SAVED_VERSIONS_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "gpipe/internal/tensors/alias.h"
#include "gpipe/internal/tensors/set_version.h"

namespace gpipe::internal {

inline std::vector<int64_t> versions_of(const std::vector<at::Tensor>& tensors) {
  std::vector<int64_t> versions;
  versions.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) versions.push_back(version_of(tensor));
  return versions;
}

// While a SavedVersionsScope lives, the tensors have the version counters that autograd saved when
// the forward was recorded. Since then an optimizer has changed parameters, and the cell's forward,
// a replay, saw the new values, which autograd cannot know. Changes after the cell's forward still
// count.
//
// Requirements: no other code looks at the counters; `tensors` outlives the scope.
class SavedVersionsScope {
 public:
  SavedVersionsScope(const std::vector<at::Tensor>& tensors, const std::vector<int64_t>& saved,
                     const std::vector<int64_t>& in_forward)
      : tensors_(tensors), now_(versions_of(tensors)) {
    for (size_t k = 0; k < tensors.size(); ++k) {
      set_version(tensors[k], saved[k] + now_[k] - in_forward[k]);
    }
  }
  ~SavedVersionsScope() {
    for (size_t k = 0; k < tensors_.size(); ++k) set_version(tensors_[k], now_[k]);
  }
  SavedVersionsScope(const SavedVersionsScope&) = delete;
  SavedVersionsScope& operator=(const SavedVersionsScope&) = delete;

 private:
  const std::vector<at::Tensor>& tensors_;
  const std::vector<int64_t> now_;
};

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_GRAPHS_SAVED_VERSIONS_H_
