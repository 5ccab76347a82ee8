// The --devices flag of every experiment.

#ifndef GPIPE_EXPERIMENTS_COMMON_DEVICES_H_
#define GPIPE_EXPERIMENTS_COMMON_DEVICES_H_

#include <c10/core/Device.h>

#include <cstdint>
#include <string>
#include <vector>

namespace gpipe::experiments {

// Devices of a comma-separated list: "cpu,cpu", "cuda:0,cuda:1", or bare numbers for CUDA devices
// ("0,1"). One device may stand there several times. An empty text gives every one of the
// `cuda_devices`, or, if there is none, nothing: it is for the caller to decide how often to use
// the CPU. Throws c10::ValueError for what is no device and for a CUDA device that this machine
// does not have.
std::vector<c10::Device> parse_devices(const std::string& text, int64_t cuda_devices);

// As above, with the CUDA devices of this machine.
std::vector<c10::Device> parse_devices(const std::string& text);

// "cpu,cpu": the inverse.
std::string to_text(const std::vector<c10::Device>& devices);

}  // namespace gpipe::experiments

#endif  // GPIPE_EXPERIMENTS_COMMON_DEVICES_H_
