#include "experiments/frame/flags.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <stdexcept>
#include <string>

#include "absl/flags/commandlineflag.h"
#include "absl/flags/reflection.h"
#include "experiments/frame/devices.h"

namespace gpipe::experiments {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

class FlagsTest : public ::testing::Test {
 protected:
  static void set(const char* name, const std::string& value) {
    std::string error;
    ASSERT_TRUE(absl::FindCommandLineFlag(name)->ParseFrom(value, &error)) << error;
  }
  static void expect_refused(const char* name, const std::string& value, const std::string& text) {
    const absl::FlagSaver saver;
    std::string error;
    if (!absl::FindCommandLineFlag(name)->ParseFrom(value, &error)) {  // the flag's type refuses it
      EXPECT_THAT(error, AllOf(HasSubstr("'" + value + "'"),
                               HasSubstr("'" + std::string(name) + "'"), HasSubstr(text)));
      return;
    }
    try {
      read_common_flags();
      ADD_FAILURE() << "--" << name << "=" << value << " was taken";
    } catch (const std::exception& refused) {
      EXPECT_THAT(refused.what(),
                  AllOf(HasSubstr(std::string(name) + "=" + value), HasSubstr(text)));
    }
  }

  absl::FlagSaver saver_;
};

TEST_F(FlagsTest, TraceAndTableAreDifferentFiles) {
  const std::string file = ::testing::TempDir() + "/one.json";
  set("json", file);
  expect_refused("trace", file, "same file");
}

TEST_F(FlagsTest, AreReadIntoValues) {
  set("scale", "small");
  set("devices", "cpu,cpu");
  set("balance", "20,31");
  set("checkpoint", "never");
  set("schedule", "gpipe");
  set("seed", "7");
  const CommonFlags flags = read_common_flags();
  EXPECT_EQ(flags.scale, Scale::kSmall);
  EXPECT_EQ(flags.devices.size(), 2u);
  EXPECT_TRUE(flags.devices_given);
  EXPECT_THAT(flags.balance, ElementsAre(20, 31));
  EXPECT_TRUE(flags.for_pipelines());
  EXPECT_EQ(flags.checkpoint, Checkpoint::kNever);
  EXPECT_EQ(flags.schedule.value().name, "gpipe");
  EXPECT_EQ(flags.schedule->make(2, 3), Schedule::gpipe(2, 3));
  EXPECT_EQ(flags.seed, 7u);
  EXPECT_EQ(flags.skip_epochs, 1);
}

TEST_F(FlagsTest, TheCheckpointModeIsLeftToTheVariant) {
  const CommonFlags flags = read_common_flags();
  EXPECT_EQ(flags.checkpoint, std::nullopt);
  EXPECT_FALSE(flags.for_pipelines());
  EXPECT_EQ(flags.changes_what_runs(), "");
  EXPECT_EQ(to_text(choose_setup(flags, {2, 1}, 4)),
            "chunks 4, balance [2, 1], checkpoint except_last, 1f1b");
  EXPECT_EQ(
      to_text(choose_setup(flags, {2, 1}, 4, Checkpoint::kAlways, {"gpipe", Schedule::gpipe})),
      "chunks 4, balance [2, 1], checkpoint always, gpipe");
}

TEST_F(FlagsTest, GivenModeAndScheduleHoldForEveryVariant) {
  set("checkpoint", "never");
  set("schedule", "zb-h1");
  const CommonFlags flags = read_common_flags();
  EXPECT_EQ(flags.changes_what_runs(), "--checkpoint");
  const PipelineSetup setup = choose_setup(flags, {2, 1}, 4, Checkpoint::kAlways);
  EXPECT_EQ(to_text(setup), "chunks 4, balance [2, 1], checkpoint never, zb-h1");
  Json json;
  add_pipeline(setup, json);
  EXPECT_EQ(
      json,
      Json({{"chunks", 4}, {"balance", {2, 1}}, {"checkpoint", "never"}, {"schedule", "zb-h1"}}));
}

TEST_F(FlagsTest, MistakesAreFoundBeforeAnythingRuns) {
  expect_refused("scale", "tiny", "smoke, small or full");
  expect_refused("devices", "gpu", "is not a device");
  for (const char* name : {"epochs", "batch_size", "chunks"}) {
    expect_refused(name, "0", "from 1 on");
    expect_refused(name, "-1", "from 1 on");
  }
  expect_refused("skip_epochs", "-1", "from 0 on");
  expect_refused("balance", "2,x", "such as 20,31");
  expect_refused("checkpoint", "sometimes", "except_last");
  expect_refused("schedule", "1f1bb", "did you mean 1f1b?");
  expect_refused("json", "/proc/table.json", "cannot be written");
}

TEST_F(FlagsTest, ChunksOfABatch) {
  CommonFlags flags;
  EXPECT_EQ(choose_chunks(flags, 16, 64), 16);
  EXPECT_EQ(choose_chunks(flags, 16, 8), 8) << "no more than samples";
  flags.chunks = 4;
  EXPECT_EQ(choose_chunks(flags, 16, 8), 4);
  flags.chunks = 9;
  EXPECT_THAT([&] { choose_chunks(flags, 16, 8); },
              ThrowsMessage<std::invalid_argument>(
                  AllOf(HasSubstr("--chunks=9"), HasSubstr("a mini-batch of 8"))));
}

TEST_F(FlagsTest, DevicesOfAVariant) {
  CommonFlags flags;
  EXPECT_EQ(to_text(choose_devices(flags, "pipeline-2", 2)), "cpu,cpu");
  flags.devices = {c10::Device("cuda:0"), c10::Device("cuda:1"), c10::Device("cuda:2")};
  EXPECT_EQ(to_text(choose_devices(flags, "pipeline-2", 2)), "cuda:0,cuda:1");
  EXPECT_THAT([&] { choose_devices(flags, "pipeline-8", 8); },
              ThrowsMessage<std::invalid_argument>(
                  AllOf(HasSubstr("pipeline-8 needs 8 devices, and there are 3"),
                        HasSubstr("several times in --devices"))));
  EXPECT_THROW(choose_devices(flags, "dataparallel-1k", 8, /*any_number=*/true),
               std::invalid_argument)
      << "only devices given with --devices may be fewer than the variant needs";
  flags.devices_given = true;
  EXPECT_EQ(choose_devices(flags, "dataparallel-1k", 8, /*any_number=*/true).size(), 3u);
  EXPECT_EQ(choose_devices(flags, "dataparallel-256", 2, /*any_number=*/true).size(), 3u);
  flags.devices.resize(1, c10::Device(c10::kCPU));
  EXPECT_THAT([&] { choose_devices(flags, "pipeline-2", 2); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("there is 1 (cuda:0)")));
  EXPECT_EQ(count_devices(flags.devices), "1 x cuda");
}

}  // namespace
}  // namespace gpipe::experiments
