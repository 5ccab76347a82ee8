// MetaTarget: the type of device that meta tensors stand for.
//
// Most operators keep the same tensors on every device. Attention, LSTM, dropout and RMS norm do
// not: LibTorch fuses them on one device and not on the other (docs/design/meta_operators.md).
#ifndef META_META_TARGET_H_
#define META_META_TARGET_H_

#include <c10/core/DeviceType.h>

namespace gpipe {

// The target of the whole process: c10::kCPU unless a MetaTargetScope sets another one.
c10::DeviceType meta_target();

// While the scope lives, meta tensors stand for tensors on this type of device, on all threads. The
// end of the scope restores the previous target.
//
// Throws c10::ValueError for types other than c10::kCPU and c10::kCUDA.
//
// Thread-safety: make one at a time, and run no operator on meta tensors of another target
// meanwhile.
class MetaTargetScope {
 public:
  explicit MetaTargetScope(c10::DeviceType target);
  ~MetaTargetScope();
  MetaTargetScope(const MetaTargetScope&) = delete;
  MetaTargetScope& operator=(const MetaTargetScope&) = delete;

 private:
  c10::DeviceType former_;
};

}  // namespace gpipe

#endif  // META_META_TARGET_H_
