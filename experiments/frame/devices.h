// Devices: the --devices flag of every experiment.
#ifndef GPIPE_EXPERIMENTS_FRAME_DEVICES_H_
#define GPIPE_EXPERIMENTS_FRAME_DEVICES_H_

#include <c10/core/Device.h>

#include <cstdint>
#include <string>
#include <vector>

namespace gpipe::experiments {

// The devices of a comma-separated list: "cpu,cpu", "cuda:0,cuda:1", or bare numbers for CUDA
// devices ("0,1"). A device may be listed several times. An empty text gives all of the
// `cuda_devices`; if there are none, it gives nothing, and the caller decides how often to use the
// CPU. Throws c10::ValueError for anything that is not a device and for a CUDA device that this
// machine does not have.
std::vector<c10::Device> parse_devices(const std::string& text, int64_t cuda_devices);

// parse_devices(), with the CUDA devices of this machine.
std::vector<c10::Device> parse_devices(const std::string& text);

// The inverse of parse_devices(): a text like "cpu,cpu".
std::string to_text(const std::vector<c10::Device>& devices);

}  // namespace gpipe::experiments

#endif  // GPIPE_EXPERIMENTS_FRAME_DEVICES_H_
