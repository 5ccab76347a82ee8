// Kernels: CPU operators as kernels of a fake device, run later by a stream's thread.
#ifndef GPIPE_TESTING_FAKE_ACCELERATOR_KERNELS_H_
#define GPIPE_TESTING_FAKE_ACCELERATOR_KERNELS_H_

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <functional>

namespace gpipe::testing::fake {

// A function that takes the operator's arguments, all on the CPU, from the stack and leaves its
// results there.
using CpuKernel = std::function<void(torch::jit::Stack&)>;

// Takes the operator's arguments from the stack, leaves results on the same device, and enqueues
// `kernel` on the current stream. The sizes of the results are found by calling `kernel` at once on
// other values (ones and zeros). So arguments that the CPU refuses are refused in this call. Only
// the values come later, and errors that depend on them (an index out of range, say) are errors of
// the device.
//
// If the result is not a tensor, or its size depends on values, the host waits for the stream.
//
// Throws c10::Error if the tensors are on several devices (numbers may be the host's) or on none,
// DeviceError if a task of the device has failed.
void run_on_stream(const c10::OperatorHandle& op, torch::jit::Stack* stack,
                   const CpuKernel& kernel);

// The kernel of all operators that have no kernel of their own.
void run_cpu_operator(const c10::OperatorHandle& op, torch::jit::Stack* stack);

}  // namespace gpipe::testing::fake

#endif  // GPIPE_TESTING_FAKE_ACCELERATOR_KERNELS_H_
