// enter_device: prepares a thread that is about to work for a device.
#ifndef GPIPE_INTERNAL_THREADS_DEVICE_CONTEXT_H_
#define GPIPE_INTERNAL_THREADS_DEVICE_CONTEXT_H_

#include <c10/core/Device.h>

namespace gpipe::internal {

// Makes a GPU's context current on this thread, if the thread has none yet. Does nothing for other
// devices.
//
// LibTorch's guards do that only for another GPU than the one a thread begins with. If a thread's
// first operator for GPU 0 is a matrix product, in memory that the allocator had already, the
// thread would have no context: cuBLAS's handles then take the context themselves, and warn. Throws
// c10::Error if the GPU cannot be used.
void enter_device(c10::Device device);

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_THREADS_DEVICE_CONTEXT_H_
