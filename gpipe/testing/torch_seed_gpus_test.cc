// Tests that a test program does not use GPUs before its tests do: forked children of a process
// that has used them cannot.
#include <ATen/ops/rand.h>
#include <gtest/gtest.h>

namespace {

int times_counted = 0;

}  // namespace

// Takes the place of the CUDA runtime's function, for LibTorch's libraries, too.
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
