// install_meta_devices: several meta devices, `meta:0`, `meta:1`, ..., as if each had a memory of
// its own.
//
// LibTorch has one meta device. A pipeline over several of them runs its real code, the copies
// between devices included, without memory and without values: AllocationScope
// (interception/allocations.h) sees what the pipeline would hold on each device.
#ifndef META_META_DEVICES_H_
#define META_META_DEVICES_H_

#include <c10/core/Device.h>

#include <cstdint>

namespace gpipe {

// The number of meta devices: as many as c10::DeviceIndex can name.
inline constexpr int64_t kMostMetaDevices = 127;

// From now on `c10::Device(c10::kMeta, k)` with k of 0 .. 126 is a device of its own, in the whole
// process. A tensor that is made on meta is put on the thread's current meta device (set by
// c10::DeviceGuard), whatever index is asked for: LibTorch ignores the index. Without a guard all
// is as before: the device is `meta`, without an index. Streams and events exist and do nothing.
// Idempotent, thread-safe.
//
// Ranges (arange, linspace) work on these devices in a pipeline's cells only.
//
// The loss of a pipeline on meta devices is NaN. See also install_meta_kernels().
//
// Example:
//   install_meta_devices();
//   c10::DeviceGuard guard(c10::Device(c10::kMeta, 3));
//   at::empty({8}, at::kMeta).device();  // meta:3
void install_meta_devices();

// While the scope lives, this thread's current meta device is `meta`, without an index. A
// c10::DeviceGuard does not change that.
class PlainMetaScope {
 public:
  PlainMetaScope();
  ~PlainMetaScope();
  PlainMetaScope(const PlainMetaScope&) = delete;
  PlainMetaScope& operator=(const PlainMetaScope&) = delete;

 private:
  c10::Device former_;
};

}  // namespace gpipe

#endif  // META_META_DEVICES_H_
