// Copies: copies within a fake device, between two fake devices, and between one and the host.
#ifndef GPIPE_TESTING_FAKE_ACCELERATOR_COPIES_H_
#define GPIPE_TESTING_FAKE_ACCELERATOR_COPIES_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>

namespace gpipe::testing::fake {

// The kernel of copy_(), like CUDA's (aten/src/ATen/native/cuda/Copy.cu); returns `to`:
// - within a device: a kernel on its current stream.
// - between devices: on the current stream of `from`'s device, which first waits for the current
//   stream of `to`'s device. The latter stream then waits for the copy.
// - between device and host: on the device's current stream. If types or strides differ, the copy
//   goes through temporary tensors; those on the host are in memory that is not pinned. The host
//   waits unless the copy is `non_blocking` and the host's memory is pinned. Pinned memory is then
//   kept alive for the copy, but the copy does not order what the host reads or writes there
//   meanwhile.
//
// Requirements: `from` can be expanded to the sizes of `to`; one of them is on a fake device.
//
// Throws DeviceError.
at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking);

// Returns item(), for which the host waits.
c10::Scalar value_of(const at::Tensor& tensor);

}  // namespace gpipe::testing::fake

#endif  // GPIPE_TESTING_FAKE_ACCELERATOR_COPIES_H_
