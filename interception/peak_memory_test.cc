#include "interception/peak_memory.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <thread>

#include "gpipe/testing/device.h"

namespace gpipe::internal {
namespace {

using ::testing::ElementsAre;

constexpr int64_t kMiB = 1 << 20;

using PeakMemoryTest = gpipe::testing::DeviceTest;

// A tensor of floats of this size, on the device under test.
at::Tensor take(int64_t mebibytes) {
  return at::empty({mebibytes * kMiB / 4},
                   at::TensorOptions(at::kFloat).device(gpipe::testing::device()));
}

TEST_F(PeakMemoryTest, IsOfWhatIsHeldAtOnce) {
  PeakMemory memory({gpipe::testing::device()});
  // For large blocks, CUDA's allocator reserves exactly what is taken, too.
  { const at::Tensor first = take(64); }
  ASSERT_EQ(memory.held().size(), 1u);
  EXPECT_EQ(memory.held()[0], 64 * kMiB);
  const at::Tensor second = take(64);
  EXPECT_EQ(memory.held()[0], 64 * kMiB);
  { const at::Tensor third = take(32); }
  EXPECT_EQ(memory.held()[0], 96 * kMiB);
  memory.reset(/*gives_back=*/true);
  EXPECT_EQ(memory.held()[0], 64 * kMiB);
}

TEST_F(PeakMemoryTest, SeesAllThreads) {
  PeakMemory memory({gpipe::testing::device()});
  at::Tensor kept;
  std::thread([&kept] { kept = take(64); }).join();
  EXPECT_EQ(memory.held()[0], 64 * kMiB);
}

TEST_F(PeakMemoryTest, ADeviceCountsOnce) {
  const c10::Device device = gpipe::testing::device();
  PeakMemory memory({device, device, device});
  const at::Tensor held = take(64);
  EXPECT_THAT(memory.devices(), ElementsAre(device));
  ASSERT_EQ(memory.held().size(), 1u);
  EXPECT_EQ(memory.held()[0], 64 * kMiB);
}

TEST_F(PeakMemoryTest, OneAtATime) {
  const PeakMemory memory({c10::kCPU});
  EXPECT_THROW(PeakMemory({c10::kCPU}), std::logic_error);
}

TEST_F(PeakMemoryTest, OtherDevicesAreRefused) {
  EXPECT_THROW(PeakMemory({c10::kMeta}), std::invalid_argument);
}

}  // namespace
}  // namespace gpipe::internal
