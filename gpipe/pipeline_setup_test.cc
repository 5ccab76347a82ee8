#include "gpipe/pipeline_setup.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

#include "gpipe/schedule/named_schedule.h"
#include "gpipe/setup.h"

namespace gpipe {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::testing::StartsWith;
using ::testing::StrEq;
using ::testing::ThrowsMessage;

constexpr Checkpoint kModes[] = {Checkpoint::kAlways, Checkpoint::kExceptLast, Checkpoint::kNever};

TEST(PipelineSetup, ModesAreWhatTheirTextsSay) {
  for (const Checkpoint mode : kModes) {
    EXPECT_EQ(checkpoint_by_name(to_text(mode), "--checkpoint=x"), mode);
  }
}

TEST(PipelineSetup, OtherTextsAreRefusedWithTheOneThatWasMeant) {
  const auto refused = [](const std::string& name, const std::string& message) {
    EXPECT_THAT([&] { checkpoint_by_name(name, "--checkpoint=" + name); },
                ThrowsMessage<std::invalid_argument>(StrEq(message)));
  };
  refused("sometimes", "--checkpoint=sometimes: give always, except_last or never");
  refused("", "--checkpoint=: give always, except_last or never");
  refused("Except-Last",
          "--checkpoint=Except-Last: give always, except_last or never; did you mean except_last?");
  refused("alway", "--checkpoint=alway: give always, except_last or never; did you mean always?");
}

TEST(PipelineSetup, ChoicesAreSchedulesWithTheirPlacements) {
  for (const NamedSchedule& named : named_schedules()) {
    const ScheduleChoice choice = choice_by_name(named.name, "--schedule=x");
    EXPECT_EQ(choice.name, named.name);
    EXPECT_EQ(choice.make(6, 5), schedule_by_name(named.name, 6, 5)) << named.name;
    EXPECT_EQ(choice.placement(6), placement_by_name(named.name, 6)) << named.name;
  }
}

TEST(PipelineSetup, OtherSchedulesAreRefusedWithTheOneThatWasMeant) {
  EXPECT_THAT([] { choice_by_name("zbv", "--schedules=1f1b,zbv"); },
              ThrowsMessage<std::invalid_argument>(
                  AllOf(StartsWith("--schedules=1f1b,zbv: there is no schedule 'zbv'"),
                        HasSubstr("did you mean zb-v?"))));
  EXPECT_THAT([] { choice_by_name("zb-v", "--schedule=zb-v").placement(3); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("take 2 or 4 stages")));
}

TEST(PipelineSetup, IsThatOfAStepWithoutOptions) {
  const PipelineSetup setup;
  EXPECT_EQ(setup.schedule.name, "1f1b");
  EXPECT_EQ(setup.schedule.make(3, 5), Schedule::one_f_one_b(3, 5));
  EXPECT_EQ(setup.chunks, 1);
  EXPECT_EQ(step_options(setup).schedule_for(3, 5), StepOptions().schedule_for(3, 5));
}

TEST(PipelineSetup, BecomesOptionsWithAllThatItHas) {
  PipelineSetup setup;
  setup.balance = {2, 1};
  setup.chunks = 4;
  setup.checkpoints = {Checkpoint::kAlways, Checkpoint::kNever};
  setup.schedule = choice_by_name("zb-h1", "");
  setup.shared_inputs = {1};
  setup.direct_skips = false;
  const GPipeOptions options = pipe_options(setup, {c10::kCPU, c10::kCPU});
  EXPECT_EQ(options.balance(), setup.balance);
  EXPECT_EQ(options.chunks(), 4);
  EXPECT_EQ(options.partition_checkpoints(), setup.checkpoints);
  EXPECT_EQ(options.shared_inputs(), setup.shared_inputs);
  EXPECT_THAT(options.devices(), SizeIs(2));
  EXPECT_FALSE(options.ablation().direct_skips);
  EXPECT_TRUE(options.ablation().copy_streams);
  EXPECT_THAT(pipe_options(setup).devices(), SizeIs(0)) << "as without a setup";
  EXPECT_EQ(step_options(setup).schedule_for(2, 4), schedule_by_name("zb-h1", 2, 4));
  EXPECT_EQ(setup.schedule_for(4), schedule_by_name("zb-h1", setup.stages(), 4));
}

TEST(PipelineSetup, HasATextForPeople) {
  PipelineSetup setup;
  setup.balance = {20, 31};
  setup.chunks = 4;
  setup.checkpoint_all(Checkpoint::kNever);
  EXPECT_THAT(setup.checkpoints, SizeIs(2));
  EXPECT_THAT(setup.checkpoints, Each(Checkpoint::kNever));
  EXPECT_EQ(to_text(setup), "chunks 4, balance [20, 31], checkpoint never, 1f1b");
  setup.checkpoints = {Checkpoint::kAlways, Checkpoint::kExceptLast};
  setup.schedule = {"zb-h1", schedule_by_name("zb-h1")};
  EXPECT_EQ(to_text(setup), "chunks 4, balance [20, 31], checkpoint always,except_last, zb-h1");
  EXPECT_EQ(to_text(setup.checkpoints, "; "), "always; except_last");
  EXPECT_THAT(names_of(setup.checkpoints), ElementsAre("always", "except_last"));
  EXPECT_EQ(to_text(std::vector<Checkpoint>{}), "");
}

}  // namespace
}  // namespace gpipe
