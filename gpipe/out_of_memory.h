// OutOfMemory: what a device's allocator was asked for when it had no more.
#ifndef GPIPE_OUT_OF_MEMORY_H_
#define GPIPE_OUT_OF_MEMORY_H_

#include <c10/core/Device.h>

#include <cstdint>

namespace gpipe {

// All in bytes, as the allocator itself told them.
struct OutOfMemory {
  c10::Device device;  // which need not be the stage's: a value travels to another one
  int64_t asked = 0;
  int64_t free = 0;   // what nobody on the machine had taken, as the driver sees it
  int64_t total = 0;  // of the device, or the share of it that this process may take
};

}  // namespace gpipe

#endif  // GPIPE_OUT_OF_MEMORY_H_
