// bytes_within, least_room: whether a planned device fits into its room, and which room it needs.
#ifndef BALANCE_MEMORY_DEVICE_ROOM_H_
#define BALANCE_MEMORY_DEVICE_ROOM_H_

#include <cstddef>
#include <cstdint>
#include <optional>

#include "balance/memory/memory_plan.h"

namespace gpipe::balance {

// The bytes that a device takes if its room has no limit: on the CPU those of its tensors at the
// peak, elsewhere those that the allocator reserves.
int64_t bytes_without_limit(const MemoryPlan& plan, size_t device);

// The bytes that a device takes of `room` bytes; none if they are too few. The allocator gives back
// what it has cached before it runs out, so these may be fewer than bytes_without_limit().
//
// Requirements: the plan was made without a capacity, and has its trace.
std::optional<int64_t> bytes_within(const MemoryPlan& plan, size_t device, int64_t room);

// The least room in which a device can run through the plan's trace, to `precision` bytes. `low`
// bytes must be too few, `high` must be enough. Requirements: as for bytes_within().
int64_t least_room(const MemoryPlan& plan, size_t device, int64_t low, int64_t high,
                   int64_t precision);

}  // namespace gpipe::balance

#endif  // BALANCE_MEMORY_DEVICE_ROOM_H_
