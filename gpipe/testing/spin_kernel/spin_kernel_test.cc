#include "gpipe/testing/spin_kernel/spin_kernel.h"

#include <gtest/gtest.h>
#include <torch/cuda.h>

#include <chrono>
#include <stdexcept>

#include "gpipe/testing/device.h"

#if GPIPE_TORCH_HAS_CUDA
#include <c10/cuda/CUDAStream.h>
#endif

namespace gpipe::testing {
namespace {

#if GPIPE_TORCH_HAS_CUDA
class SpinKernelTest : public DeviceTest {};

double milliseconds_of(int64_t nanoseconds) {
  const c10::cuda::CUDAStream stream = c10::cuda::getCurrentCUDAStream();
  stream.synchronize();
  const auto begin = std::chrono::steady_clock::now();
  launch_spin_kernel(nanoseconds, stream.stream());
  stream.synchronize();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin)
      .count();
}

// On a machine without a GPU this shows that the kernel is linked and says so.
TEST(SpinKernel, WithoutAGpuItCannotBeLaunched) {
  if (torch::cuda::is_available() && has_spin_kernel()) return;  // SpinKernelTest shows it
  EXPECT_THROW(launch_spin_kernel(1, nullptr), std::runtime_error);
}

// At least as long as asked for, whatever the GPU's frequency; the upper bound is wide, for others
// may use the GPU.
TEST_F(SpinKernelTest, TakesTheTimeThatItIsTold) {
  // For the CPU, and where it was built without a CUDA Toolkit, the case above is all there is.
  // Tests that need a busy stream use LibTorch's own kernel then.
  if (!for_gpus() || !has_spin_kernel()) return;
  milliseconds_of(1'000'000);  // loads the kernel
  for (const int64_t milliseconds : {5, 50, 200}) {
    const double took = milliseconds_of(milliseconds * 1'000'000);
    EXPECT_GE(took, 0.999 * static_cast<double>(milliseconds));
    EXPECT_LE(took, 2.0 * static_cast<double>(milliseconds) + 20.0);
  }
}
#endif

}  // namespace
}  // namespace gpipe::testing
