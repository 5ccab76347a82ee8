#include "gpipe/internal/call/devices.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <torch/cuda.h>

#include <utility>

#include "text/counted.h"

namespace gpipe::internal {
namespace {

std::vector<c10::Device> default_devices(size_t partitions) {
  std::vector<c10::Device> devices;
  const auto count = static_cast<c10::DeviceIndex>(torch::cuda::device_count());
  for (c10::DeviceIndex i = 0; i < count; ++i) devices.emplace_back(c10::kCUDA, i);
  if (devices.empty()) devices.assign(partitions, c10::Device(c10::kCPU));
  return devices;
}

// A device by its full name, so that "cuda" and "cuda:0" are the same device.
c10::Device normalized(c10::Device device) {
  if (device.is_cpu()) return c10::Device(c10::kCPU);
  if (device.has_index()) return device;
  return c10::impl::VirtualGuardImpl(device.type()).getDevice();
}

void check_devices(const std::vector<c10::Device>& devices) {
  for (size_t j = 0; j < devices.size(); ++j) {
    const c10::Device device = devices[j];
    if (device.is_cpu()) continue;
    const int count = c10::impl::hasDeviceGuardImpl(device.type())
                          ? c10::impl::VirtualGuardImpl(device.type()).deviceCount()
                          : 0;
    TORCH_CHECK_VALUE(count > 0 && device.index() >= -1 && device.index() < count, "device ", j,
                      " is ", device, ", but there ", count == 1 ? "is" : "are", " ",
                      text::counted(count, "device"), " of type ",
                      c10::DeviceTypeName(device.type(), /*lower_case=*/true),
                      " here; give devices that exist (torch::kCPU always does)");
  }
}

}  // namespace

std::vector<c10::Device> devices_for(size_t partitions, std::vector<c10::Device> given) {
  if (given.empty()) given = default_devices(partitions);
  TORCH_CHECK_INDEX(given.size() >= partitions, "the balance has ", partitions,
                    " partitions, but there ", given.size() == 1 ? "is" : "are", " only ",
                    text::counted(static_cast<int64_t>(given.size()), "device"),
                    "; give fewer partitions or name a device several times");
  given.erase(given.begin() + static_cast<int64_t>(partitions), given.end());
  check_devices(given);
  for (c10::Device& device : given) device = normalized(device);
  return given;
}

std::vector<c10::Device> devices_of_process(size_t partitions, std::vector<c10::Device> given,
                                            const StageMap& stage_map) {
  if (given.empty()) given = {c10::Device(c10::kCPU)};
  if (given.size() == 1) given.resize(partitions, given.front());
  TORCH_CHECK_INDEX(given.size() >= partitions, "the balance has ", partitions,
                    " partitions, and there are ", given.size(),
                    " devices; over processes give one, that of this process, or one for each "
                    "partition");
  std::vector<c10::Device> here;
  for (size_t j = 0; j < partitions; ++j) {
    if (stage_map.has_stage(static_cast<int64_t>(j))) here.push_back(given[j]);
  }
  here = devices_for(here.size(), here);
  for (const c10::Device& device : here) {
    TORCH_CHECK_VALUE(device == here.front(), "the partitions of this process are on ",
                      here.front(), " and on ", device,
                      ": over processes each has one device; start a process for each device");
    TORCH_CHECK_VALUE(!device.is_meta(),
                      "a pipeline over several processes cannot run on meta; build the model under "
                      "MetaScope instead, and give devices that compute");
  }
  return std::vector<c10::Device>(partitions, here.front());
}

}  // namespace gpipe::internal
