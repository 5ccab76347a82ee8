// The devices of a pipeline's partitions.
#ifndef GPIPE_INTERNAL_DEVICES_H_
#define GPIPE_INTERNAL_DEVICES_H_

#include <c10/core/Device.h>

#include <cstddef>
#include <vector>

namespace gpipe::internal {

// `given` for the partitions, by their full names, so that "cuda" and "cuda:0" are the same one;
// surplus ones are dropped. If none are given: every CUDA device, or the CPU as often as needed.
// Throws c10::IndexError if there are too few, c10::ValueError for one that does not exist: before
// any layer is moved, since one that has been moved is not moved back.
std::vector<c10::Device> devices_for(size_t partitions, std::vector<c10::Device> given);

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_DEVICES_H_
