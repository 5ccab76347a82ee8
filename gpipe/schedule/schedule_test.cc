#include "gpipe/schedule/schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <stdexcept>

#include "gpipe/schedule/hand_written.h"
#include "gpipe/testing/seed.h"

namespace gpipe {
namespace {

using ::testing::HasSubstr;

TEST(Gpipe, WholeTables) {
  EXPECT_EQ(Schedule::gpipe(1, 1).to_text(),
            "stages 1\n"
            "micro_batches 1\n"
            "worker 0: F0.0 B0.0\n");
  EXPECT_EQ(Schedule::gpipe(1, 3).to_text(),
            "stages 1\n"
            "micro_batches 3\n"
            "worker 0: F0.0 F0.1 F0.2 B0.2 B0.1 B0.0\n");
  EXPECT_EQ(Schedule::gpipe(3, 1).to_text(),
            "stages 3\n"
            "micro_batches 1\n"
            "worker 0: F0.0 B0.0\n"
            "worker 1: F1.0 B1.0\n"
            "worker 2: F2.0 B2.0\n");
  EXPECT_EQ(Schedule::gpipe(4, 2).to_text(),
            "stages 4\n"
            "micro_batches 2\n"
            "worker 0: F0.0 F0.1 B0.1 B0.0\n"
            "worker 1: F1.0 F1.1 B1.1 B1.0\n"
            "worker 2: F2.0 F2.1 B2.1 B2.0\n"
            "worker 3: F3.0 F3.1 B3.1 B3.0\n");
  EXPECT_EQ(Schedule::gpipe(2, 4).to_text(),
            "stages 2\n"
            "micro_batches 4\n"
            "worker 0: F0.0 F0.1 F0.2 F0.3 B0.3 B0.2 B0.1 B0.0\n"
            "worker 1: F1.0 F1.1 F1.2 F1.3 B1.3 B1.2 B1.1 B1.0\n");
}

TEST(OneFOneB, WholeTables) {
  EXPECT_EQ(Schedule::one_f_one_b(1, 1).to_text(),
            "stages 1\n"
            "micro_batches 1\n"
            "worker 0: F0.0 B0.0\n");
  EXPECT_EQ(Schedule::one_f_one_b(1, 3).to_text(),
            "stages 1\n"
            "micro_batches 3\n"
            "worker 0: F0.0 B0.0 F0.1 B0.1 F0.2 B0.2\n");
  EXPECT_EQ(Schedule::one_f_one_b(3, 1).to_text(),
            "stages 3\n"
            "micro_batches 1\n"
            "worker 0: F0.0 B0.0\n"
            "worker 1: F1.0 B1.0\n"
            "worker 2: F2.0 B2.0\n");
  EXPECT_EQ(Schedule::one_f_one_b(4, 2).to_text(),  // fewer micro-batches than stages
            "stages 4\n"
            "micro_batches 2\n"
            "worker 0: F0.0 F0.1 B0.0 B0.1\n"
            "worker 1: F1.0 F1.1 B1.0 B1.1\n"
            "worker 2: F2.0 F2.1 B2.0 B2.1\n"
            "worker 3: F3.0 B3.0 F3.1 B3.1\n");
  EXPECT_EQ(Schedule::one_f_one_b(3, 5).to_text(),
            "stages 3\n"
            "micro_batches 5\n"
            "worker 0: F0.0 F0.1 F0.2 B0.0 F0.3 B0.1 F0.4 B0.2 B0.3 B0.4\n"
            "worker 1: F1.0 F1.1 B1.0 F1.2 B1.1 F1.3 B1.2 F1.4 B1.3 B1.4\n"
            "worker 2: F2.0 B2.0 F2.1 B2.1 F2.2 B2.2 F2.3 B2.3 F2.4 B2.4\n");
}

// Tests of this class run with all pairs of 1 .. 8 stages and 1 .. 8 micro-batches.
class Generators : public ::testing::TestWithParam<std::tuple<int64_t, int64_t>> {
 protected:
  const int64_t p = std::get<0>(GetParam());
  const int64_t m = std::get<1>(GetParam());
};

INSTANTIATE_TEST_SUITE_P(Sizes, Generators,
                         ::testing::Combine(::testing::Range<int64_t>(1, 9),
                                            ::testing::Range<int64_t>(1, 9)));

TEST_P(Generators, VerifyAndCostWhatTheoryTells) {
  const ScheduleFacts gpipe = Schedule::gpipe(p, m).verify();
  const ScheduleFacts one_f_one_b = Schedule::one_f_one_b(p, m).verify();
  const double bubble = static_cast<double>(p - 1) / static_cast<double>(m + p - 1);
  for (const ScheduleFacts& facts : {gpipe, one_f_one_b}) {
    EXPECT_EQ(facts.makespan, 2 * (m + p - 1));
    EXPECT_NEAR(facts.bubble_ratio, bubble, 1e-12);
  }
  for (int64_t stage = 0; stage < p; ++stage) {
    EXPECT_EQ(gpipe.peak_live[static_cast<size_t>(stage)], m);
    EXPECT_EQ(one_f_one_b.peak_live[static_cast<size_t>(stage)], std::min(m, p - stage));
  }
}

TEST_P(Generators, HalvesVerify) {
  for (const Schedule& schedule : {Schedule::gpipe(p, m), Schedule::one_f_one_b(p, m)}) {
    for (ActionKind kind : {ActionKind::kForward, ActionKind::kBackward}) {
      const ScheduleFacts facts = schedule.only({kind}).verify();
      EXPECT_EQ(facts.makespan, m + p - 1);
      EXPECT_EQ(facts.peak_live, std::vector<int64_t>(static_cast<size_t>(p), m));
    }
  }
}

// With skips between any two stages, one at a time and all at once, every schedule still runs when
// sends are buffered.
TEST_P(Generators, SkipsAddNoDeadlockToBufferedSends) {
  std::vector<Route> all;
  for (const Schedule& schedule : {Schedule::gpipe(p, m), Schedule::one_f_one_b(p, m)}) {
    const ScheduleFacts plain = schedule.verify();
    for (int32_t source = 0; source < p; ++source) {
      for (int32_t target = source + 1; target < p; ++target) {
        const Route skip{source, target, "skip"};
        all.push_back(skip);
        EXPECT_EQ(schedule.verify(Routes::create(p, {skip}), Sends::kBuffered), plain);
      }
    }
    EXPECT_EQ(schedule.verify(Routes::create(p, all), Sends::kBuffered), plain);
  }
}

TEST_P(Generators, TextRoundTrip) {
  for (const Schedule& schedule : {Schedule::gpipe(p, m), Schedule::one_f_one_b(p, m),
                                   Schedule::gpipe(p, m).only({ActionKind::kBackward})}) {
    const Schedule again = Schedule::from_text(schedule.to_text());
    EXPECT_EQ(again, schedule);
    EXPECT_EQ(again.to_text(), schedule.to_text());
  }
}

TEST(Generators, ArePlainFunctions) {
  const ScheduleGenerator generators[] = {
      Schedule::gpipe, Schedule::one_f_one_b,
      [](int64_t p, int64_t m) { return Schedule::gpipe(p, m); }};
  for (const ScheduleGenerator& generator : generators) EXPECT_EQ(generator(3, 4).stages(), 3);
}

TEST(Generators, WrongSizesThrow) {
  for (const ScheduleGenerator& generator :
       {ScheduleGenerator(Schedule::gpipe), ScheduleGenerator(Schedule::one_f_one_b)}) {
    EXPECT_THROW(generator(0, 1), std::invalid_argument);
    EXPECT_THROW(generator(1, 0), std::invalid_argument);
    EXPECT_THROW(generator(-1, 4), std::invalid_argument);
    EXPECT_THROW(generator(int64_t{1} << 20, int64_t{1} << 20), std::invalid_argument);
    EXPECT_THROW(generator(int64_t{1} << 62, int64_t{1} << 62), std::invalid_argument);
  }
}

TEST(Schedule, CreateTakesAnyTable) {
  const Schedule schedule =
      Schedule::create(2, 1, {{}, {{ActionKind::kBackward, 1, 0}, {ActionKind::kBackward, 1, 0}}});
  EXPECT_EQ(schedule.stages(), 2);
  EXPECT_EQ(schedule.micro_batches(), 1);
  EXPECT_EQ(schedule.workers(), 2);
  EXPECT_TRUE(schedule.actions(0).empty());
  EXPECT_EQ(schedule.actions(1).size(), 2u);
  EXPECT_THROW(schedule.actions(2), std::out_of_range);
  EXPECT_THROW(schedule.actions(-1), std::out_of_range);
  EXPECT_EQ(Schedule::create(1, 1, {}).workers(), 0);
}

TEST(Schedule, CreateChecksRanges) {
  for (const Action& action :
       {Action{ActionKind::kForward, 2, 0}, Action{ActionKind::kForward, -1, 0},
        Action{ActionKind::kForward, 0, 3}, Action{ActionKind::kForward, 0, -1}}) {
    try {
      Schedule::create(2, 3, {{}, {action}});
      ADD_FAILURE() << action.to_text();
    } catch (const std::invalid_argument& error) {
      EXPECT_EQ(std::string(error.what()),
                "Schedule::create: worker 1 has " + action.to_text() +
                    ", but there are only stages 0..1 and micro-batches 0..2");
    }
  }
  EXPECT_THROW(Schedule::create(1, 1, {{{static_cast<ActionKind>(7), 0, 0}}}),
               std::invalid_argument);
  EXPECT_THROW(Schedule::create(0, 1, {}), std::invalid_argument);
  EXPECT_THROW(Schedule::create(1, -1, {}), std::invalid_argument);
}

TEST(Schedule, WorkerOf) {
  const Schedule schedule = testing::interleaved();
  EXPECT_EQ(schedule.worker_of(0), 0);
  EXPECT_EQ(schedule.worker_of(1), 1);
  EXPECT_EQ(schedule.worker_of(2), 0);
  EXPECT_EQ(schedule.worker_of(3), 1);
  EXPECT_THROW(schedule.worker_of(4), std::invalid_argument);
  EXPECT_THROW(schedule.worker_of(-1), std::invalid_argument);
  EXPECT_THROW(Schedule::create(1, 1, {{}}).worker_of(0), std::invalid_argument);
}

TEST(Schedule, HasAPlacementAndIsCheckedAgainstOne) {
  const Schedule schedule = testing::interleaved();
  EXPECT_EQ(schedule.placement(), Placement::loop(2, 2));
  EXPECT_NO_THROW(schedule.check(Placement::loop(2, 2).processes({0, 1})));
  const auto complaint = [&](const Schedule& checked, const Placement& placement) -> std::string {
    try {
      checked.check(placement);
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(complaint(schedule, Placement::v_shape(2)),
            "Schedule::check: the schedule does not match the placement:\n"
            "  - stage 2 is on worker 0, the placement has it on worker 1\n"
            "  - stage 3 is on worker 1, the placement has it on worker 0");
  EXPECT_EQ(complaint(schedule, Placement::one_each(4)),
            "Schedule::check: the schedule has 4 stages on 2 workers, but the placement has 4 on "
            "4");
  EXPECT_THAT(complaint(Schedule::create(1, 1, {{}}), Placement::one_each(1)),
              HasSubstr("stage 0 is nowhere"));
  EXPECT_THAT(
      complaint(Schedule::gpipe(20, 1), Placement::of({1,  0,  3,  2,  5,  4,  7,  6,  9,  8,
                                                       11, 10, 13, 12, 14, 15, 16, 17, 18, 19})),
      HasSubstr("and 4 more"));
  EXPECT_THROW(Schedule::create(1, 1, {{}}).placement(), std::invalid_argument);
  EXPECT_THROW(
      Schedule::from_text("stages 1\nmicro_batches 1\nworker 0:\nworker 1: F0.0 B0.0").placement(),
      std::invalid_argument);
}

TEST(Schedule, OnlyKeepsOrderAndWorkers) {
  EXPECT_EQ(
      testing::split_backward().only({ActionKind::kInputGradient, ActionKind::kForward}).to_text(),
      "stages 2\n"
      "micro_batches 2\n"
      "worker 0: F0.0 F0.1 I0.0 I0.1\n"
      "worker 1: F1.0 I1.0 F1.1 I1.1\n");
  EXPECT_EQ(Schedule::gpipe(1, 1).only({}).to_text(), "stages 1\nmicro_batches 1\nworker 0:\n");
  const Schedule backward_half = testing::split_backward().only(
      {ActionKind::kBackward, ActionKind::kInputGradient, ActionKind::kWeightGradient});
  EXPECT_EQ(backward_half.verify().makespan, 5);
}

TEST(Schedule, Equality) {
  EXPECT_EQ(Schedule::gpipe(2, 2), Schedule::gpipe(2, 2));
  EXPECT_EQ(Schedule::gpipe(2, 1), Schedule::one_f_one_b(2, 1));
  EXPECT_NE(Schedule::gpipe(2, 2), Schedule::one_f_one_b(2, 2));
  EXPECT_NE(Schedule::create(1, 1, {}), Schedule::create(1, 2, {}));
  EXPECT_NE(Schedule::create(1, 1, {}), Schedule::create(2, 1, {}));
  EXPECT_NE(Schedule::create(1, 1, {}), Schedule::create(1, 1, {{}}));
  const Schedule copy = Schedule::gpipe(2, 2);
  EXPECT_EQ(&Schedule(copy).actions(0), &copy.actions(0)) << "a copy shares its table";
}

TEST(ScheduleText, IsWhatIsPrinted) {
  EXPECT_EQ(::testing::PrintToString(Schedule::gpipe(2, 1)),
            "stages 2\nmicro_batches 1\nworker 0: F0.0 B0.0\nworker 1: F1.0 B1.0\n");
}

TEST(ScheduleText, TakesCommentsEmptyLinesAndLooseBlanks) {
  EXPECT_EQ(Schedule::from_text("# by hand\r\n"
                                "\n"
                                "  stages   1\t\n"
                                "micro_batches 2  # two\n"
                                "worker 0:F0.0\tF0.1   B0.1 B0.0"),
            Schedule::gpipe(1, 2));
}

TEST(ScheduleText, RandomTablesRoundTrip) {
  std::mt19937_64 random = testing::test_random();
  const auto draw = [&](int64_t most) {
    return static_cast<int32_t>(std::uniform_int_distribution<int64_t>(0, most)(random));
  };
  for (int round = 0; round < 200; ++round) {
    const int64_t stages = 1 + draw(15);
    const int64_t micro_batches = 1 + draw(15);
    std::vector<std::vector<Action>> workers(static_cast<size_t>(draw(4)));
    for (auto& actions : workers) {
      for (int32_t count = draw(20); count > 0; --count) {
        actions.push_back({static_cast<ActionKind>(draw(kActionKinds - 1)), draw(stages - 1),
                           draw(micro_batches - 1)});
      }
    }
    const Schedule schedule = Schedule::create(stages, micro_batches, workers);
    ASSERT_EQ(Schedule::from_text(schedule.to_text()), schedule) << schedule.to_text();
  }
}

TEST(ScheduleText, MalformedTextNamesLineAndExpectation) {
  struct Case {
    const char* text;
    const char* error;
  };
  const Case cases[] = {
      {"", "line 1: expected 'stages <number, at least 1>', found the end"},
      {"\n\n", "line 3: expected 'stages <number, at least 1>', found the end"},
      {"stage 1", "line 1: expected 'stages <number, at least 1>', found 'stage 1'"},
      {"stages", "line 1: expected 'stages <number, at least 1>', found 'stages'"},
      {"stages1", "line 1: expected 'stages <number, at least 1>', found 'stages1'"},
      {"stages 0", "line 1: expected 'stages <number, at least 1>', found 'stages 0'"},
      {"stages -2", "line 1: expected 'stages <number, at least 1>', found 'stages -2'"},
      {"stages two", "line 1: expected 'stages <number, at least 1>', found 'stages two'"},
      {"stages 2 2", "line 1: expected 'stages <number, at least 1>', found 'stages 2 2'"},
      {"stages 99999999999999999999",
       "line 1: expected 'stages <number, at least 1>', found 'stages 9"},
      {"stages 2\n", "line 2: expected 'micro_batches <number, at least 1>', found the end"},
      {"stages 2\nworker 0:",
       "line 2: expected 'micro_batches <number, at least 1>', found 'worker 0:'"},
      {"stages 2\nmicro_batches 1\nF0.0", "line 3: expected 'worker 0: <actions>', found 'F0.0'"},
      {"stages 2\nmicro_batches 1\nworker 1: F0.0",
       "line 3: expected 'worker 0: <actions>', found 'worker 1: F0.0'"},
      {"stages 2\nmicro_batches 1\nworker 0: F0.0\n\n# so\nworker 0: F1.0",
       "line 6: expected 'worker 1: <actions>', found 'worker 0: F1.0'"},
      {"stages 2\nmicro_batches 1\nworker 0 F0.0",
       "line 3: expected 'worker 0: <actions>', found 'worker 0 F0.0'"},
      {"stages 2\nmicro_batches 1\nworker 0: F0.0 Q0.0",
       "line 3: 'Q0.0' is not an action: expected F, B, I, W, O or L"},
      {"stages 2\nmicro_batches 1\nworker 0: F0.0,B0.0", "line 3: 'F0.0,B0.0' is not an action"},
      {"stages 2\nmicro_batches 1\nworker 0: F2.0",
       "line 3: F2.0 is out of range: expected stages 0..1 and micro-batches 0..0"},
      {"stages 2\nmicro_batches 1\nworker 0: F1.1",
       "line 3: F1.1 is out of range: expected stages 0..1 and micro-batches 0..0"},
      {"stages 9999999\nmicro_batches 9999999\n", "at most 2^24 cells"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.text);
    try {
      Schedule::from_text(c.text);
      ADD_FAILURE() << "accepted";
    } catch (const std::invalid_argument& error) {
      EXPECT_THAT(error.what(), HasSubstr(c.error));
    }
  }
}

}  // namespace
}  // namespace gpipe
