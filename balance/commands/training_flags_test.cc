#include "balance/commands/training_flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "command/balance_flag.h"
#include "gpipe/schedule/named_schedule.h"
#include "gpipe/schedule/sequential.h"

namespace gpipe::balance {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;
using ::testing::StrEq;
using ::testing::ThrowsMessage;

// The value of a flag with that text.
template <typename Value>
Value read(const std::string& text) {
  Value value;
  std::string error;
  EXPECT_TRUE(AbslParseFlag(text, &value, &error)) << error;
  return value;
}

// Why a flag refuses that text.
template <typename Value>
std::string why_not(const std::string& text) {
  Value value;
  std::string error;
  EXPECT_FALSE(AbslParseFlag(text, &value, &error));
  return error;
}

TEST(TrainingFlags, AreNamesOfWhatThereIs) {
  EXPECT_EQ(read<Checkpoint>("always"), Checkpoint::kAlways);
  EXPECT_EQ(read<Checkpoint>("except_last"), Checkpoint::kExceptLast);
  EXPECT_EQ(read<Checkpoint>("never"), Checkpoint::kNever);
  EXPECT_EQ(read<ScheduleChoice>("gpipe").make(3, 5), Schedule::gpipe(3, 5));
  EXPECT_EQ(read<ScheduleChoice>("1f1b").make(3, 5), Schedule::one_f_one_b(3, 5));
  EXPECT_EQ(read<ScheduleChoice>("sequential").make(3, 5), sequential(3, 5));
}

// A command prints its pipeline's settings in a form that its flags accept.
TEST(TrainingFlags, TextsOfASetupAreReadBack) {
  for (const NamedSchedule& named : named_schedules()) {
    for (const Checkpoint mode :
         {Checkpoint::kAlways, Checkpoint::kExceptLast, Checkpoint::kNever}) {
      for (const std::vector<int64_t>& balance :
           {std::vector<int64_t>{3}, {140, 230}, {1, 2, 3, 4}}) {
        PipelineSetup setup;
        setup.balance = balance;
        setup.checkpoint_all(mode);
        setup.schedule = read<ScheduleChoice>(named.name);
        SCOPED_TRACE(to_text(setup));
        const ScheduleChoice schedule = read<ScheduleChoice>(setup.schedule.name);
        EXPECT_EQ(schedule.name, named.name);
        EXPECT_EQ(schedule.make(4, 3), schedule_by_name(named.name, 4, 3));
        EXPECT_EQ(read<Checkpoint>(to_text(setup.checkpoints)), mode);
        const std::string text = to_text(setup);
        const size_t begin = text.find('[');
        EXPECT_EQ(command::parse_balance(text.substr(begin, text.find(']') + 1 - begin)), balance);
      }
    }
  }
}

TEST(TrainingFlags, OtherNamesAreRefused) {
  EXPECT_EQ(why_not<Checkpoint>("sometimes"), "give always, except_last or never");
  EXPECT_THAT(why_not<Checkpoint>("exceptlast"), HasSubstr("did you mean except_last?"));
  EXPECT_THAT(why_not<ScheduleChoice>("1f1bb"),
              AllOf(StartsWith("there is no schedule '1f1bb'"), HasSubstr("did you mean 1f1b?"),
                    HasSubstr("zb-v")));
  EXPECT_THAT(why_not<ScheduleChoice>(""), StartsWith("there is no schedule"));
}

TEST(TrainingFlags, AnyCheckpointIsNoneInParticular) {
  EXPECT_THAT(parse_checkpoints("any"), IsEmpty());
  EXPECT_THAT(parse_checkpoints("never"), ElementsAre(Checkpoint::kNever));
  EXPECT_THAT([] { parse_checkpoints("sometimes"); },
              ThrowsMessage<std::invalid_argument>(
                  StrEq("--checkpoint=sometimes: give always, except_last or never")));
}

TEST(TrainingFlags, ValuesAreWrittenAsTheyAreRead) {
  EXPECT_EQ(AbslUnparseFlag(Checkpoint::kExceptLast), "except_last");
  EXPECT_EQ(AbslUnparseFlag(ScheduleChoice()), "1f1b");
  EXPECT_EQ(AbslUnparseFlag(read<ScheduleChoice>("zb-h1")), "zb-h1");
}

TEST(TrainingFlags, SchedulesAreNamesAndASearch) {
  EXPECT_THAT(parse_schedules(""), IsEmpty());
  EXPECT_THAT(parse_schedules("zb-h1, search,1f1b"), ElementsAre("zb-h1", "search", "1f1b"));
  const auto refused = [](const std::string& text, const std::string& why) {
    EXPECT_THAT([&] { parse_schedules(text); },
                ThrowsMessage<std::invalid_argument>(
                    AllOf(StartsWith("--schedules=" + text + ": "), HasSubstr(why))));
  };
  refused("1f1b,zbv", "did you mean zb-v?");
  refused("1f1b,", "there is no schedule ''");
  refused("search", "give one beside it");
}

TEST(TrainingFlags, CountsAreNumbersUpToTheMost) {
  EXPECT_THAT(parse_counts("chunks", "8,1,16", 16), ElementsAre(8, 1, 16));
  EXPECT_THAT(parse_counts("chunks", "", 16), ElementsAre());
  for (const char* wrong : {"17", "0", "-1", "x", ""}) {
    EXPECT_THAT([&] { parse_counts("chunks", std::string("2,") + wrong, 16, "the 16 rows"); },
                ThrowsMessage<std::invalid_argument>(
                    StrEq(std::string("--chunks=2,") + wrong + ": '" + wrong +
                          "' is not a number from 1 to the 16 rows")));
  }
}

}  // namespace
}  // namespace gpipe::balance
