#include "gpipe/internal/call/devices.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/cuda.h>

namespace gpipe::internal {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

const c10::Device kHost(c10::kCPU);

TEST(DevicesForTest, SurplusOnesAreDroppedAndNamesAreFull) {
  EXPECT_THAT(devices_for(2, {kHost, c10::Device(c10::kCPU, 0), kHost}), ElementsAre(kHost, kHost));
  EXPECT_THAT(devices_for(0, {}), ElementsAre());
}

TEST(DevicesForTest, WithoutGpusTheHostIsTheDefault) {
  if (torch::cuda::is_available()) GTEST_SKIP() << "this machine has GPUs";
  EXPECT_THAT(devices_for(3, {}), ElementsAre(kHost, kHost, kHost));
}

TEST(DevicesForTest, RefusesTooFewAndThoseThatAreNotThere) {
  EXPECT_THAT(([] {
                devices_for(3, {kHost, kHost});
              }),
              ThrowsMessage<c10::IndexError>(
                  AllOf(HasSubstr("3 partitions"), HasSubstr("only 2 devices"))));
  EXPECT_THAT(([] { devices_for(3, {kHost}); }),
              ThrowsMessage<c10::IndexError>(HasSubstr("there is only 1 device;")));
  EXPECT_THAT(([] {
                devices_for(2, {kHost, c10::Device(c10::kXPU, 1)});
              }),
              ThrowsMessage<c10::ValueError>(
                  AllOf(HasSubstr("device 1 is xpu:1"), HasSubstr("0 devices of type xpu"))));
}

// Stages 0 and 2 are in process 0, stage 1 in process 1.
StageMap stage_map(int64_t rank) { return {Placement::one_each(3).processes({0, 1, 0}), rank, 2}; }

TEST(DevicesOfProcess, TheOneThatIsGivenIsForAllPartitions) {
  EXPECT_THAT(devices_of_process(3, {}, stage_map(0)), ElementsAre(kHost, kHost, kHost));
  EXPECT_THAT(devices_of_process(3, {c10::Device(c10::kCPU, 0)}, stage_map(1)),
              ElementsAre(kHost, kHost, kHost));
}

TEST(DevicesOfProcess, ThoseOfOtherProcessesAreNotLookedAt) {
  const c10::Device elsewhere(c10::kXPU, 7);
  EXPECT_THAT(devices_of_process(3, {kHost, elsewhere, kHost}, stage_map(0)),
              ElementsAre(kHost, kHost, kHost));
}

TEST(DevicesOfProcess, RefusesSeveralAndThoseThatAreNotThere) {
  EXPECT_THAT(([] {
                devices_of_process(3, {kHost, kHost, c10::kMeta}, stage_map(0));
              }),
              ThrowsMessage<c10::ValueError>(
                  AllOf(HasSubstr("on cpu and on meta"), HasSubstr("a process for each device"))));
  EXPECT_THAT(([] { devices_of_process(3, {c10::kMeta}, stage_map(0)); }),
              ThrowsMessage<c10::ValueError>(HasSubstr("cannot run on meta")));
  EXPECT_THAT(([] {
                devices_of_process(3, {kHost, c10::Device(c10::kXPU, 1), kHost}, stage_map(1));
              }),
              ThrowsMessage<c10::ValueError>(HasSubstr("0 devices of type xpu")));
  EXPECT_THAT(([] {
                devices_of_process(3, {kHost, kHost}, stage_map(0));
              }),
              ThrowsMessage<c10::IndexError>(
                  AllOf(HasSubstr("3 partitions"), HasSubstr("2 devices"), HasSubstr("give one"))));
}

}  // namespace
}  // namespace gpipe::internal
