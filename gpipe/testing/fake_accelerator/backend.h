// Backend: the fake accelerator as LibTorch sees it.
//
// It has devices "fake:0" to "fake:3" of type PrivateUse1, with streams, events, device and pinned
// memory, and generators. operators.cc adds the operators that compute on them.
//
// Linking it makes PrivateUse1 the accelerator of the process, in CUDA's place. It therefore
// belongs in test programs of its own.
#ifndef GPIPE_TESTING_FAKE_ACCELERATOR_BACKEND_H_
#define GPIPE_TESTING_FAKE_ACCELERATOR_BACKEND_H_

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <cstddef>
#include <functional>

#include "gpipe/testing/fake_accelerator/allocator.h"
#include "gpipe/testing/fake_accelerator/runtime.h"

namespace gpipe::testing::fake {

// The runtime and the allocator of the process. They live until it ends. The streams' threads end
// when exit() begins, and what is enqueued later is dropped.
Runtime& runtime();
Allocator& allocator();

// LibTorch's view of allocator(): memory of the current device for its current stream.
c10::Allocator* device_allocator();

// The observer is called when a device has less free memory than was asked for, on the thread that
// asked, before c10::OutOfMemoryError is thrown. Sizes are in bytes. There is at most one observer;
// a later call replaces it.
using OutOfMemoryObserver =
    std::function<void(c10::Device device, size_t asked, size_t free, size_t total)>;
void observe_out_of_memory(OutOfMemoryObserver observer);

c10::Device device(int number);

// Whether a thread has made the device its current one, which on CUDA makes a context there.
// Restoring the device that was current before (uncheckedSetDevice) does not count.
bool was_made_current(int device);

// The calling thread's current stream.
StreamId current_stream(c10::Device device);
// Requirements: a stream of a fake device.
StreamId id_of(c10::Stream stream);
c10::Stream stream_of(StreamId id);

}  // namespace gpipe::testing::fake

#endif  // GPIPE_TESTING_FAKE_ACCELERATOR_BACKEND_H_
