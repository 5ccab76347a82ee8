// Tests that each of the programs that gpipe_cc_test makes of this source knows its device and can
// use it.

#include <ATen/Context.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

namespace {

TEST(Device, IsThatOfTheTarget) {
  const char* device = std::getenv("GPIPE_TEST_DEVICE");
  ASSERT_NE(device, nullptr);
  if (std::string(device) == "cuda" && !at::hasCUDA()) GTEST_SKIP() << "no GPU";
  const at::Tensor ones = at::ones({3}, at::TensorOptions().device(device));
  EXPECT_EQ(ones.sum().item<double>(), 3) << device;
}

}  // namespace
