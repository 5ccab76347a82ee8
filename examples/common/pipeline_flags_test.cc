#include "examples/common/pipeline_flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <vector>

#include "gpipe/world.h"

namespace examples {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;
using Devices = std::vector<c10::Device>;

const Devices kAnyOfCuda = {c10::Device(c10::kCUDA)};

TEST(OwnDevices, AreThoseThatAreGiven) {
  const gpipe::World two(nullptr, 1, 2, 1);
  for (const Devices& given :
       {Devices(), Devices{c10::Device("cpu")}, Devices{c10::Device("cuda:0")}}) {
    EXPECT_EQ(own_devices(given, two, 2), given);
  }
  EXPECT_EQ(own_devices(kAnyOfCuda, gpipe::World(), 2), kAnyOfCuda);
}

TEST(OwnDevices, OfAProcessIsTheOneWithItsNumberOnItsMachine) {
  const gpipe::World fourth(nullptr, 3, 4, 1);
  EXPECT_EQ(own_devices(kAnyOfCuda, fourth, 2), Devices{c10::Device("cuda:1")});
  EXPECT_THAT([&] { own_devices(kAnyOfCuda, fourth, 1); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("no cuda:1 here, but 1 of them")));
}

TEST(IdleFlags, AreTold) {
  PipelineSettings settings;
  settings.threads = 2;
  settings.replicas = 2;
  settings.zero = true;
  EXPECT_THAT(idle_flags(settings, c10::Device("cpu")), IsEmpty());
  EXPECT_THAT(idle_flags(settings, c10::Device("cuda:1")),
              ElementsAre("--threads=2 does nothing: the stages are on cuda:1"));
  settings.replicas = 1;
  EXPECT_THAT(idle_flags(settings, c10::Device("cpu")),
              ElementsAre(HasSubstr("--zero does nothing without replicas")));
}

}  // namespace
}  // namespace examples
