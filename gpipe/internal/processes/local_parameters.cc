#include "gpipe/internal/processes/local_parameters.h"

#include <algorithm>
#include <mutex>
#include <unordered_set>
#include <utility>

namespace gpipe::internal {
namespace {

struct Known {
  std::mutex mutex;
  std::unordered_set<const LocalParameters*> all;  // guarded by mutex
};
// Never destroyed, because a pipeline in a static object may be destroyed later than other statics.
Known& known() {
  static auto* const known = new Known;
  return *known;
}

}  // namespace

LocalParameters::LocalParameters(std::function<std::vector<at::Tensor>()> list)
    : list_(std::move(list)) {
  const std::lock_guard<std::mutex> lock(known().mutex);
  known().all.insert(this);
}

LocalParameters::~LocalParameters() {
  const std::lock_guard<std::mutex> lock(known().mutex);
  known().all.erase(this);
}

bool LocalParameters::are_all_in(const std::vector<at::Tensor>& tensors) {
  const std::lock_guard<std::mutex> lock(known().mutex);
  if (known().all.empty()) return false;
  std::unordered_set<const c10::TensorImpl*> given;
  for (const at::Tensor& tensor : tensors) given.insert(tensor.unsafeGetTensorImpl());
  return std::any_of(known().all.begin(), known().all.end(), [&](const LocalParameters* each) {
    const std::vector<at::Tensor> here = each->list_();
    return !here.empty() && std::all_of(here.begin(), here.end(), [&](const at::Tensor& tensor) {
      return given.count(tensor.unsafeGetTensorImpl()) != 0;
    });
  });
}

}  // namespace gpipe::internal
