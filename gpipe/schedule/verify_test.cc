#include "gpipe/schedule/verify.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>
#include <string>

#include "gpipe/schedule/hand_written.h"
#include "gpipe/schedule/schedule.h"

namespace gpipe {
namespace {

using ::testing::ElementsAre;

// The problems that verify() reports for a schedule's text; empty if there are none.
std::string complaint(const std::string& text, Sends sends = Sends::kRendezvous,
                      const std::vector<Route>& skips = {}) {
  const Schedule schedule = Schedule::from_text(text);
  try {
    schedule.verify(Routes::create(schedule.stages(), skips), sends);
    return "";
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
}

TEST(Verify, EveryKindOfProblem) {
  struct Case {
    const char* text;
    const char* error;
  };
  const Case cases[] = {
      {"stages 1\nmicro_batches 1\nworker 0:",
       "Schedule::verify: 1 problem:\n"
       "  - there are no actions"},
      {"stages 1\nmicro_batches 1\nworker 0: F0.0 F0.0 B0.0",
       "Schedule::verify: 1 problem:\n"
       "  - F0.0 is there twice: worker 0 at position 0 and worker 0 at position 1"},
      {"stages 1\nmicro_batches 2\nworker 0: F0.0 B0.0 B0.1",
       "Schedule::verify: 1 problem:\n"
       "  - F0.1 is missing"},
      {"stages 1\nmicro_batches 2\nworker 0: F0.0 F0.1 B0.0",
       "Schedule::verify: 1 problem:\n"
       "  - B0.1 is missing (or I0.1 and W0.1)"},
      {"stages 1\nmicro_batches 1\nworker 0: F0.0 B0.0 W0.0",
       "Schedule::verify: 1 problem:\n"
       "  - B0.0 is there beside W0.0, but a cell's backward is either whole or split"},
      {"stages 1\nmicro_batches 1\nworker 0: F0.0 I0.0 B0.0",
       "Schedule::verify: 1 problem:\n"
       "  - B0.0 is there beside I0.0, but a cell's backward is either whole or split"},
      {"stages 1\nmicro_batches 1\nworker 0: F0.0 W0.0",
       "Schedule::verify: 1 problem:\n"
       "  - I0.0 is missing, though W0.0 is there"},
      {"stages 1\nmicro_batches 1\nworker 0: F0.0 I0.0",
       "Schedule::verify: 1 problem:\n"
       "  - W0.0 is missing, though I0.0 is there"},
      {"stages 1\nmicro_batches 1\nworker 0: F0.0\nworker 1: B0.0",
       "Schedule::verify: 1 problem:\n"
       "  - stage 0 is on worker 0 and on worker 1, but a stage lives on one worker"},
      {"stages 1\nmicro_batches 1\nworker 0: B0.0 F0.0",
       "Schedule::verify: 1 problem:\n"
       "  - B0.0 (worker 0 at position 0) comes before F0.0 (position 1), which it needs"},
      {"stages 1\nmicro_batches 1\nworker 0: F0.0 W0.0 I0.0",
       "Schedule::verify: 1 problem:\n"
       "  - W0.0 (worker 0 at position 1) comes before I0.0 (position 2), which it needs"},
      {"stages 2\nmicro_batches 1\nworker 0: F1.0 F0.0 B0.0 B1.0",
       "Schedule::verify: 2 problems:\n"
       "  - F1.0 (worker 0 at position 0) comes before F0.0 (position 1), which it needs\n"
       "  - B0.0 (worker 0 at position 2) comes before B1.0 (position 3), which it needs"},
      {"stages 1\nmicro_batches 2\nworker 0: F0.0 O0.0 F0.1 B0.1 L0.1 B0.0",
       "Schedule::verify: 2 problems:\n"
       "  - L0.0 is missing, though O0.0 is there\n"
       "  - O0.1 is missing, though L0.1 is there"},
      {"stages 1\nmicro_batches 1\nworker 0: F0.0 O0.0 L0.0",
       "Schedule::verify: 1 problem:\n"
       "  - there are offloads or reloads, but no backwards: they are for what a cell keeps from "
       "one "
       "to the other"},
      {"stages 1\nmicro_batches 1\nworker 0: O0.0 F0.0 O0.0 L0.0 B0.0",
       "Schedule::verify: 1 problem:\n"
       "  - O0.0 is there twice: worker 0 at position 0 and worker 0 at position 2"},
      {"stages 1\nmicro_batches 1\nworker 0: O0.0 F0.0 L0.0 B0.0",
       "Schedule::verify: 1 problem:\n"
       "  - O0.0 (worker 0 at position 0) comes before F0.0 (position 1), which it needs"},
      {"stages 1\nmicro_batches 1\nworker 0: F0.0 L0.0 O0.0 B0.0",
       "Schedule::verify: 1 problem:\n"
       "  - L0.0 (worker 0 at position 1) comes before O0.0 (position 2), which it needs"},
      {"stages 1\nmicro_batches 1\nworker 0: F0.0 O0.0 B0.0 L0.0",
       "Schedule::verify: 1 problem:\n"
       "  - L0.0 (position 3) comes after B0.0 (position 2), which needs what it brings back"},
      {"stages 1\nmicro_batches 1\nworker 0: F0.0 O0.0 I0.0 L0.0 W0.0",
       "Schedule::verify: 1 problem:\n"
       "  - L0.0 (position 3) comes after I0.0 (position 2), which needs what it brings back"},
      {"stages 1\nmicro_batches 1\nworker 0: F0.0 I0.0 O0.0 W0.0 L0.0",
       "Schedule::verify: 1 problem:\n"
       "  - L0.0 (position 4) comes after W0.0 (position 3), which needs what it brings back"},
      {"stages 1\nmicro_batches 2\nworker 0: F0.0 F0.1 B0.0 O0.0 L0.0 B0.1",
       "Schedule::verify: 1 problem:\n"
       "  - O0.0 (position 3) comes after B0.0 (position 2), the last that needs what it would "
       "take"},
      {"stages 1\nmicro_batches 1\nworker 0: F0.0 I0.0 W0.0 O0.0 L0.0",
       "Schedule::verify: 1 problem:\n"
       "  - O0.0 (position 3) comes after W0.0 (position 2), the last that needs what it would "
       "take"},
      // All problems of the first group (every action once) are reported together.
      {"stages 2\nmicro_batches 2\nworker 0: F0.0 F0.0 B0.0 B0.1\nworker 1: F1.0 I1.0 F1.1 B1.1 "
       "F0.0",
       "Schedule::verify: 5 problems:\n"
       "  - F0.0 is there twice: worker 0 at position 0 and worker 0 at position 1\n"
       "  - F0.0 is there twice: worker 0 at position 0 and worker 1 at position 4\n"
       "  - stage 0 is on worker 0 and on worker 1, but a stage lives on one worker\n"
       "  - F0.1 is missing\n"
       "  - W1.0 is missing, though I1.0 is there"},
      // Worker 0 waits for B1.0 before it runs F0.1, and worker 1 waits for F0.1 before it runs
      // B1.0.
      {"stages 2\nmicro_batches 2\nworker 0: F0.0 B0.0 F0.1 B0.1\nworker 1: F1.0 F1.1 B1.0 B1.1",
       "Schedule::verify: 1 problem:\n"
       "  - deadlock, even with buffered sends:\n"
       "      worker 0 at B0.0 waits for B1.0 of worker 1\n"
       "      worker 1 at F1.1 waits for F0.1 of worker 0"},
      // Worker 1 takes the micro-batches in another order than worker 0 sends them. With buffered
      // sends this would run. Here worker 0 waits until its first value is taken, while worker 1
      // waits for the second.
      {"stages 2\nmicro_batches 2\nworker 0: F0.0 F0.1 B0.0 B0.1\nworker 1: F1.1 F1.0 B1.0 B1.1",
       "Schedule::verify: 1 problem:\n"
       "  - deadlock where a send waits for its receiver (with buffered sends it would run):\n"
       "      worker 0 after F0.0 waits for worker 1 to send F0.0 to F1.0\n"
       "      worker 1, at its start, waits for worker 0 to receive F0.1 for F1.1"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.text);
    EXPECT_EQ(complaint(c.text), c.error);
  }
}

TEST(Verify, BufferedSendsAllowMore) {
  EXPECT_EQ(
      complaint(
          "stages 2\nmicro_batches 2\nworker 0: F0.0 F0.1 B0.0 B0.1\nworker 1: F1.1 F1.0 B1.0 B1.1",
          Sends::kBuffered),
      "");
}

TEST(Verify, OffloadsTakeNoTimeAndDoNotCountBetween) {
  const Schedule plain = Schedule::gpipe(1, 3);
  const Schedule low = Schedule::from_text(
      "stages 1\nmicro_batches 3\n"
      "worker 0: F0.0 F0.1 O0.0 F0.2 O0.1 B0.2 L0.1 B0.1 L0.0 B0.0\n");
  ScheduleFacts facts = low.verify();
  EXPECT_EQ(facts.peak_live, std::vector<int64_t>{2});
  EXPECT_EQ(facts.worker_peak_live, std::vector<int64_t>{2});
  facts.peak_live = facts.worker_peak_live = {3};
  EXPECT_EQ(facts, plain.verify());
  EXPECT_EQ(complaint("stages 1\nmicro_batches 1\nworker 0: F0.0 I0.0 O0.0 L0.0 W0.0"), "")
      << "between the halves of a backward";
}

// The send before an offload is posted together with the receive behind it.
TEST(Verify, OffloadsEndNoExchange) {
  const Schedule low = Schedule::from_text(
      "stages 2\nmicro_batches 2\n"
      "worker 0: F0.0 F0.1 O0.1 B0.0 L0.1 B0.1\n"
      "worker 1: F1.0 I1.0 W1.0 F1.1 B1.1\n");
  const Schedule plain = Schedule::from_text(
      "stages 2\nmicro_batches 2\n"
      "worker 0: F0.0 F0.1 B0.0 B0.1\n"
      "worker 1: F1.0 I1.0 W1.0 F1.1 B1.1\n");
  EXPECT_EQ(complaint(plain.to_text()), "");
  EXPECT_EQ(complaint(low.to_text()), "");
  EXPECT_EQ(low.verify(Sends::kPostedAhead).receives_ahead,
            plain.verify(Sends::kPostedAhead).receives_ahead);
}

TEST(Verify, HalfOfACell) {
  EXPECT_EQ(complaint("stages 2\nmicro_batches 1\nworker 0: F0.0\nworker 1: F1.0"), "");
  EXPECT_EQ(complaint("stages 2\nmicro_batches 1\nworker 0: B0.0\nworker 1: B1.0"), "");
  EXPECT_EQ(complaint("stages 2\nmicro_batches 1\nworker 0: I0.0 W0.0\nworker 1: B1.0"), "");
  EXPECT_EQ(complaint("stages 2\nmicro_batches 1\nworker 0: F0.0\nworker 1: B1.0"),
            "Schedule::verify: 2 problems:\n"
            "  - B0.0 is missing (or I0.0 and W0.0)\n"
            "  - F1.0 is missing")
      << "a table with both kinds is not a half";
}

TEST(Verify, ScheduleAndRoutesMustBeForTheSameStages) {
  EXPECT_THROW(Schedule::gpipe(2, 2).verify(Routes::create(3)), std::invalid_argument);
}

// verify() accepts interleaved schedules, schedules with split backwards, and workers with nothing
// to do.
TEST(Verify, TakesHandWrittenSchedules) {
  const ScheduleFacts interleaved = testing::interleaved().verify();
  EXPECT_THAT(interleaved.peak_live, ElementsAre(2, 2, 2, 1));
  EXPECT_EQ(interleaved.makespan, 10);

  const ScheduleFacts split = testing::split_backward().verify();
  EXPECT_THAT(split.peak_live, ElementsAre(2, 2));
  EXPECT_EQ(split.makespan, 7);
  EXPECT_DOUBLE_EQ(split.bubble_ratio, 1.0 - 12.0 / 14.0);

  const ScheduleFacts idle =
      Schedule::from_text("stages 1\nmicro_batches 1\nworker 0:\nworker 1: F0.0 B0.0").verify();
  EXPECT_EQ(idle.makespan, 2);
  EXPECT_DOUBLE_EQ(idle.bubble_ratio, 0.5);
}

// verify() and verify(routes) may differ. 1F1B runs over waiting sends along the chain. But with a
// skip over three or more stages, the first stage waits until the last receives the skip's value,
// while the last, some micro-batches behind, waits until the first receives the skip's gradient.
// Fill-drain sends nothing back before all forwards are done.
TEST(Verify, SkipsMayDeadlockSendsThatWait) {
  const auto runs = [](const Schedule& schedule, const Route& skip) {
    try {
      schedule.verify(Routes::create(schedule.stages(), {skip}), Sends::kRendezvous);
      return true;
    } catch (const std::invalid_argument&) {
      return false;
    }
  };
  for (int64_t p = 1; p <= 8; ++p) {
    for (int64_t m = 1; m <= 8; ++m) {
      for (int32_t source = 0; source < p; ++source) {
        for (int32_t target = source + 1; target < p; ++target) {
          SCOPED_TRACE(std::to_string(p) + " stages, " + std::to_string(m) +
                       " micro-batches, skip " + std::to_string(source) + " -> " +
                       std::to_string(target));
          const Route skip{source, target, "skip"};
          const bool deadlock = target - source >= 3 && m >= p - target + 3;
          EXPECT_TRUE(runs(Schedule::gpipe(p, m), skip));
          EXPECT_EQ(runs(Schedule::one_f_one_b(p, m), skip), !deadlock);
          EXPECT_TRUE(runs(Schedule::one_f_one_b(p, m).only({ActionKind::kForward}), skip));
          EXPECT_TRUE(runs(Schedule::one_f_one_b(p, m).only({ActionKind::kBackward}), skip));
        }
      }
    }
  }
}

TEST(Verify, TellsWhoWaitsForWhomOverASkip) {
  EXPECT_EQ(complaint(Schedule::one_f_one_b(4, 4).to_text(), Sends::kBuffered, {{0, 3, "skip"}}),
            "");
  EXPECT_EQ(complaint(Schedule::one_f_one_b(4, 4).to_text(), Sends::kRendezvous, {{0, 3, "skip"}}),
            "Schedule::verify: 1 problem:\n"
            "  - deadlock where a send waits for its receiver (with buffered sends it would run):\n"
            "      worker 0 after F0.2 waits for worker 3 to send F0.2 to F3.2\n"
            "      worker 1 after B1.0 waits for worker 0 to send B1.0 to B0.0\n"
            "      worker 1 after B1.0 waits for worker 0 to receive F0.3 for F1.3\n"
            "      worker 2 after F2.2 waits for worker 3 to send F2.2 to F3.2\n"
            "      worker 2 after F2.2 waits for worker 3 to receive B3.1 for B2.1\n"
            "      worker 3 after B3.0 waits for worker 0 to send B3.0 to B0.0");
}

TEST(Verify, FactsOfWorkersAndStages) {
  const ScheduleFacts facts = testing::interleaved().verify();
  EXPECT_THAT(facts.worker_peak_live, ElementsAre(4, 3));
  EXPECT_THAT(facts.alive, ElementsAre(10, 8, 6, 4));
  EXPECT_THAT(facts.idle, ElementsAre(6, 4, 2, 0));
  EXPECT_THAT(facts.worker_alive, ElementsAre(10, 8));
  EXPECT_THAT(facts.worker_idle, ElementsAre(2, 0));

  const ScheduleFacts half =
      testing::interleaved().only({ActionKind::kBackward}).verify(Sends::kBuffered);
  EXPECT_THAT(half.peak_live, ElementsAre(2, 2, 2, 2));
  EXPECT_THAT(half.worker_peak_live, ElementsAre(4, 4));

  const ScheduleFacts nothing =
      Schedule::from_text("stages 1\nmicro_batches 1\nworker 0:\nworker 1: F0.0 B0.0").verify();
  EXPECT_THAT(nothing.worker_peak_live, ElementsAre(0, 1));
  EXPECT_THAT(nothing.worker_alive, ElementsAre(0, 2));
  EXPECT_THAT(nothing.worker_idle, ElementsAre(0, 0));
}

TEST(Verify, KnowsWhetherSumsAreMadeInOneOrder) {
  const auto ascending = [](const std::string& actions) {
    return Schedule::from_text("stages 1\nmicro_batches 2\nworker 0: " + actions)
        .verify()
        .ascending;
  };
  EXPECT_TRUE(ascending("F0.0 F0.1 B0.0 B0.1"));
  EXPECT_TRUE(ascending("F0.0 F0.1 I0.0 I0.1 W0.0 W0.1"));
  EXPECT_TRUE(ascending("F0.0 F0.1 B0.0 I0.1 W0.1"));
  EXPECT_FALSE(ascending("F0.1 F0.0 B0.0 B0.1")) << "forwards";
  EXPECT_FALSE(ascending("F0.0 F0.1 I0.1 I0.0 W0.0 W0.1")) << "input gradients";
  EXPECT_FALSE(ascending("F0.0 F0.1 I0.0 I0.1 W0.1 W0.0")) << "weight gradients";
  EXPECT_FALSE(ascending("F0.0 F0.1 I0.0 B0.1 W0.0")) << "B while a W is pending";
  EXPECT_FALSE(ascending("F0.0 F0.1 B0.1 I0.0 W0.0")) << "I after a later B";
}

// Schedules that deadlock with rendezvous sends need receives that are posted earlier, so some
// number of the facts is above 0. If a chain without skips runs with rendezvous sends, all numbers
// are 0.
TEST(Verify, SaysHowFarReceivesMustBePostedAhead) {
  const auto most_ahead = [](const Schedule& schedule, const std::vector<Route>& skips) {
    int64_t most = 0;
    for (const ReceivesAhead& ahead :
         schedule.verify(Routes::create(schedule.stages(), skips), Sends::kPostedAhead)
             .receives_ahead) {
      most = std::max(most, ahead.actions);
    }
    return most;
  };
  const auto waits = [](const Schedule& schedule, const std::vector<Route>& skips) {
    try {
      schedule.verify(Routes::create(schedule.stages(), skips), Sends::kRendezvous);
      return false;
    } catch (const std::invalid_argument&) {
      return true;
    }
  };
  int deadlocks = 0;
  for (int64_t p = 1; p <= 6; ++p) {
    for (int64_t m = 1; m <= 6; ++m) {
      for (int32_t target = 0; target < p; ++target) {
        std::vector<Route> skips;
        if (target > 0) skips.push_back({0, target, "skip"});
        for (const Schedule& schedule : {Schedule::gpipe(p, m), Schedule::one_f_one_b(p, m)}) {
          if (waits(schedule, skips)) {
            EXPECT_GT(most_ahead(schedule, skips), 0);
            ++deadlocks;
          } else if (skips.empty()) {
            EXPECT_EQ(most_ahead(schedule, skips), 0);
          }
        }
      }
    }
  }
  EXPECT_GT(deadlocks, 0);
  // Worker 1 takes the micro-batches in another order than worker 0 sends them. So its receives
  // from worker 0 must be posted one action earlier.
  const Schedule crossed = Schedule::from_text(
      "stages 2\nmicro_batches 2\nworker 0: F0.0 F0.1 B0.0 B0.1\nworker 1: F1.1 F1.0 B1.0 B1.1");
  EXPECT_THAT(crossed.verify(Sends::kPostedAhead).receives_ahead,
              ElementsAre(ReceivesAhead{0, 1, 1}, ReceivesAhead{1, 0, 0}));
  EXPECT_THAT(crossed.verify(Sends::kBuffered).receives_ahead, ElementsAre());
}

TEST(Verify, FactsArePrinted) {
  EXPECT_EQ(::testing::PrintToString(Schedule::gpipe(2, 2).verify(Sends::kPostedAhead)),
            "peak live per stage: 2 2\n"
            "alive per stage: 6 4\n"
            "idle per stage: 2 0\n"
            "peak live per worker: 2 2\n"
            "alive per worker: 6 4\n"
            "idle per worker: 2 0\n"
            "makespan: 6\n"
            "bubble: 33.3333 %\n"
            "ascending: no\n"
            "receives ahead 0 -> 1: 0\n"
            "receives ahead 1 -> 0: 0\n");
  EXPECT_EQ(::testing::PrintToString(ReceivesAhead{0, 1, 2}), "0 -> 1: 2");
  EXPECT_EQ(::testing::PrintToString(Sends::kPostedAhead), "posted ahead");
  EXPECT_EQ(::testing::PrintToString(static_cast<Sends>(7)), "Sends(7)");
}

}  // namespace
}  // namespace gpipe
