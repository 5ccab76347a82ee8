// MetaAutocastScope: applies autocast to meta tensors as it is applied to the tensors that they
// stand for.
//
// Autocast looks at the type of a tensor's device and leaves meta tensors alone. So a model on meta
// would keep everything in single precision, and hold no low-precision copies of its weights.
#ifndef META_META_AUTOCAST_H_
#define META_META_AUTOCAST_H_

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <optional>

namespace gpipe {

// While the scope lives, autocast treats meta tensors as tensors on devices of `type`: an operator
// casts them as LibTorch's autocast for that type of device does, whenever that is enabled on the
// thread (by the caller or by a layer), with its dtype. LibTorch's own kernels decide which tensors
// are cast, for the lower-precision, the single-precision and the promoting operators alike.
//
// Casts are never kept, as if autocast's cache were off, which a pipeline switches off.
// Scopes nest: the innermost one counts. The type holds for the whole process, as in
// MetaTargetScope.
//
// Thread-safety: it holds for its own thread, and for threads on which LibTorch continues that
// thread's work (c10::ThreadLocalState). Scopes of different types must not live at the same time.
//
// Throws c10::ValueError for types other than c10::kCPU and c10::kCUDA.
//
// Example:
//   const MetaAutocastScope scope(c10::kCUDA);
//   at::autocast::set_autocast_dtype(c10::kCUDA, at::kHalf);
//   at::autocast::set_autocast_enabled(c10::kCUDA, true);
//   at::mm(on_meta, on_meta).scalar_type();  // at::kHalf
class MetaAutocastScope {
 public:
  explicit MetaAutocastScope(c10::DeviceType type);
  ~MetaAutocastScope();
  MetaAutocastScope(const MetaAutocastScope&) = delete;
  MetaAutocastScope& operator=(const MetaAutocastScope&) = delete;

  // The type of the innermost scope on this thread; empty without a scope.
  static std::optional<c10::DeviceType> type();

 private:
  c10::impl::IncludeDispatchKeyGuard guard_;
  c10::DeviceType former_;
};

}  // namespace gpipe

#endif  // META_META_AUTOCAST_H_
