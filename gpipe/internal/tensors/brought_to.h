// brought_to: tensors on another device, or on the host, outside of a run.
#ifndef GPIPE_INTERNAL_TENSORS_BROUGHT_TO_H_
#define GPIPE_INTERNAL_TENSORS_BROUGHT_TO_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <vector>

namespace gpipe::internal {

// The tensors, detached, on `device`: copies of those that are elsewhere. Copies between a device
// and the host go through pinned memory, and current streams make them, as Transfers does. If
// `device` is the host, the thread waits once for each device that some of the tensors are on.
// Otherwise no thread waits.
std::vector<at::Tensor> brought_to(c10::Device device, const std::vector<at::Tensor>& tensors);

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_TENSORS_BROUGHT_TO_H_
