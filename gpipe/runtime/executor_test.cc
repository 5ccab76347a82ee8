#include "gpipe/runtime/executor.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "gpipe/schedule/schedule.h"

namespace gpipe::internal {
namespace {

using Cell = std::pair<int, int>;  // stage, micro-batch

Routes with_skips(int64_t stages) {
  std::vector<Route> skips;
  if (stages >= 3) skips = {{0, static_cast<int32_t>(stages - 1), "far"}, {0, 2, "near"}};
  return Routes::create(stages, skips);
}

// What flows: which cells a value has seen. Checks that every cell gets exactly its predecessors'.
struct Value {
  std::string text;
};

class Executor : public ::testing::TestWithParam<std::tuple<int, int, bool>> {};

TEST_P(Executor, RunsEveryActionOnceAfterItsInputs) {
  const auto [stages, micro_batches, one_f_one_b] = GetParam();
  const Schedule schedule = one_f_one_b ? Schedule::one_f_one_b(stages, micro_batches)
                                        : Schedule::gpipe(stages, micro_batches);
  const Routes routes = with_skips(stages);
  const Program program = compile(schedule, routes);
  WorkerPool pool(stages);
  for (int round = 0; round < 10; ++round) {
    std::mutex mutex;
    std::set<Cell> forwards;
    std::set<Cell> backwards;
    std::vector<std::vector<Action>> order(stages);
    execute<Value>(
        pool, program,
        [&](const Action& action, std::vector<Value>& received, std::vector<Value>& sent) {
          const int j = action.stage;
          const int i = action.micro_batch;
          const bool forward = action.kind == ActionKind::kForward;
          const auto& sources = forward ? routes.incoming(j) : routes.outgoing(j);
          const auto& targets = forward ? routes.outgoing(j) : routes.incoming(j);
          ASSERT_EQ(received.size(), sources.size());
          ASSERT_EQ(sent.size(), targets.size());
          for (size_t k = 0; k < sources.size(); ++k) {
            EXPECT_EQ(received[k].text,
                      (forward ? "F" : "B") + std::to_string(sources[k]) + ":" + std::to_string(i));
          }
          for (size_t k = 0; k < targets.size(); ++k) {
            sent[k].text =
                (forward ? "F" : "B") + std::to_string(targets[k]) + ":" + std::to_string(i);
          }
          std::lock_guard<std::mutex> lock(mutex);
          if (forward) {
            EXPECT_TRUE(j == 0 || forwards.count({j - 1, i}));
            EXPECT_TRUE(forwards.insert({j, i}).second);
          } else {
            EXPECT_TRUE(forwards.count({j, i}));
            EXPECT_TRUE(j + 1 == stages || backwards.count({j + 1, i}));
            EXPECT_TRUE(backwards.insert({j, i}).second);
          }
          order[j].push_back(action);
        });
    EXPECT_EQ(forwards.size(), static_cast<size_t>(stages * micro_batches));
    EXPECT_EQ(backwards.size(), static_cast<size_t>(stages * micro_batches));
    for (int j = 0; j < stages; ++j) EXPECT_EQ(order[j], schedule.actions(j));
  }
}

TEST_P(Executor, FirstErrorStopsTheRunAndThePoolGoesOn) {
  const auto [stages, micro_batches, one_f_one_b] = GetParam();
  const Schedule schedule = one_f_one_b ? Schedule::one_f_one_b(stages, micro_batches)
                                        : Schedule::gpipe(stages, micro_batches);
  const Program program = compile(schedule, with_skips(stages));
  WorkerPool pool(stages);
  auto alive = std::make_shared<int>(0);
  for (int j = 0; j < stages; ++j) {
    for (const Action& failing : schedule.actions(j)) {
      EXPECT_THROW(execute<std::shared_ptr<int>>(
                       pool, program,
                       [&](const Action& action, auto&, std::vector<std::shared_ptr<int>>& sent) {
                         if (action == failing) throw std::out_of_range("here");
                         for (auto& payload : sent) payload = alive;
                       }),
                   std::out_of_range);
      EXPECT_EQ(alive.use_count(), 1) << "a payload outlives the failed run";
    }
  }
  std::atomic<int> actions{0};
  execute<int>(pool, program, [&](const Action&, auto&, auto&) { ++actions; });
  EXPECT_EQ(actions, 2 * stages * micro_batches);
}

INSTANTIATE_TEST_SUITE_P(Sizes, Executor,
                         ::testing::Combine(::testing::Values(1, 2, 3, 4),
                                            ::testing::Values(1, 2, 5), ::testing::Bool()));

// Of errors in two stages the caller gets the one that was first in time, whichever stage it is in.
TEST(ExecutorErrors, FirstInTimeWins) {
  const Program program = compile(Schedule::gpipe(3, 2), Routes::create(3));
  WorkerPool pool(3);
  for (int first = 0; first < 2; ++first) {
    std::atomic<int> inside{0};
    std::atomic<bool> cancelled{false};
    try {
      execute<int>(
          pool, program,
          [&](const Action& action, auto&, auto&) {
            // Stage 1 is in its micro-batch 0 while stage 0 is in its micro-batch 1.
            const bool meets = (action.stage == 0 && action.micro_batch == 1) || action.stage == 1;
            if (action.kind != ActionKind::kForward || !meets) return;
            ++inside;
            while (inside < 2) std::this_thread::yield();
            if (action.stage == first) throw std::runtime_error("stage " + std::to_string(first));
            while (!cancelled) std::this_thread::yield();
            throw std::runtime_error("the other");
          },
          nullptr,
          [&](int64_t worker, const std::function<void()>& steps) {
            steps();
            // Stage 2 never gets an input. It comes here when the first error has been noted.
            if (worker == 2) cancelled = true;
          });
      FAIL();
    } catch (const std::runtime_error& e) {
      EXPECT_EQ(std::string(e.what()), "stage " + std::to_string(first));
    }
  }
}

TEST(ExecutorErrors, AnythingThrownArrives) {
  const Program program = compile(Schedule::one_f_one_b(3, 4), Routes::create(3));
  WorkerPool pool(3);
  EXPECT_THROW(execute<int>(pool, program,
                            [](const Action& action, auto&, auto&) {
                              if (action.stage == 2) throw 42;
                            }),
               int);
}

// No clock: while stage 1 is busy with micro-batch 0, stage 0 goes on to the last one.
TEST(ExecutorRuns, NoBarrierBetweenStages) {
  const Program program =
      compile(Schedule::gpipe(2, 3).only({ActionKind::kForward}), Routes::create(2));
  WorkerPool pool(2);
  std::atomic<int> ahead{0};
  execute<int>(pool, program, [&](const Action& action, auto&, auto&) {
    if (action.stage == 0) ++ahead;
    if (action.stage == 1 && action.micro_batch == 0) {
      while (ahead < 3) std::this_thread::yield();  // would never end under a clock
    }
  });
  EXPECT_EQ(ahead, 3);
}

TEST(ExecutorRuns, ObserverSeesEachActionBeginAndEndOnItsWorker) {
  const Schedule schedule = Schedule::one_f_one_b(3, 4);
  const Program program = compile(schedule, Routes::create(3));
  WorkerPool pool(3);
  std::mutex mutex;
  std::vector<Event> events;
  execute<int>(
      pool, program, [](const Action&, auto&, auto&) {},
      [&](const Event& event) {
        std::lock_guard<std::mutex> lock(mutex);
        events.push_back(event);
      });
  ASSERT_EQ(events.size(), 2u * 2 * 3 * 4);
  for (int worker = 0; worker < 3; ++worker) {
    std::vector<Action> begun;
    const Event* open = nullptr;
    for (const Event& event : events) {
      if (event.worker != worker) continue;
      if (event.edge == Event::Edge::kBegin) {
        EXPECT_EQ(open, nullptr);
        open = &event;
        begun.push_back(event.action);
      } else {
        ASSERT_NE(open, nullptr);
        EXPECT_EQ(open->action, event.action);
        EXPECT_LE(open->time, event.time);
        open = nullptr;
      }
    }
    EXPECT_EQ(begun, schedule.actions(worker));
  }
}

TEST(ExecutorRuns, EachStepStartsWithEmptyPayloads) {
  const Program program =
      compile(Schedule::gpipe(2, 3).only({ActionKind::kForward}), Routes::create(2));
  WorkerPool pool(2);
  execute<int>(pool, program,
               [](const Action& action, std::vector<int>& received, std::vector<int>& sent) {
                 for (int payload : sent) EXPECT_EQ(payload, 0);
                 for (int& payload : sent) payload = action.micro_batch == 0 ? 7 : payload;
                 for (int payload : received) EXPECT_EQ(payload, action.micro_batch == 0 ? 7 : 0);
               });
}

// A worker that waits for its next input does not hold on to the last one.
TEST(ExecutorRuns, WhatAStepReceivedIsReleasedAfterIt) {
  const Program program =
      compile(Schedule::gpipe(2, 2).only({ActionKind::kForward}), Routes::create(2));
  WorkerPool pool(2);
  std::weak_ptr<int> first;
  execute<std::shared_ptr<int>>(
      pool, program, [&](const Action& action, auto&, std::vector<std::shared_ptr<int>>& sent) {
        if (action.stage != 0) return;
        if (action.micro_batch == 0) {
          sent[0] = std::make_shared<int>(0);
          first = sent[0];
        } else {
          while (!first.expired()) std::this_thread::yield();
        }
      });
  EXPECT_TRUE(first.expired());
}

// exit() waits for the step under way only; the next one would run beside the destruction of static
// objects.
TEST(ExecutorDeathTest, NoStepBeginsOnceTheGateIsShut) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        alarm(50);
        static std::atomic<bool> begun{false};
        static std::atomic<bool> went_on{false};
        std::thread([] {
          const Program program = compile(Schedule::gpipe(1, 2), Routes::create(1));
          WorkerPool pool(1);
          execute<int>(pool, program, [](const Action&, auto&, auto&) {
            if (begun.exchange(true)) went_on = true;
            while (!exiting()) std::this_thread::yield();
          });
        }).detach();
        while (!begun) std::this_thread::yield();
        const bool left = shut_exit_gate(std::chrono::seconds(40));
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        _exit(left && !went_on ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "");
}

TEST(ExecutorRuns, AroundSurroundsTheStepsOnEachWorker) {
  const Program program = compile(Schedule::gpipe(2, 2), Routes::create(2));
  WorkerPool pool(2);
  static thread_local bool inside = false;
  std::atomic<int> outside{0};
  execute<int>(
      pool, program, [&](const Action&, auto&, auto&) { outside += inside ? 0 : 1; }, nullptr,
      [](int64_t, const std::function<void()>& steps) {
        inside = true;
        steps();
        inside = false;
      });
  EXPECT_EQ(outside, 0);
}

}  // namespace
}  // namespace gpipe::internal
