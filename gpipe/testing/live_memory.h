// LiveMemory: how many bytes LibTorch has allocated on the CPU, now and at the peak.
#ifndef GPIPE_TESTING_LIVE_MEMORY_H_
#define GPIPE_TESTING_LIVE_MEMORY_H_

#include <cstdint>

namespace gpipe::testing {

// Puts a counting allocator in front of LibTorch's own for the rest of the process. Tensors that
// were allocated earlier are not counted. Idempotent, thread-safe.
void count_live_memory();

// Bytes in tensors allocated since count_live_memory() and not yet freed.
int64_t live_bytes();

// The maximum of live_bytes() since the last reset_peak_bytes().
int64_t peak_bytes();
void reset_peak_bytes();

}  // namespace gpipe::testing

#endif  // GPIPE_TESTING_LIVE_MEMORY_H_
