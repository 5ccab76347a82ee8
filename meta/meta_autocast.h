// MetaAutocastScope: autocast holds for meta tensors, as it does for those that they stand for.
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

// While it lives, meta tensors stand for tensors on devices of `type` where autocast is concerned:
// an operator casts them as LibTorch's autocast for that type of device does, whenever that is
// enabled on the thread (by the caller or by a layer), with its dtype. What is cast is decided by
// LibTorch's own kernels, of the lower-precision, the single-precision and the promoting operators
// alike.
//
// A kernel that somebody has added for autocast's key works if it casts and calls operators, as
// LibTorch's do. It is given stand-ins, which have the device, type and sizes of what they stand
// for. They have no memory, are contiguous and never require a gradient: a kernel that reads memory
// throws, and one that asks for strides or requires_grad() may go another way than on the device.
//
// Casts are never kept: it is as without autocast's cache, which a pipeline switches off.
//
// Scopes nest: the inner one counts. The type belongs to the process, as MetaTargetScope's does.
//
// Thread-safety: it holds for its own thread and for those on which LibTorch goes on with that
// thread's work (c10::ThreadLocalState); make those of different types one at a time.
//
// Throws c10::ValueError for others than c10::kCPU and c10::kCUDA.
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

  // The type of the scope around the calling code on this thread; none without a scope.
  static std::optional<c10::DeviceType> type();

 private:
  c10::impl::IncludeDispatchKeyGuard guard_;
  c10::DeviceType former_;
};

}  // namespace gpipe

#endif  // META_META_AUTOCAST_H_
