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
  // A room of 0 is too small for all bytes, but peak_reserved() would take it as "no limit".
  if (plan.device_type == c10::kCPU || room <= 0 || plan.devices[device].peak.bytes > room) {
    return std::nullopt;
  }
  const int64_t thrifty = peak_reserved(plan.trace, room)[device];
  if (thrifty < 0) return std::nullopt;
  return thrifty;
}

int64_t least_room(const MemoryPlan& plan, size_t device, int64_t low, int64_t high,
                   int64_t precision) {
  const MemoryTrace& trace = plan.trace;
  MemoryTrace own;
  own.devices = trace.devices;
  own.turns = trace.turns;
  own.blocks = trace.blocks;
  for (const MemoryEvent& event : trace.events) {
    if (trace.blocks[static_cast<size_t>(event.block)].device == static_cast<int32_t>(device)) {
      own.events.push_back(event);
    }
  }
  while (high - low > precision) {
    const int64_t middle = low + (high - low) / 2;
    (peak_reserved(own, middle)[device] < 0 ? low : high) = middle;
  }
  return high;
}

}  // namespace gpipe::balance
