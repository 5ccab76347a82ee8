#include "experiments/frame/devices.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <string>

namespace gpipe::experiments {
namespace {

TEST(ParseDevices, Lists) {
  EXPECT_EQ(to_text(parse_devices("cpu,cpu", 0)), "cpu,cpu");
  EXPECT_EQ(to_text(parse_devices("cuda:1,cuda:0,cuda:1", 2)), "cuda:1,cuda:0,cuda:1");
  EXPECT_EQ(to_text(parse_devices("0,1,cpu", 2)), "cuda:0,cuda:1,cpu");
  EXPECT_EQ(to_text(parse_devices("cuda", 1)), "cuda:0");
  EXPECT_EQ(to_text(parse_devices("cpu, cpu", 1)), "cpu,cpu");
}

TEST(ParseDevices, EmptyIsEveryCudaDevice) {
  EXPECT_EQ(to_text(parse_devices("", 3)), "cuda:0,cuda:1,cuda:2");
  EXPECT_TRUE(parse_devices("", 0).empty());
}

TEST(ParseDevices, RefusesWhatIsNotADevice) {
  for (const std::string text : {"gpu", "cpu,", ",", "cuda:", "cuda:x", "cuda:-1", "-1", "cpu cpu",
                                 "cuda:0,cuda:7", "99999999999"}) {
    EXPECT_THROW(parse_devices(text, 4), c10::ValueError) << text;
  }
  try {
    parse_devices("cuda:7", 4);
    FAIL();
  } catch (const c10::ValueError& error) {
    EXPECT_NE(std::string(error.what()).find("this machine has 4"), std::string::npos);
  }
}

}  // namespace
}  // namespace gpipe::experiments
