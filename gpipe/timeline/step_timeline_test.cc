#include "gpipe/timeline/step_timeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "gpipe/schedule/schedule.h"

namespace gpipe {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(StepTimeline, OfASimulationHasItsTimes) {
  const Simulation run = simulate(Schedule::one_f_one_b(3, 4), {uniform_cost({1.0, 2.0}), {}});
  const StepTimeline step = to_timeline(run, 0.5, [](const Action& action) {
    return action.kind == ActionKind::kBackward && action.stage == 1 ? 0.5 : 0.0;
  });
  EXPECT_TRUE(step.simulated);
  EXPECT_FALSE(step.failed());
  EXPECT_EQ(step.begin(), 0);
  EXPECT_EQ(step.end(), 9'000'000'000);  // (4 + 3 - 1) times (1 + 2) units of half a second
  ASSERT_EQ(step.workers.size(), 3u);
  for (size_t worker = 0; worker < 3; ++worker) {
    ASSERT_EQ(step.workers[worker].size(), 8u);
    for (size_t k = 0; k < 8; ++k) {
      const TimelineAction& timed = step.workers[worker][k];
      EXPECT_EQ(timed.action, run.workers[worker][k].action);
      EXPECT_EQ(timed.begin, static_cast<int64_t>(run.workers[worker][k].start * 5e8));
      EXPECT_EQ(timed.end, static_cast<int64_t>(run.workers[worker][k].end * 5e8));
      const bool again = worker == 1 && timed.action.kind == ActionKind::kBackward;
      EXPECT_EQ(timed.recompute(), again ? 250'000'000 : 0);
      EXPECT_EQ(timed.recompute_begin, timed.begin);
    }
  }
}

TEST(StepTimeline, WithoutActionsTakesNoTime) {
  EXPECT_EQ(StepTimeline().begin(), 0);
  EXPECT_EQ(StepTimeline().end(), 0);
  StepTimeline idle;
  idle.workers.resize(2);
  EXPECT_EQ(idle.end() - idle.begin(), 0);
}

TEST(StepTimeline, IsWholeIfAllStagesRanTheSame) {
  const auto timeline_of = [](const std::vector<std::vector<const char*>>& workers) {
    StepTimeline step;
    for (const auto& actions : workers) {
      step.workers.emplace_back();
      for (const char* text : actions) step.workers.back().push_back({Action::from_text(text)});
    }
    return step;
  };
  for (const Schedule& schedule : {Schedule::gpipe(3, 4), Schedule::one_f_one_b(3, 4)}) {
    EXPECT_TRUE(to_timeline(simulate(schedule)).whole(3));
  }
  EXPECT_TRUE(timeline_of({{"F0.0"}, {"F1.0"}}).whole()) << "no backwards at all";
  EXPECT_TRUE(timeline_of({{"F0.0", "B0.0"}, {"F1.0", "I1.0", "W1.0"}}).whole());
  EXPECT_FALSE(timeline_of({{"F0.0", "B0.0"}, {"F1.0", "I1.0"}}).whole());
  EXPECT_FALSE(timeline_of({{"F0.0", "F0.1"}, {"F1.0"}}).whole());
  EXPECT_FALSE(timeline_of({{"F0.0"}, {"F1.0", "B1.0"}}).whole());
  EXPECT_FALSE(timeline_of({{"F0.0", "F0.1", "B0.0"}, {"F1.0", "F1.1", "B1.0"}}).whole());
  EXPECT_FALSE(timeline_of({{}, {"F1.0"}}).whole()) << "stage 0 ran nothing";
  EXPECT_FALSE(timeline_of({{"F0.0"}}).whole(2)) << "stage 1 ran nothing";
  EXPECT_FALSE(timeline_of({{}}).whole());
  StepTimeline step = timeline_of({{"F0.0"}});
  EXPECT_TRUE(step.whole());
  step.unfinished = true;
  EXPECT_FALSE(step.whole());
  step.unfinished = false;
  step.workers[0][0].failed = true;
  EXPECT_FALSE(step.whole());
}

TEST(StepTimeline, RefusesUnitsAndRecomputesThatMakeNoSense) {
  const Simulation run = simulate(Schedule::gpipe(1, 1));
  for (const double seconds : {0.0, -1.0, 1.0 / 0.0}) {
    EXPECT_THAT([&] { to_timeline(run, seconds); },
                ThrowsMessage<std::invalid_argument>(HasSubstr("above 0")));
  }
  EXPECT_THAT([&] { to_timeline(run, 1e10); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("century")));
  for (const double recompute : {-0.5, 1.5}) {
    EXPECT_THAT([&] { to_timeline(run, 1.0, [&](const Action&) { return recompute; }); },
                ThrowsMessage<std::invalid_argument>(HasSubstr("recompute of F0.0")));
  }
}

}  // namespace
}  // namespace gpipe
