#include "gpipe/testing/spin_kernel/spin_kernel.h"

#include <gtest/gtest.h>
#include <torch/cuda.h>

#include <chrono>
#include <cstdlib>
#include <stdexcept>
#include <string>

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

// Without a GPU, or without the kernel, launch_spin_kernel() throws.
TEST(SpinKernel, WithoutAGpuItCannotBeLaunched) {
  if (torch::cuda::is_available() && has_spin_kernel()) return;  // SpinKernelTest tests this case
  EXPECT_THROW(launch_spin_kernel(1, nullptr), std::runtime_error);
}

// Without the kernel, slow_work() on a GPU throws. A substitute for the kernel would let tests of
// order pass without showing anything.
TEST(SpinKernel, WithoutItThereIsNoSlowWork) {
  if (has_spin_kernel()) return;
  const char* const former = std::getenv("GPIPE_TEST_DEVICE");
  const std::string kind = former == nullptr ? "cpu" : former;
  setenv("GPIPE_TEST_DEVICE", "cuda", 1);
  try {
    slow_work(c10::Device(c10::kCUDA, 0));
    ADD_FAILURE() << "nothing thrown";
  } catch (const std::runtime_error& error) {
    EXPECT_NE(std::string(error.what()).find("put nvcc on PATH"), std::string::npos)
        << error.what();
  }
  setenv("GPIPE_TEST_DEVICE", kind.c_str(), 1);
}

// The kernel takes at least the given time, whatever the GPU's frequency. The upper bound is wide,
// because others may use the GPU.
TEST_F(SpinKernelTest, TakesTheTimeThatItIsTold) {
  if (!for_gpus()) return;
  ASSERT_TRUE(has_spin_kernel()) << "this program was built without a CUDA Toolkit";
  milliseconds_of(1'000'000);  // the first call loads the kernel
  for (const int64_t milliseconds : {5, 50, 200}) {
    const double took = milliseconds_of(milliseconds * 1'000'000);
    EXPECT_GE(took, 0.999 * static_cast<double>(milliseconds));
    EXPECT_LE(took, 2.0 * static_cast<double>(milliseconds) + 20.0);
  }
}
#endif

}  // namespace
}  // namespace gpipe::testing
