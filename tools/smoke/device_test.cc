// gpipe_cc_test makes two programs of this source: each is told its device.

#include <ATen/Context.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

namespace {

TEST(Device, IsThatOfTheTarget) {
  const char* device = std::getenv("GPIPE_TEST_DEVICE");
  ASSERT_NE(device, nullptr);
  if (std::string(device) == "cuda" && !at::hasCUDA()) GTEST_SKIP() << "no GPU";
  EXPECT_TRUE(std::string(device) == "cpu" || std::string(device) == "cuda") << device;
}

}  // namespace
