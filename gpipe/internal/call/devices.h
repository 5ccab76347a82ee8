// devices_for, devices_of_process: the devices of a pipeline's partitions.
#ifndef GPIPE_INTERNAL_CALL_DEVICES_H_
#define GPIPE_INTERNAL_CALL_DEVICES_H_

#include <c10/core/Device.h>

#include <cstddef>
#include <vector>

#include "gpipe/internal/processes/stage_map.h"

namespace gpipe::internal {

// Returns `given` for the partitions, as full names, so that "cuda" and "cuda:0" are the same
// device; surplus devices are dropped. If none are given: every CUDA device, or the CPU as often as
// needed.
//
// Throws c10::IndexError if there are too few devices, c10::ValueError for a device that does not
// exist. It does so before any layer is moved, since a moved layer is not moved back.
std::vector<c10::Device> devices_for(size_t partitions, std::vector<c10::Device> given);

// Like devices_for(), with several processes: the device of this process, once for each partition,
// including those that are elsewhere. `given`: none for the CPU, one, or one for each partition;
// the devices of partitions elsewhere are ignored. Also throws c10::ValueError if the partitions
// here have several devices, or are on meta.
std::vector<c10::Device> devices_of_process(size_t partitions, std::vector<c10::Device> given,
                                            const StageMap& stage_map);

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_CALL_DEVICES_H_
