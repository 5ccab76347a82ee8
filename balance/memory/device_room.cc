#include "balance/memory/device_room.h"

#include "balance/memory/caching_allocator.h"

namespace gpipe::balance {

int64_t bytes_without_limit(const MemoryPlan& plan, size_t device) {
  const DeviceMemory& memory = plan.devices.at(device);
  return plan.device_type == c10::kCPU ? memory.peak.bytes : memory.reserved;
}

std::optional<int64_t> bytes_within(const MemoryPlan& plan, size_t device, int64_t room) {
  const int64_t bytes = bytes_without_limit(plan, device);
  if (bytes <= room) return bytes;
  // A capacity of 0 would mean "unlimited".
  if (plan.device_type == c10::kCPU || room <= 0 || plan.devices[device].peak.bytes > room) {
    return std::nullopt;
  }
  const int64_t thrifty = peak_reserved(plan.trace, room)[device];
  if (thrifty < 0) return std::nullopt;
  return thrifty;
}

}  // namespace gpipe::balance
