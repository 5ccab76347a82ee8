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
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "gpipe/runtime/interruption.h"
#include "gpipe/runtime/mailboxes.h"
#include "gpipe/schedule/schedule.h"

namespace gpipe::internal {
namespace {

// Runs all workers of `program` in this process, and throws the run's first error.
template <typename Payload>
void run(WorkerPool& pool, const Program& program, const Handler<Payload>& handler,
         const Observer& observer = nullptr,
         const std::function<void(int32_t, const std::function<void()>&)>& around = nullptr) {
  Mailboxes<Payload> mailboxes(program.slots);
  const auto failure = execute<Payload>(pool, program, mailboxes, handler, {{}, &observer, around});
  if (failure) std::rethrow_exception(failure->error);
}

using Cell = std::pair<int, int>;  // (stage, micro-batch)

Routes with_skips(int64_t stages) {
  std::vector<Route> skips;
  if (stages >= 3) skips = {{0, static_cast<int32_t>(stages - 1), "far"}, {0, 2, "near"}};
  return Routes::create(stages, skips);
}

// A payload: the names of the cells that it has passed. The handler checks that every cell gets
// exactly the values of its predecessors.
struct Value {
  std::string text;
};

class Executor : public ::testing::TestWithParam<std::tuple<int, int, bool>> {};

TEST_P(Executor, RunsEveryActionOnceAfterItsInputs) {
  const int stages = std::get<0>(GetParam());
  const int micro_batches = std::get<1>(GetParam());
  const bool one_f_one_b = std::get<2>(GetParam());
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
    run<Value>(pool, program,
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
                             (forward ? "F" : "B") + to_text(sources[k]) + ":" + std::to_string(i));
                 }
                 for (size_t k = 0; k < targets.size(); ++k) {
                   sent[k].text =
                       (forward ? "F" : "B") + to_text(targets[k]) + ":" + std::to_string(i);
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
  const int stages = std::get<0>(GetParam());
  const int micro_batches = std::get<1>(GetParam());
  const bool one_f_one_b = std::get<2>(GetParam());
  const Schedule schedule = one_f_one_b ? Schedule::one_f_one_b(stages, micro_batches)
                                        : Schedule::gpipe(stages, micro_batches);
  const Program program = compile(schedule, with_skips(stages));
  WorkerPool pool(stages);
  auto alive = std::make_shared<int>(0);
  for (int j = 0; j < stages; ++j) {
    for (const Action& failing : schedule.actions(j)) {
      EXPECT_THROW(run<std::shared_ptr<int>>(
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
  run<int>(pool, program, [&](const Action&, auto&, auto&) { ++actions; });
  EXPECT_EQ(actions, 2 * stages * micro_batches);
}

INSTANTIATE_TEST_SUITE_P(Sizes, Executor,
                         ::testing::Combine(::testing::Values(1, 2, 3, 4),
                                            ::testing::Values(1, 2, 5), ::testing::Bool()));

// If two stages fail, the caller gets the error that came first, whichever stage it is in.
TEST(ExecutorErrors, FirstInTimeWins) {
  const Program program = compile(Schedule::gpipe(3, 2), Routes::create(3));
  WorkerPool pool(3);
  for (int first = 0; first < 2; ++first) {
    std::atomic<int> inside{0};
    std::atomic<bool> cancelled{false};
    try {
      run<int>(
          pool, program,
          [&](const Action& action, auto&, auto&) {
            // Stage 1 runs micro-batch 0 while stage 0 runs micro-batch 1. Both wait for each other
            // here.
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
            // Stage 2 never gets an input. Its worker comes here once the first error has been
            // recorded.
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
  EXPECT_THROW(run<int>(pool, program,
                        [](const Action& action, auto&, auto&) {
                          if (action.stage == 2) throw 42;
                        }),
               int);
}

std::optional<Action> action_of_failure(Transport<int>& transport, const Program& program,
                                        const Handler<int>& handler,
                                        const ExecuteOptions& options = {}) {
  WorkerPool pool(2);
  const auto failure = execute<int>(pool, program, transport, handler, options);
  if (!failure) {
    ADD_FAILURE() << "the run did not fail";
    return {};
  }
  EXPECT_THROW(std::rethrow_exception(failure->error), std::runtime_error);
  return failure->action;
}

// Mailboxes that throw when a worker sends to slot `sent` of worker 1, or when worker 1 receives
// from slot `received`.
class Failing : public Transport<int> {
 public:
  Failing(const Program& program, int sent, int received)
      : mailboxes_(program.slots), sent_(sent), received_(received) {}

  void send(const std::vector<Step::Send>& sends, std::vector<int>& payloads) override {
    for (const Step::Send& to : sends) {
      if (to.worker == 1 && to.slot == sent_) throw std::runtime_error("nobody there");
    }
    mailboxes_.send(sends, payloads);
  }
  bool receive(int32_t worker, const std::vector<int32_t>& slots,
               std::vector<int>& payloads) override {
    for (const int32_t slot : slots) {
      if (worker == 1 && slot == received_) throw std::runtime_error("the other end is gone");
    }
    return mailboxes_.receive(worker, slots, payloads);
  }
  void cancel() noexcept override { mailboxes_.cancel(); }

 private:
  Mailboxes<int> mailboxes_;
  int sent_;
  int received_;
};

TEST(ExecutorErrors, AFailureNamesItsAction) {
  const Program program = compile(Schedule::gpipe(2, 3), Routes::create(2));
  const Action failing{ActionKind::kBackward, 1, 2};
  const auto nothing = [](const Action&, auto&, auto&) {};
  Mailboxes<int> mailboxes(program.slots);
  EXPECT_EQ(action_of_failure(mailboxes, program,
                              [&](const Action& action, auto&, auto&) {
                                if (action == failing) throw std::runtime_error("here");
                              }),
            failing);
  Failing sending(program, /*sent=*/1, /*received=*/-1);
  EXPECT_EQ(action_of_failure(sending, program, nothing), (Action{ActionKind::kForward, 0, 1}))
      << "an error of sending names the action that made the payload";
}

TEST(ExecutorErrors, WhereNoActionFailedNoneIsNamed) {
  const Program program = compile(Schedule::gpipe(2, 3), Routes::create(2));
  const auto nothing = [](const Action&, auto&, auto&) {};
  Failing receiving(program, /*sent=*/-1, /*received=*/1);
  EXPECT_EQ(action_of_failure(receiving, program, nothing), std::nullopt);
  for (const Event::Edge edge : {Event::Edge::kBegin, Event::Edge::kEnd}) {
    Mailboxes<int> mailboxes(program.slots);
    ExecuteOptions options;
    const Observer observer = [edge](const Event& event) {
      if (event.edge == edge) throw std::runtime_error("the observer");
    };
    options.observer = &observer;
    EXPECT_EQ(action_of_failure(mailboxes, program, nothing, options), std::nullopt);
  }
}

// There is no clock. So stage 0 goes on to its last micro-batch while stage 1 is busy with its
// first one.
TEST(ExecutorRuns, NoBarrierBetweenStages) {
  const Program program =
      compile(Schedule::gpipe(2, 3).only({ActionKind::kForward}), Routes::create(2));
  WorkerPool pool(2);
  std::atomic<int> ahead{0};
  run<int>(pool, program, [&](const Action& action, auto&, auto&) {
    if (action.stage == 0) ++ahead;
    if (action.stage == 1 && action.micro_batch == 0) {
      while (ahead < 3) std::this_thread::yield();  // with a clock, this loop would never end
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
  run<int>(
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

TEST(ExecutorErrors, TheObserverSeesAFailedActionEndToo) {
  const Program program = compile(Schedule::gpipe(2, 3), Routes::create(2));
  const Action failing{ActionKind::kForward, 1, 1};
  for (const bool observer_fails : {false, true}) {
    int begun = 0;
    int ended = 0;
    std::mutex mutex;
    const Observer observer = [&](const Event& event) {
      const std::lock_guard<std::mutex> lock(mutex);
      if (!(event.action == failing)) {
        EXPECT_FALSE(event.failed);
        return;
      }
      ++(event.edge == Event::Edge::kBegin ? begun : ended);
      EXPECT_EQ(event.failed, event.edge == Event::Edge::kEnd);
      if (event.failed && observer_fails) throw std::logic_error("the observer");
    };
    ExecuteOptions options;
    options.observer = &observer;
    WorkerPool pool(2);
    Mailboxes<int> mailboxes(program.slots);
    const auto failure = execute<int>(
        pool, program, mailboxes,
        [&](const Action& action, auto&, auto&) {
          if (action == failing) throw std::runtime_error("the action");
        },
        options);
    ASSERT_TRUE(failure.has_value());
    EXPECT_THROW(std::rethrow_exception(failure->error), std::runtime_error);
    EXPECT_EQ(failure->action, failing);
    EXPECT_EQ(begun, 1);
    EXPECT_EQ(ended, 1);
  }
}

TEST(ExecutorRuns, EachStepStartsWithEmptyPayloads) {
  const Program program =
      compile(Schedule::gpipe(2, 3).only({ActionKind::kForward}), Routes::create(2));
  WorkerPool pool(2);
  run<int>(pool, program,
           [](const Action& action, std::vector<int>& received, std::vector<int>& sent) {
             for (int payload : sent) EXPECT_EQ(payload, 0);
             for (int& payload : sent) payload = action.micro_batch == 0 ? 7 : payload;
             for (int payload : received) EXPECT_EQ(payload, action.micro_batch == 0 ? 7 : 0);
           });
}

// The payload that a step received is released before its worker waits for the next payload.
TEST(ExecutorRuns, WhatAStepReceivedIsReleasedAfterIt) {
  const Program program =
      compile(Schedule::gpipe(2, 2).only({ActionKind::kForward}), Routes::create(2));
  WorkerPool pool(2);
  std::weak_ptr<int> first;
  run<std::shared_ptr<int>>(
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

// exit() waits only for the step in progress, and no step begins after it, because that step would
// run during the destruction of static objects.
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
          run<int>(pool, program, [](const Action&, auto&, auto&) {
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

// The workers of a program run in two pools, as in two processes. Each stage stays on one thread.
TEST(ExecutorRuns, APlacementSaysWhichWorkersRunHere) {
  const Program program = compile(Schedule::one_f_one_b(3, 5), Routes::create(3));
  Mailboxes<std::string> mailboxes(program.slots);
  std::mutex mutex;
  std::map<int, std::set<std::thread::id>> threads;  // [stage] the threads that ran it
  const Handler<std::string> handler = [&](const Action& action, std::vector<std::string>& received,
                                           std::vector<std::string>& sent) {
    for (const std::string& payload : received) {
      EXPECT_EQ(payload.substr(1), std::to_string(action.micro_batch));
    }
    for (std::string& payload : sent) payload = "#" + std::to_string(action.micro_batch);
    std::lock_guard<std::mutex> lock(mutex);
    threads[action.stage].insert(std::this_thread::get_id());
  };
  auto run_here = [&](std::vector<int32_t> placement) {
    WorkerPool pool(static_cast<int64_t>(placement.size()));
    ExecuteOptions options;
    options.placement = std::move(placement);
    EXPECT_FALSE(execute<std::string>(pool, program, mailboxes, handler, options));
  };
  std::thread other([&] { run_here({1}); });
  run_here({2, 0});
  other.join();
  ASSERT_EQ(threads.size(), 3u);
  std::set<std::thread::id> all;
  for (const auto& [stage, ids] : threads) {
    EXPECT_EQ(ids.size(), 1u) << "stage " << stage;
    all.insert(ids.begin(), ids.end());
  }
  EXPECT_EQ(all.size(), 3u);
}

TEST(ExecutorRuns, AroundSurroundsTheStepsOnEachWorker) {
  const Program program = compile(Schedule::gpipe(2, 2), Routes::create(2));
  WorkerPool pool(2);
  static thread_local bool inside = false;
  std::atomic<int> outside{0};
  run<int>(
      pool, program, [&](const Action&, auto&, auto&) { outside += inside ? 0 : 1; }, nullptr,
      [](int64_t, const std::function<void()>& steps) {
        inside = true;
        steps();
        inside = false;
      });
  EXPECT_EQ(outside, 0);
}

// The interruption check, as Python needs it for Ctrl-C: only the thread that waits for the workers
// may call it.
std::atomic<bool> interrupt{false};
std::atomic<int> asked_elsewhere{0};
std::thread::id caller;

void ask() {
  if (std::this_thread::get_id() != caller) ++asked_elsewhere;
  if (interrupt.exchange(false)) throw std::underflow_error("interrupted");
}

TEST(ExecutorErrors, AnInterruptionEndsTheRunAndThePoolGoesOn) {
  caller = std::this_thread::get_id();
  set_interruption_check(ask);
  for (const bool inline_single : {true, false}) {
    SCOPED_TRACE(inline_single);
    const int stages = inline_single ? 1 : 3;
    WorkerPool pool(stages, nullptr, inline_single);
    const Program program = compile(Schedule::gpipe(stages, 4), Routes::create(stages, {}));
    std::atomic<int> begun{0};
    const Handler<int> handler = [&](const Action&, auto&, auto&) {
      // The first action stays at work until the caller has been interrupted. So few other actions
      // begin.
      if (begun++ == 0) interrupt = true;
      while (interrupt && !inline_single) std::this_thread::yield();
    };
    EXPECT_THROW(run<int>(pool, program, handler), std::underflow_error);
    EXPECT_LT(begun, 2 * 4 * stages);
    begun = 1;
    run<int>(pool, program, handler);
    EXPECT_EQ(begun, 1 + 2 * 4 * stages);
  }
  set_interruption_check(nullptr);
  EXPECT_EQ(asked_elsewhere, 0);
}

}  // namespace
}  // namespace gpipe::internal
