// launch_spin_kernel: keeps a CUDA stream busy for a time that is known, for tests of order.
//
// LibTorch's own at::cuda::sleep counts cycles, whose number per second differs between GPUs and
// changes with their clocks.
#ifndef GPIPE_TESTING_SPIN_KERNEL_SPIN_KERNEL_H_
#define GPIPE_TESTING_SPIN_KERNEL_SPIN_KERNEL_H_

#include <cstdint>

namespace gpipe::testing {

// Launches a kernel of one thread on `stream` (a cudaStream_t; null: the default stream) of the
// current device. It ends when the GPU's clock has advanced by `nanoseconds` (at least 0; the clock
// of some GPUs ticks once in a microsecond). Does not wait for it. Throws std::runtime_error if it
// cannot be launched, or if this program was built without a CUDA Toolkit.
void launch_spin_kernel(int64_t nanoseconds, void* stream);

// Whether launch_spin_kernel() has a kernel, because a CUDA Toolkit compiled this program.
bool has_spin_kernel();

}  // namespace gpipe::testing

#endif  // GPIPE_TESTING_SPIN_KERNEL_SPIN_KERNEL_H_
