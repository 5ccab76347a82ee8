// Tests that the timelines of several processes become one.
#include "gpipe/distributed/gather_timelines.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/functional.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "gpipe/distributed/clock_offset.h"
#include "gpipe/gpipe.h"
#include "gpipe/testing/processes/world_ranks.h"
#include "gpipe/timeline/time_split.h"

namespace gpipe::distributed {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using Say = WorldRanks::Say;
using Steps = std::vector<StepTimeline>;

constexpr int64_t kChunks = 4;
constexpr int64_t kSecond = 1'000'000'000;

GPipe make_pipe(const World& world, int64_t stages) {
  torch::nn::Sequential model;
  for (int64_t k = 0; k < stages; ++k) model->push_back(torch::nn::Linear(4, 4));
  return GPipe(model, GPipeOptions(std::vector<int64_t>(static_cast<size_t>(stages), 1))
                          .chunks(kChunks)
                          .cpu_threads_per_stage(1)
                          .world(world));
}

void step(const World& world, GPipe& pipe, Timeline& timeline) {
  const RowRange rows = world.rows(8, pipe->chunks());
  const torch::Tensor batch = torch::ones({rows.size(), 4});
  pipe->step(
      {batch}, {}, [](const Tensors& outputs, const Tensors&) { return outputs[0].sum(); },
      StepOptions().on_event(timeline.observer()));
}

std::string table_of(const StepTimeline& step) {
  std::string text;
  for (const auto& actions : step.workers) {
    for (const TimelineAction& timed : actions) text += timed.action.to_text() + " ";
    text += "| ";
  }
  return text;
}

std::string table_of(const Schedule& schedule) {
  std::string text;
  for (const auto& actions : schedule.table()) {
    for (const Action& action : actions) text += action.to_text() + " ";
    text += "| ";
  }
  return text;
}

// Names the first action that began before the action whose output it needs had ended; empty if
// there is none.
std::string too_early(const StepTimeline& step, int64_t stages, int64_t tolerance) {
  std::map<std::string, TimelineAction> by_name;
  for (const auto& actions : step.workers) {
    for (const TimelineAction& timed : actions) by_name[timed.action.to_text()] = timed;
  }
  for (const auto& [name, timed] : by_name) {
    const bool forward = timed.action.kind == ActionKind::kForward;
    Action needed = timed.action;
    needed.stage += forward ? -1 : 1;
    if (needed.stage < 0 || needed.stage >= stages) continue;
    const TimelineAction& before = by_name.at(needed.to_text());
    if (before.end > timed.begin + tolerance) {
      return name + " begins at " + std::to_string(timed.begin) + ", and " + needed.to_text() +
             " ends at " + std::to_string(before.end);
    }
  }
  return "";
}

TEST(GatherTimelines, AllProcessesGetAllWorkers) {
  WorldRanks ranks(3, [](const World& world, const Say& say) {
    GPipe pipe = make_pipe(world, 3);
    Timeline timeline;
    step(world, pipe, timeline);
    step(world, pipe, timeline);
    const std::vector<Steps> replicas = gpipe::gather_timelines(world, timeline);
    ASSERT_EQ(replicas.size(), 1u);
    ASSERT_EQ(replicas[0].size(), 2u);
    std::string text;
    for (const StepTimeline& step : replicas[0]) {
      text += table_of(step) + (step.whole(3) ? "whole " : "") + too_early(step, 3, 0);
    }
    if (replicas[0][0].begin() != 0) text += "the clock does not begin with 0";
    if (replicas[0][1].begin() < replicas[0][0].end()) text += "the second step begins too early";
    say(text);
    say(std::to_string(split_time(replicas[0], pipe->routes()).workers.size()));
  });
  const std::string table = table_of(Schedule::one_f_one_b(3, kChunks)) + "whole ";
  EXPECT_THAT(ranks.lines(), Each(table + table));
  EXPECT_THAT(ranks.lines(), Each("3"));
  ranks.expect_ends();
}

TEST(GatherTimelines, AnotherClockIsMadeThatOfRankZero) {
  WorldRanks ranks(3, [](const World& world, const Say& say) {
    GPipe pipe = make_pipe(world, 3);
    Timeline timeline;
    step(world, pipe, timeline);
    Steps steps = timeline.steps_of_steady_clock();
    Clock clock = steady_clock_of_machine();
    // Ranks 1 and 2 get other clocks, as if they ran on machines of their own.
    const int64_t ahead = (world.rank() == 1 ? 5 : -7) * kSecond;
    if (world.rank() > 0) {
      clock = {"machine " + std::to_string(world.rank()),
               [now = clock.now, ahead] { return now() + ahead; }};
      for (StepTimeline& step : steps) move_clock(step, ahead);
    }
    const std::vector<Steps> replicas = gather_timelines(world, std::move(steps), clock);
    // The tolerance is the time that a message may take on a busy machine.
    say(too_early(replicas[0][0], 3, kSecond));
    say(replicas[0][0].end() < 4 * kSecond ? "short" : "long");
  });
  EXPECT_THAT(ranks.lines(), Each(""));
  EXPECT_THAT(ranks.lines(), Each("short"));
  ranks.expect_ends();
}

TEST(GatherTimelines, EachReplicaHasItsOwn) {
  WorldRanks ranks(4, [](const World& all, const Say& say) {
    const World world = all.grid(2, 2);
    GPipe pipe = make_pipe(world, 2);
    Timeline timeline;
    step(world, pipe, timeline);
    std::string text;
    for (const Steps& steps : gpipe::gather_timelines(world, timeline)) {
      text += std::to_string(steps.size()) + ": " + table_of(steps[0]) + too_early(steps[0], 2, 0);
    }
    say(text);
  });
  const std::string table = "1: " + table_of(Schedule::one_f_one_b(2, kChunks / 2));
  EXPECT_THAT(ranks.lines(), Each(table + table));
  ranks.expect_ends();
}

TEST(GatherTimelines, AnotherNumberOfStepsIsAnErrorOnAllAndTheNextCallWorks) {
  WorldRanks ranks(2, [](const World& world, const Say& say) {
    GPipe pipe = make_pipe(world, 2);
    Timeline timeline;
    step(world, pipe, timeline);
    if (world.rank() == 1) timeline.clear();
    step(world, pipe, timeline);
    const auto gather = [&] {
      return outcome([&] {
        return std::to_string(gpipe::gather_timelines(world, timeline)[0].size()) + " steps";
      });
    };
    say(gather());
    timeline.clear();
    step(world, pipe, timeline);
    say(gather());
  });
  EXPECT_THAT(
      ranks.lines(),
      Each(AllOf(StartsWith("value error: gather_timelines: rank 1 has recorded nothing of a "
                            "step (its number "),
                 HasSubstr("between the same two steps"))));
  EXPECT_THAT(ranks.lines(), Each("1 steps"));
  ranks.expect_ends();
}

TEST(GatherTimelines, OfAStepThatFailedThereIsWhatHadBegun) {
  WorldRanks ranks(2, [](const World& world, const Say& say) {
    bool throws = false;
    torch::nn::Sequential model(torch::nn::Functional([&](torch::Tensor x) -> torch::Tensor {
                                  if (throws) throw std::runtime_error("no more");
                                  return x;
                                }),
                                torch::nn::Linear(4, 4));
    GPipe pipe(model, GPipeOptions({1, 1}).chunks(kChunks).cpu_threads_per_stage(1).world(world));
    Timeline timeline;
    step(world, pipe, timeline);
    throws = world.rank() == 0;
    say(outcome([&] {
      step(world, pipe, timeline);
      return std::string("went well");
    }));
    throws = false;
    step(world, pipe, timeline);
    std::string text;
    const std::vector<Steps> replicas = gpipe::gather_timelines(world, timeline);
    for (const StepTimeline& step : replicas.at(0)) {
      text += step.whole(2) ? "whole " : step.failed() ? "failed " : "neither ";
    }
    say(text);
  });
  EXPECT_THAT(ranks.lines(), Each(HasSubstr("no more")));
  EXPECT_THAT(ranks.lines(), Each("whole failed whole "));
  ranks.expect_ends();
}

TEST(GatherTimelines, WorkersThatAreRecordedTwiceAreAnError) {
  WorldRanks ranks(2, [](const World& world, const Say& say) {
    GPipe alone = make_pipe(World(), 2);
    Timeline timeline;
    step(World(), alone, timeline);
    say(outcome([&] {
      gpipe::gather_timelines(world, timeline);
      return std::string("nothing");
    }));
  });
  EXPECT_THAT(ranks.lines(), Each(HasSubstr("rank 1 has recorded worker 0, as another rank")));
  ranks.expect_ends();
}

TEST(GatherTimelines, OfOneProcessItIsWhatThatHasRecorded) {
  WorldRanks ranks(1, [](const World&, const Say& say) {
    GPipe pipe = make_pipe(World(), 2);
    Timeline timeline;
    say(std::to_string(gpipe::gather_timelines(World(), timeline)[0].size()));
    step(World(), pipe, timeline);
    say(table_of(gpipe::gather_timelines(World(), timeline)[0][0]));
  });
  EXPECT_EQ(ranks->next(0), "0");
  EXPECT_EQ(ranks->next(0), table_of(Schedule::one_f_one_b(2, kChunks)));
  ranks.expect_ends();
}

}  // namespace
}  // namespace gpipe::distributed
