// OutOfMemory: what a device's allocator was asked for when it had no memory left.
#ifndef GPIPE_OUT_OF_MEMORY_H_
#define GPIPE_OUT_OF_MEMORY_H_

#include <c10/core/Device.h>

#include <cstdint>

namespace gpipe {

// All sizes are in bytes, as the allocator reports them.
struct OutOfMemory {
  c10::Device device;  // not always the stage's own: a value may be copied to another device
  int64_t asked = 0;
  int64_t free = 0;   // the device's memory that no process had taken, as the driver sees it
  int64_t total = 0;  // the device's memory, or the share of it that this process may take
};

}  // namespace gpipe

#endif  // GPIPE_OUT_OF_MEMORY_H_
