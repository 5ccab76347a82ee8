// Tests that a test program does not use GPUs before its tests do, because forked children of a
// process that has used GPUs cannot use them.
#include <ATen/ops/rand.h>
#include <gtest/gtest.h>

namespace {

int times_counted = 0;

}  // namespace

// This function takes the place of the CUDA runtime's function, also for LibTorch's libraries. It
// counts its calls.
extern "C" __attribute__((visibility("default"))) int cudaGetDeviceCount(int* count) {
  constexpr int kNoDevice = 100;
  ++times_counted;
  *count = 0;
  return kNoDevice;
}

namespace gpipe::testing {
namespace {

TEST(TorchSeedAndGpus, GpusAreNotLookedFor) {
  (void)at::rand({2});
  EXPECT_EQ(times_counted, 0);
}

}  // namespace
}  // namespace gpipe::testing
