#include "gpipe/timeline/timeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <thread>

#include "gpipe/runtime/executor.h"
#include "gpipe/runtime/mailboxes.h"
#include "gpipe/schedule/program.h"
#include "gpipe/schedule/schedule.h"

namespace gpipe {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// Runs the schedule once, as run `number`. Each action calls `work`.
void run(
    const Schedule& schedule, const Observer& recorder, int64_t number,
    const std::function<void(const Action&)>& work = [](const Action&) {}) {
  const Program program = compile(schedule, Routes::create(schedule.stages()));
  internal::WorkerPool pool(schedule.workers());
  internal::Mailboxes<int> mailboxes(program.slots);
  internal::ExecuteOptions options;
  const Observer observer = [&](const Event& event) {
    Event numbered = event;
    numbered.run = number;
    recorder(numbered);
  };
  options.observer = &observer;
  (void)internal::execute<int>(
      pool, program, mailboxes, [&](const Action& action, auto&, auto&) { work(action); }, options);
}

std::vector<std::vector<Action>> table(const StepTimeline& step) {
  std::vector<std::vector<Action>> table;
  for (const auto& actions : step.workers) {
    std::vector<Action>& row = table.emplace_back();
    for (const TimelineAction& timed : actions) row.push_back(timed.action);
  }
  return table;
}

TEST(Timeline, RecordsStepAfterStep) {
  Timeline timeline;
  EXPECT_TRUE(timeline.steps().empty());
  const Observer observer = timeline.observer();
  const std::vector<Schedule> schedules = {Schedule::one_f_one_b(3, 4), Schedule::gpipe(2, 2),
                                           Schedule::one_f_one_b(3, 4)};
  for (size_t k = 0; k < schedules.size(); ++k) {
    run(schedules[k], k == 1 ? timeline.observer() : observer, static_cast<int64_t>(k));
  }
  const std::vector<StepTimeline> steps = timeline.steps();
  ASSERT_EQ(steps.size(), 3u);
  EXPECT_EQ(steps.front().begin(), 0);
  for (size_t k = 0; k < steps.size(); ++k) {
    EXPECT_EQ(table(steps[k]), schedules[k].table());
    EXPECT_FALSE(steps[k].simulated);
    EXPECT_GE(steps[k].begin(), k == 0 ? 0 : steps[k - 1].end());
    for (const auto& actions : steps[k].workers) {
      int64_t last = steps[k].begin();
      for (const TimelineAction& timed : actions) {
        EXPECT_GE(timed.begin, last);
        EXPECT_GE(timed.end, timed.begin);
        EXPECT_EQ(timed.recompute(), 0);
        EXPECT_EQ(timed.recompute_begin, timed.begin);
        last = timed.end;
      }
    }
  }
  timeline.clear();
  EXPECT_TRUE(timeline.steps().empty());
  run(schedules[1], observer, 3);
  EXPECT_EQ(timeline.steps().size(), 1u);
}

TEST(Timeline, HasTheTimesOfTheEvents) {
  using std::chrono::nanoseconds;
  Timeline timeline;
  const Observer observer = timeline.observer();
  const Event::Time zero = std::chrono::steady_clock::now();
  const Action action{ActionKind::kBackward, 0, 0};
  observer({Event::Edge::kBegin, action, 0, zero, false, {}, {}, 7});
  observer({Event::Edge::kEnd, action, 0, zero + nanoseconds(90), true, zero + nanoseconds(20),
            zero + nanoseconds(50), 7});
  const std::vector<StepTimeline> steps = timeline.steps();
  ASSERT_EQ(steps.size(), 1u);
  const TimelineAction& timed = steps[0].workers.at(0).at(0);
  EXPECT_EQ(timed.begin, 0);
  EXPECT_EQ(timed.recompute_begin, 20);
  EXPECT_EQ(timed.recompute_end, 50);
  EXPECT_EQ(timed.end, 90);
  EXPECT_TRUE(timed.failed);
}

TEST(Timeline, SeveralPipelinesMayRunAtOnce) {
  Timeline timeline;
  std::vector<std::thread> threads;
  for (int64_t k = 0; k < 4; ++k) {
    threads.emplace_back([&, k] { run(Schedule::one_f_one_b(2, 8), timeline.observer(), k); });
  }
  std::atomic<bool> done{false};
  std::thread reader([&] {
    while (!done) (void)timeline.steps();
  });
  for (std::thread& thread : threads) thread.join();
  done = true;
  reader.join();
  const std::vector<StepTimeline> steps = timeline.steps();
  ASSERT_EQ(steps.size(), 4u);
  for (const StepTimeline& step : steps) {
    EXPECT_EQ(table(step), Schedule::one_f_one_b(2, 8).table());
  }
}

TEST(Timeline, MarksTheActionThatFailed) {
  Timeline timeline;
  run(Schedule::gpipe(2, 3), timeline.observer(), 0, [](const Action& action) {
    if (action == Action{ActionKind::kForward, 1, 1}) throw std::runtime_error("a layer");
  });
  const std::vector<StepTimeline> steps = timeline.steps();
  ASSERT_EQ(steps.size(), 1u);
  EXPECT_TRUE(steps[0].failed());
  ASSERT_EQ(steps[0].workers.at(1).size(), 2u);
  EXPECT_FALSE(steps[0].workers[1][0].failed);
  EXPECT_TRUE(steps[0].workers[1][1].failed);
}

TEST(Timeline, MarksTheStepThatAnObserverEnds) {
  Timeline timeline;
  const Observer recorder = timeline.observer();
  const Observer throws = [&](const Event& event) {
    recorder(event);
    if (event.edge == Event::Edge::kBegin && event.action.micro_batch == 2) {
      throw std::runtime_error("Ctrl-C");
    }
  };
  run(Schedule::gpipe(1, 3), throws, 0);
  run(Schedule::gpipe(1, 3), recorder, 1);
  const std::vector<StepTimeline> steps = timeline.steps();
  ASSERT_EQ(steps.size(), 2u);
  EXPECT_EQ(steps[0].workers.at(0).size(), 2u);
  EXPECT_FALSE(steps[0].failed());
  EXPECT_TRUE(steps[0].unfinished);
  EXPECT_FALSE(steps[0].whole());
  EXPECT_FALSE(steps[1].unfinished);
  EXPECT_TRUE(steps[1].whole());
}

TEST(Timeline, AnObserverMayOutliveIt) {
  Observer observer;
  {
    Timeline timeline;
    observer = timeline.observer();
  }
  run(Schedule::gpipe(2, 2), observer, 0);  // with a destroyed timeline, ASan would report this
}

TEST(Timeline, WritesATrace) {
  Timeline timeline;
  run(Schedule::gpipe(2, 2), timeline.observer(), 0);
  const std::string path = ::testing::TempDir() + "/timeline_test.json";
  timeline.write_chrome_trace(path, Routes::create(2));
  std::ifstream file(path);
  int actions = 0;
  const auto trace = nlohmann::json::parse(file);
  for (const auto& event : trace.at("traceEvents")) {
    actions += event.at("ph") == "X" && event.at("cat") != "step" ? 1 : 0;
  }
  EXPECT_EQ(actions, 8);
  std::remove(path.c_str());
  EXPECT_THAT([&] { timeline.write_chrome_trace("/dev/null/trace.json"); },
              ThrowsMessage<std::runtime_error>(HasSubstr("/dev/null/trace.json")));
}

}  // namespace
}  // namespace gpipe
