#include "gpipe/schedule/program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <stdexcept>

#include "gpipe/schedule/hand_written.h"
#include "gpipe/testing/seed.h"

namespace gpipe {
namespace {

using ::testing::HasSubstr;

constexpr auto kForward = ActionKind::kForward;
constexpr auto kBackward = ActionKind::kBackward;
constexpr auto kInputGradient = ActionKind::kInputGradient;
constexpr auto kWeightGradient = ActionKind::kWeightGradient;

TEST(Program, OneStageSendsNothing) {
  const Program program = compile(Schedule::one_f_one_b(1, 2), Routes::create(1));
  EXPECT_EQ(program.to_text(),
            "worker 0: F0.0\n"
            "worker 0: B0.0\n"
            "worker 0: F0.1\n"
            "worker 0: B0.1\n");
  EXPECT_EQ(program.slots, std::vector<int32_t>{0});
}

TEST(Program, ChainWithASkip) {
  const Program program = compile(Schedule::one_f_one_b(3, 2), Routes::create(3, {{0, 2, "skip"}}));
  EXPECT_EQ(program.to_text(),
            "worker 0: F0.0 -> 1:0 2:1\n"
            "worker 0: F0.1 -> 1:1 2:3\n"
            "worker 0: B0.0 <- 0 1\n"
            "worker 0: B0.1 <- 2 3\n"
            "worker 1: F1.0 <- 0 -> 2:0\n"
            "worker 1: F1.1 <- 1 -> 2:2\n"
            "worker 1: B1.0 <- 2 -> 0:0\n"
            "worker 1: B1.1 <- 3 -> 0:2\n"
            "worker 2: F2.0 <- 0 1\n"
            "worker 2: B2.0 -> 1:2 0:1\n"
            "worker 2: F2.1 <- 2 3\n"
            "worker 2: B2.1 -> 1:3 0:3\n");
  EXPECT_EQ(program.slots, (std::vector<int32_t>{4, 4, 4}));
}

TEST(Program, Halves) {
  const Schedule schedule = Schedule::gpipe(2, 2);
  EXPECT_EQ(compile(schedule.only({kForward}), Routes::create(2)).to_text(),
            "worker 0: F0.0 -> 1:0\n"
            "worker 0: F0.1 -> 1:1\n"
            "worker 1: F1.0 <- 0\n"
            "worker 1: F1.1 <- 1\n");
  EXPECT_EQ(compile(schedule.only({kBackward}), Routes::create(2)).to_text(),
            "worker 0: B0.1 <- 0\n"
            "worker 0: B0.0 <- 1\n"
            "worker 1: B1.1 -> 0:0\n"
            "worker 1: B1.0 -> 0:1\n");
}

TEST(Program, WeightGradientsNeitherReceiveNorSend) {
  EXPECT_EQ(compile(testing::split_backward(), Routes::create(2)).to_text(),
            "worker 0: F0.0 -> 1:0\n"
            "worker 0: F0.1 -> 1:1\n"
            "worker 0: I0.0 <- 0\n"
            "worker 0: W0.0\n"
            "worker 0: I0.1 <- 1\n"
            "worker 0: W0.1\n"
            "worker 1: F1.0 <- 0\n"
            "worker 1: I1.0 -> 0:0\n"
            "worker 1: F1.1 <- 1\n"
            "worker 1: I1.1 -> 0:1\n"
            "worker 1: W1.0\n"
            "worker 1: W1.1\n");
}

// If two stages are on one worker, they exchange values through that worker's own mailbox.
TEST(Program, OwnMailbox) {
  EXPECT_EQ(compile(Schedule::from_text("stages 2\nmicro_batches 1\nworker 0: F0.0 F1.0 B1.0 B0.0"),
                    Routes::create(2, {{0, 1, "skip"}}))
                .to_text(),
            "worker 0: F0.0 -> 0:0 0:1\n"
            "worker 0: F1.0 <- 0 1\n"
            "worker 0: B1.0 -> 0:2 0:3\n"
            "worker 0: B0.0 <- 2 3\n");
}

// Runs a program one worker at a time with a text in place of each tensor, so that every receive
// can be checked: the right value, in the right order, and each slot filled once and emptied once.
void run_and_check(const Schedule& schedule, const Routes& routes) {
  SCOPED_TRACE(schedule.to_text() + routes.to_text());
  const Program program = compile(schedule, routes);
  ASSERT_EQ(program.workers.size(), static_cast<size_t>(schedule.workers()));
  ASSERT_EQ(program.slots.size(), program.workers.size());
  std::vector<std::vector<std::string>> mailboxes;
  for (int32_t slots : program.slots) mailboxes.emplace_back(static_cast<size_t>(slots));
  std::vector<size_t> next_step(program.workers.size(), 0);

  const auto value = [](RouteId route, const Action& action) {
    return std::string(action.kind == kForward ? "value " : "gradient ") + to_text(route) + " of " +
           std::to_string(action.micro_batch);
  };
  const auto run_step = [&](size_t worker, const Step& step) {
    const bool forward = step.action.kind == kForward;
    const bool weight = step.action.kind == kWeightGradient;
    const auto& in =
        forward ? routes.incoming(step.action.stage) : routes.outgoing(step.action.stage);
    const auto& out =
        forward ? routes.outgoing(step.action.stage) : routes.incoming(step.action.stage);
    ASSERT_EQ(step.receives.size(), weight ? 0 : in.size());
    for (size_t k = 0; k < step.receives.size(); ++k) {
      std::string& slot = mailboxes[worker].at(static_cast<size_t>(step.receives[k]));
      EXPECT_EQ(slot, value(in[k], step.action));
      slot = "taken";
    }
    ASSERT_EQ(step.sends.size(), weight ? 0 : out.size());
    for (size_t k = 0; k < step.sends.size(); ++k) {
      std::string& slot = mailboxes.at(static_cast<size_t>(step.sends[k].worker))
                              .at(static_cast<size_t>(step.sends[k].slot));
      EXPECT_EQ(slot, "");
      slot = value(out[k], step.action);
    }
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t worker = 0; worker < next_step.size(); ++worker) {
      while (next_step[worker] < program.workers[worker].size()) {
        const Step& step = program.workers[worker][next_step[worker]];
        ASSERT_EQ(step.action, schedule.actions(static_cast<int64_t>(worker))[next_step[worker]]);
        bool ready = true;
        for (int32_t slot : step.receives)
          ready = ready && !mailboxes[worker].at(static_cast<size_t>(slot)).empty();
        if (!ready) break;
        run_step(worker, step);
        ++next_step[worker];
        moved = true;
      }
    }
  }
  for (size_t worker = 0; worker < next_step.size(); ++worker) {
    EXPECT_EQ(next_step[worker], program.workers[worker].size());
    for (const std::string& slot : mailboxes[worker]) EXPECT_EQ(slot, "taken");
  }
}

TEST(Program, EveryValueArrivesInItsPlace) {
  std::mt19937_64 random = testing::test_random();
  for (int64_t p = 1; p <= 8; ++p) {
    for (int64_t m = 1; m <= 8; ++m) {
      std::vector<Route> skips;
      for (int32_t source = 0; source < p; ++source) {
        for (int32_t target = source + 1; target < p; ++target) {
          for (unsigned k = random() % 3; k > 0; --k) skips.push_back({source, target, "skip"});
        }
      }
      std::shuffle(skips.begin(), skips.end(), random);
      const Routes routes = Routes::create(p, skips);
      for (const Schedule& schedule : {Schedule::gpipe(p, m), Schedule::one_f_one_b(p, m)}) {
        run_and_check(schedule, routes);
        run_and_check(schedule.only({kForward}), routes);
        run_and_check(schedule.only({kBackward}), routes);
        if (HasFatalFailure() || HasNonfatalFailure()) return;
      }
    }
  }
}

TEST(Program, HandWrittenSchedules) {
  const Routes four = Routes::create(4, {{0, 3, "a"}, {0, 2, "b"}, {1, 3, "c"}, {1, 2, "d"}});
  run_and_check(testing::interleaved(), four);
  run_and_check(testing::interleaved().only({kForward}), four);
  run_and_check(testing::interleaved().only({kBackward}), four);
  const Routes two = Routes::create(2, {{0, 1, "a"}});
  run_and_check(testing::split_backward(), two);
  run_and_check(testing::split_backward().only({kInputGradient, kWeightGradient}), two);
}

// Mailboxes are buffers, so schedules that deadlock over a transport whose sends wait may still
// run.
TEST(Program, BufferedSendsAreEnough) {
  run_and_check(Schedule::one_f_one_b(4, 4), Routes::create(4, {{0, 3, "skip"}}));
  run_and_check(Schedule::from_text("stages 2\nmicro_batches 2\n"
                                    "worker 0: F0.0 F0.1 B0.0 B0.1\n"
                                    "worker 1: F1.1 F1.0 B1.0 B1.1\n"),
                Routes::create(2));
}

TEST(Program, IsPrinted) {
  const Program program = compile(Schedule::gpipe(2, 1), Routes::create(2));
  EXPECT_EQ(::testing::PrintToString(program),
            "worker 0: F0.0 -> 1:0\n"
            "worker 0: B0.0 <- 0\n"
            "worker 1: F1.0 <- 0\n"
            "worker 1: B1.0 -> 0:0\n");
  EXPECT_EQ(::testing::PrintToString(program), program.to_text());
  EXPECT_EQ(::testing::PrintToString(program.workers[0][0]), "F0.0 -> 1:0");
  EXPECT_EQ(::testing::PrintToString(program.workers[0][0].sends[0]), "1:0");
}

TEST(Program, WrongInputThrows) {
  EXPECT_THROW(compile(Schedule::gpipe(2, 2), Routes::create(3)), std::invalid_argument);
  try {
    compile(Schedule::gpipe(2, 2).only({kWeightGradient}), Routes::create(2));
    ADD_FAILURE() << "accepted";
  } catch (const std::invalid_argument& error) {
    EXPECT_THAT(error.what(), HasSubstr("there are no actions"));
  }
}

}  // namespace
}  // namespace gpipe
