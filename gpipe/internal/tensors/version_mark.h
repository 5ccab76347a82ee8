// VersionMark: remembers how often a tensor had been changed in place.
#ifndef GPIPE_INTERNAL_TENSORS_VERSION_MARK_H_
#define GPIPE_INTERNAL_TENSORS_VERSION_MARK_H_

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>

#include <cstdint>

namespace gpipe::internal {

// A mark shares the tensor's version counter, but not its memory. So the tensor may be freed, and
// changes through its aliases and views count, too. Code that keeps the tensor anyway compares
// version_of() (alias.h), which needs no reference to a counter: see Item.
class VersionMark {
 public:
  // An inference tensor does not count its changes, so it never looks changed.
  explicit VersionMark(const at::Tensor& tensor)
      : counter_(tensor.unsafeGetTensorImpl()->version_counter()), version_(now()) {}

  bool is_changed() const { return now() != version_; }
  // From now on, only later changes count.
  void renew() { version_ = now(); }
  // Counts a change. All tensors that share the counter see it.
  void bump() { counter_.bump(); }

 private:
  uint32_t now() const { return counter_.enabled() ? counter_.current_version() : 0; }

  c10::VariableVersion counter_;
  uint32_t version_;
};

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_TENSORS_VERSION_MARK_H_
