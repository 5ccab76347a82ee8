#include "experiments/frame/memory_limit.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <exception>

#include "command/run.h"

namespace gpipe::experiments {
namespace {

constexpr int64_t kMiB = 1 << 20;

void take(int64_t mebibytes) { at::empty({mebibytes * kMiB}, at::kByte); }

TEST(MemoryLimitTest, MoreThrows) {
  const MemoryLimit limit(512 * kMiB);
  take(64);
  try {
    take(4096);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const std::exception& error) {
    EXPECT_TRUE(command::is_out_of_memory(error)) << error.what();
  }
  take(64);
}

TEST(MemoryLimitTest, EndsWithItsScope) {
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_DATA, &before), 0);
  { const MemoryLimit limit(64 * kMiB); }
  rlimit after = {};
  ASSERT_EQ(getrlimit(RLIMIT_DATA, &after), 0);
  EXPECT_EQ(after.rlim_cur, before.rlim_cur);
  take(256);
}

TEST(MemoryLimitTest, ZeroIsNoLimit) {
  const MemoryLimit limit(0);
  take(256);
}

TEST(MemoryLimitTest, OnlyRunsOnTheCpuAreLimited) {
  EXPECT_GT(limit_of_run({c10::kCPU, c10::kCPU}), 64 * kMiB);
  EXPECT_EQ(limit_of_run({c10::kCPU, c10::Device(c10::kCUDA, 0)}), 0);
}

}  // namespace
}  // namespace gpipe::experiments
