// Twins: finds tensors that come several times as the same object, and keeps a value for each.
#ifndef GPIPE_INTERNAL_TENSORS_TWINS_H_
#define GPIPE_INTERNAL_TENSORS_TWINS_H_

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/SmallVector.h>

#include <utility>

namespace gpipe::internal {

// Whether both are the same tensor object. Having the same memory is not enough. An undefined
// tensor has no twin.
inline bool are_twins(const at::Tensor& a, const at::Tensor& b) {
  return a.defined() && a.is_same(b);
}

// A value for each tensor that has come so far. There are only a few tensors, so they are searched
// one after the other.
//
// Requirements: the tensors outlive the Twins.
template <typename Value>
class Twins {
 public:
  // Returns null if the tensor has not come before.
  const Value* find(const at::Tensor& tensor) const {
    const c10::TensorImpl* const impl = tensor.unsafeGetTensorImpl();
    for (const auto& [known, value] : known_) {
      if (known == impl) return &value;
    }
    return nullptr;
  }
  // An undefined tensor is not kept, since it has no twin.
  void add(const at::Tensor& tensor, Value value) {
    if (tensor.defined()) known_.emplace_back(tensor.unsafeGetTensorImpl(), std::move(value));
  }

 private:
  c10::SmallVector<std::pair<const c10::TensorImpl*, Value>, 4> known_;
};

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_TENSORS_TWINS_H_
