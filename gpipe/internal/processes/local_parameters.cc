#include "gpipe/internal/processes/local_parameters.h"

#include <algorithm>
#include <mutex>
#include <unordered_set>

namespace gpipe::internal {
namespace {

struct Known {
  std::mutex mutex;
  std::unordered_set<const LocalParameters*> all;  // guarded by mutex
};
// `Known` is never destroyed, because a pipeline in a static object may be destroyed later than
// other statics.
Known& known() {
  static auto* const known = new Known;
  return *known;
}

}  // namespace

LocalParameters::LocalParameters() {
  const std::lock_guard<std::mutex> lock(known().mutex);
  known().all.insert(this);
}

LocalParameters::~LocalParameters() {
  const std::lock_guard<std::mutex> lock(known().mutex);
  known().all.erase(this);
}

void LocalParameters::know(const std::vector<at::Tensor>& parameters) {
  const auto is_same = [](const Pointer& pointer, const at::Tensor& parameter) {
    return pointer._unsafe_get_target() == parameter.unsafeGetTensorImpl();
  };
  const std::lock_guard<std::mutex> lock(known().mutex);
  if (std::equal(here_.begin(), here_.end(), parameters.begin(), parameters.end(), is_same)) return;
  here_.clear();
  for (const at::Tensor& parameter : parameters) here_.emplace_back(parameter.getIntrusivePtr());
}

bool LocalParameters::are_all_in(const std::vector<at::Tensor>& tensors) {
  const std::lock_guard<std::mutex> lock(known().mutex);
  if (known().all.empty()) return false;
  std::unordered_set<const c10::TensorImpl*> given;
  for (const at::Tensor& tensor : tensors) given.insert(tensor.unsafeGetTensorImpl());
  return std::any_of(known().all.begin(), known().all.end(), [&](const LocalParameters* each) {
    const std::vector<Pointer>& here = each->here_;
    return !here.empty() && std::all_of(here.begin(), here.end(), [&](const Pointer& pointer) {
      return given.count(pointer._unsafe_get_target()) != 0;
    });
  });
}

}  // namespace gpipe::internal
