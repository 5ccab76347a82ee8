#include <cuda_runtime_api.h>

#include <stdexcept>
#include <string>

#include "gpipe/testing/spin_kernel/spin_kernel.h"

namespace gpipe::testing {
namespace {

// The GPU's clock in nanoseconds, which is the same on all of its processors and at any frequency.
__device__ unsigned long long now() {
  unsigned long long time;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
  return time;
}

__global__ void spin(unsigned long long nanoseconds) {
  const unsigned long long begin = now();
  while (now() - begin < nanoseconds) {
  }
}

}  // namespace

void launch_spin_kernel(int64_t nanoseconds, void* stream) {
  spin<<<1, 1, 0, static_cast<cudaStream_t>(stream)>>>(
      static_cast<unsigned long long>(nanoseconds));
  const cudaError_t error = cudaGetLastError();
  if (error == cudaSuccess) return;
  throw std::runtime_error(std::string("the spin kernel cannot be launched: ") +
                           cudaGetErrorString(error));
}

bool has_spin_kernel() { return true; }

}  // namespace gpipe::testing
