#include "gpipe/testing/fake_accelerator/runtime.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gpipe/testing/fake_accelerator/gate.h"

namespace gpipe::testing::fake {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::steady_clock;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr StreamId kA{0, 0}, kB{0, 5}, kC{3, 32};

Task kernel(std::string name, std::function<void()> run = nullptr) {
  return {std::move(name), Task::Kind::kKernel, {}, std::move(run), {}};
}

class RuntimeTest : public ::testing::Test {
 protected:
  RuntimeTest() { runtime_.add_block(memory_, sizeof(memory_), "block"); }

  Task touch(std::string name, bool write) {
    return {std::move(name), Task::Kind::kKernel, {{Footprint(memory_, 64), write}}, nullptr, {}};
  }
  void write_on(StreamId stream) { runtime_.launch(stream, touch("writer", true)); }
  void read_on(StreamId stream) { runtime_.launch(stream, touch("reader", false)); }

  char memory_[64] = {};
  Runtime runtime_;
};

TEST_F(RuntimeTest, AStreamRunsItsTasksInOrderAfterTheCallsReturned) {
  std::vector<int> order;
  Gate gate;
  runtime_.launch(kA, gate.task());
  for (int i = 0; i < 100; ++i) {
    runtime_.launch(kA, kernel("number", [&order, i] { order.push_back(i); }));
  }
  EXPECT_THAT(order, IsEmpty());
  EXPECT_FALSE(runtime_.is_idle(kA));
  gate.open();
  runtime_.synchronize(kA);
  EXPECT_THAT(order, SizeIs(100));
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
  EXPECT_TRUE(runtime_.is_idle(kA));
}

TEST_F(RuntimeTest, OtherStreamsRunMeanwhile) {
  Gate gate;
  runtime_.launch(kA, gate.task());
  bool ran = false;
  runtime_.launch(kB, kernel("other", [&] { ran = true; }));
  runtime_.synchronize(kB);
  EXPECT_TRUE(ran);
  EXPECT_FALSE(runtime_.is_idle(kA));
  gate.open();
}

TEST_F(RuntimeTest, AStreamBehindAnEventWaitsForItAndTheHostDoesNot) {
  Gate gate;
  std::atomic<bool> before{false}, in_order{false};
  runtime_.launch(kA, gate.task());
  runtime_.launch(kA, kernel("before", [&] { before = true; }));
  const Event event = runtime_.record(kA);
  runtime_.wait(kC, event);
  runtime_.launch(kC, kernel("after", [&] { in_order = before.load(); }));
  EXPECT_FALSE(runtime_.query(event));
  EXPECT_FALSE(runtime_.is_over(event));
  gate.open();
  runtime_.synchronize(kC);
  EXPECT_TRUE(in_order);
  EXPECT_TRUE(runtime_.query(event));
}

TEST_F(RuntimeTest, AnEventIsOfWhatWasEnqueuedBefore) {
  const Event event = runtime_.record(kA);
  Gate gate;
  runtime_.launch(kA, gate.task());
  EXPECT_TRUE(runtime_.query(event));
  runtime_.synchronize(event);
  runtime_.synchronize(Event());
  EXPECT_TRUE(runtime_.query(Event()));
  gate.open();
}

TEST_F(RuntimeTest, ThereAreNoOtherStreams) {
  EXPECT_THROW(runtime_.launch({kDevices, 0}, kernel("k")), std::out_of_range);
  EXPECT_THROW(runtime_.launch({0, kStreams}, kernel("k")), std::out_of_range);
  EXPECT_THROW(runtime_.record({-1, 0}), std::out_of_range);
  EXPECT_THROW(runtime_.synchronize_device(kDevices), std::out_of_range);
}

TEST(Runtime, StartsAThreadForAStreamWhenItHasWork) {
  std::atomic<int> threads{0};
  Runtime runtime([&] { ++threads; });
  runtime.synchronize_device(0);
  runtime.record(kA);
  runtime.drain();
  EXPECT_EQ(threads, 0);
  runtime.launch(kA, kernel("first"));
  runtime.launch(kA, kernel("second"));
  runtime.launch(kC, kernel("third"));
  runtime.drain();
  EXPECT_EQ(threads, 2);
}

// ---- Order: without each of these edges a race is reported, and with it none.

TEST_F(RuntimeTest, WithoutAnyOrderItIsARaceThoughAllIsOverLongAgo) {
  write_on(kA);
  while (!runtime_.is_over(runtime_.record(kA))) std::this_thread::yield();
  read_on(kB);
  EXPECT_THAT(runtime_.take_races(),
              ElementsAre(AllOf(HasSubstr("reader on fake:0/5, launched by thread"),
                                HasSubstr("writer on fake:0/0, launched by thread"))));
  EXPECT_THAT(runtime_.take_races(), IsEmpty());
}

TEST_F(RuntimeTest, AnEventOrders) {
  write_on(kA);
  runtime_.wait(kC, runtime_.record(kA));
  read_on(kC);
  EXPECT_THAT(runtime_.take_races(), IsEmpty());
}

TEST_F(RuntimeTest, AnEventRecordedTooEarlyDoesNot) {
  const Event event = runtime_.record(kA);
  write_on(kA);
  runtime_.wait(kC, event);
  read_on(kC);
  EXPECT_THAT(runtime_.take_races(), SizeIs(1));
}

TEST_F(RuntimeTest, AWaitOfAnotherStreamDoesNot) {
  write_on(kA);
  runtime_.wait(kC, runtime_.record(kA));
  read_on(kB);
  EXPECT_THAT(runtime_.take_races(), SizeIs(1));
}

TEST_F(RuntimeTest, EventsOrderThroughAThirdStream) {
  write_on(kA);
  runtime_.wait(kB, runtime_.record(kA));
  runtime_.wait(kC, runtime_.record(kB));
  write_on(kC);
  EXPECT_THAT(runtime_.take_races(), IsEmpty());
}

TEST_F(RuntimeTest, TheHostsWaitForAStreamOrders) {
  write_on(kA);
  runtime_.synchronize(kA);
  read_on(kB);
  EXPECT_THAT(runtime_.take_races(), IsEmpty());
}

TEST_F(RuntimeTest, TheHostsWaitForAnotherStreamDoesNot) {
  write_on(kA);
  runtime_.synchronize(kC);
  read_on(kB);
  EXPECT_THAT(runtime_.take_races(), SizeIs(1));
}

TEST_F(RuntimeTest, TheHostsWaitForAnEventOrders) {
  write_on(kA);
  runtime_.synchronize(runtime_.record(kA));
  read_on(kB);
  EXPECT_THAT(runtime_.take_races(), IsEmpty());
}

TEST_F(RuntimeTest, TheHostsWaitForTheDeviceOrders) {
  write_on(kA);
  runtime_.synchronize_device(1);
  read_on(kB);
  EXPECT_THAT(runtime_.take_races(), SizeIs(1)) << "device 1 is not device 0";
  runtime_.synchronize_device(0);
  write_on(kC);
  EXPECT_THAT(runtime_.take_races(), IsEmpty());
}

TEST_F(RuntimeTest, TheHostsSuccessfulQuestionOrders) {
  write_on(kA);
  const Event event = runtime_.record(kA);
  while (!runtime_.query(event)) std::this_thread::yield();
  read_on(kB);
  EXPECT_THAT(runtime_.take_races(), IsEmpty());
}

TEST_F(RuntimeTest, TheHostMustHaveWaitedForWhatItTouches) {
  write_on(kA);
  const Access access{Footprint(memory_, 4), false};
  runtime_.host_access("the host", access);
  EXPECT_THAT(runtime_.take_races(), ElementsAre(HasSubstr("the host, reads bytes [0, 4)")));
  runtime_.synchronize(kA);
  runtime_.host_access("the host", access);
  EXPECT_THAT(runtime_.take_races(), IsEmpty());
}

TEST_F(RuntimeTest, ForgottenAccessesNeedNoOrder) {
  write_on(kA);
  VectorClock clock;
  Runtime::join(clock, runtime_.record(kA));
  runtime_.forget_accesses(memory_, clock);
  write_on(kB);
  EXPECT_THAT(runtime_.take_races(), IsEmpty());
  runtime_.remove_block(memory_);
  write_on(kC);
  EXPECT_THAT(runtime_.take_races(), IsEmpty());
}

// ---- Errors

TEST_F(RuntimeTest, AnErrorIsToldByLaterCallsUntilTheDeviceIsReset) {
  bool ran = false;
  Gate gate;
  runtime_.launch(kA, gate.task());
  runtime_.launch(kA, kernel("broken", [] { throw std::runtime_error("bad index"); }));
  runtime_.launch(kA, kernel("after it", [&] { ran = true; }));
  runtime_.throw_error(0);  // does not throw, because the kernel has not run yet
  gate.open();
  try {
    runtime_.synchronize(kA);
    FAIL();
  } catch (const DeviceError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("broken on fake:0/0"), HasSubstr("bad index")));
  }
  EXPECT_FALSE(ran);
  EXPECT_THROW(runtime_.launch(kB, kernel("k")), DeviceError) << "another stream of the device";
  EXPECT_THROW(runtime_.synchronize_device(0), DeviceError);
  EXPECT_THROW(runtime_.synchronize(runtime_.record(kA)), DeviceError);
  runtime_.launch(kC, kernel("of another device"));
  runtime_.synchronize(kC);
  runtime_.drain();

  EXPECT_THAT(runtime_.reset(0), HasSubstr("bad index"));
  EXPECT_EQ(runtime_.reset(0), "");
  runtime_.launch(kA, kernel("again", [&] { ran = true; }));
  runtime_.synchronize(kA);
  EXPECT_TRUE(ran);
}

TEST_F(RuntimeTest, UpkeepGoesOnAfterAnError) {
  runtime_.launch(kA, kernel("broken", [] { throw std::runtime_error("bad"); }));
  runtime_.drain();
  bool ran = false;
  runtime_.launch(kA, {"upkeep", Task::Kind::kUpkeep, {}, [&] { ran = true; }, {}});
  runtime_.drain();
  EXPECT_TRUE(ran);
}

TEST_F(RuntimeTest, AWaitForAFailedStreamIsNotStuck) {
  runtime_.launch(kA, kernel("broken", [] { throw std::runtime_error("bad"); }));
  runtime_.wait(kC, runtime_.record(kA));
  bool ran = false;
  runtime_.launch(kC, kernel("of another device", [&] { ran = true; }));
  runtime_.synchronize(kC);
  EXPECT_TRUE(ran);
}

TEST_F(RuntimeTest, UpkeepRunsAtTheLatestWhenSomeoneLooks) {
  std::atomic<int> ran{0};
  auto upkeep = [&] {
    runtime_.launch(kA, {"upkeep", Task::Kind::kUpkeep, {}, [&] { ++ran; }, {}});
  };
  upkeep();
  while (!runtime_.is_idle(kA)) std::this_thread::yield();
  upkeep();
  while (!runtime_.is_over(runtime_.record(kA))) std::this_thread::yield();
  upkeep();
  while (!runtime_.query(runtime_.record(kA))) std::this_thread::yield();
  upkeep();
  runtime_.wait(kC, runtime_.record(kA));
  runtime_.launch(kC, kernel("k"));
  runtime_.synchronize(kC);
  EXPECT_EQ(ran, 4);
}

// ---- Times and counts

TEST_F(RuntimeTest, KernelsAndCopiesTakeTheTimeAskedForAndUpkeepNone) {
  runtime_.set_durations({milliseconds(3), milliseconds(20), microseconds(0)});
  EXPECT_EQ(runtime_.durations().copy, milliseconds(20));
  runtime_.set_tracing(true);
  runtime_.launch(kA, kernel("k"));
  runtime_.launch(kA, {"longer", Task::Kind::kKernel, {}, nullptr, milliseconds(10)});
  runtime_.launch(kB, {"c", Task::Kind::kCopy, {}, nullptr, {}});
  runtime_.launch(kC, {"u", Task::Kind::kUpkeep, {}, nullptr, {}});
  const std::vector<Span> spans = runtime_.take_spans();
  ASSERT_THAT(spans, SizeIs(3));
  for (const Span& span : spans) {
    const milliseconds least(span.name == "c" ? 20 : span.name == "k" ? 3 : 13);
    EXPECT_GE(span.end - span.begin, least) << span.name;
    EXPECT_EQ(span.kind, span.name == "c" ? Task::Kind::kCopy : Task::Kind::kKernel);
    EXPECT_EQ(span.stream, span.name == "c" ? kB : kA);
  }
  EXPECT_THAT(runtime_.take_spans(), IsEmpty());
}

TEST_F(RuntimeTest, StreamsTakeTheirTimeAtOnce) {
  runtime_.set_durations({milliseconds(60), {}, {}});
  const auto begin = steady_clock::now();
  // Each task waits for all other tasks, so the test would hang if the streams ran one after
  // another.
  std::atomic<int> arrived{0};
  const auto meet = [&] {
    ++arrived;
    while (arrived < 8) std::this_thread::yield();
  };
  for (int i = 0; i < 8; ++i) runtime_.launch({i % 4, i}, kernel("k", meet));
  runtime_.drain();
  EXPECT_GE(steady_clock::now() - begin, milliseconds(60));
}

TEST_F(RuntimeTest, CountsKernelsCopiesAndWaits) {
  const Counters before = runtime_.counters();
  runtime_.launch(kA, kernel("k"));
  runtime_.launch(kA, kernel("k"));
  runtime_.launch(kA, {"c", Task::Kind::kCopy, {}, nullptr, {}});
  runtime_.launch(kA, {"u", Task::Kind::kUpkeep, {}, nullptr, {}});
  runtime_.wait(kB, runtime_.record(kA));
  runtime_.synchronize(kB);
  runtime_.synchronize(kB, Wait::kUpkeep);
  runtime_.drain();
  const Counters since = runtime_.counters() - before;
  EXPECT_EQ(since.kernels, 2);
  EXPECT_EQ(since.copies, 1);
  EXPECT_EQ(since.host_waits, 1);
}

// ---- Waits of the host

void elsewhere(const std::function<void()>& body) { std::thread(body).join(); }

TEST_F(RuntimeTest, OnlyTheTestsThreadMayWaitWithoutAsking) {
  auto imply = [&] { runtime_.synchronize(kA, Wait::kImplied, "item"); };
  elsewhere(imply);
  EXPECT_THAT(runtime_.take_unexpected_waits(), IsEmpty()) << "no test has said that it runs";
  runtime_.set_test_thread(std::this_thread::get_id());
  imply();
  EXPECT_THAT(runtime_.take_unexpected_waits(), IsEmpty());
  elsewhere([&] { runtime_.synchronize(kA); });
  EXPECT_THAT(runtime_.take_unexpected_waits(), IsEmpty()) << "asked for";
  runtime_.launch(kA, kernel("k"));
  elsewhere(imply);
  elsewhere(imply);
  EXPECT_THAT(runtime_.take_unexpected_waits(),
              ElementsAre("a thread that is not the test's waits for fake:0: item (2 times)"));
  EXPECT_THAT(runtime_.take_unexpected_waits(), IsEmpty());
}

TEST_F(RuntimeTest, AWaitIsUnexpectedAlsoWhenItHappensToTakeNoTime) {
  runtime_.launch(kA, kernel("k"));
  runtime_.drain();
  const HostWaitScope scope(runtime_, HostWaits::kForbidden);
  runtime_.synchronize(kA);
  EXPECT_THAT(runtime_.take_unexpected_waits(), SizeIs(1));
}

TEST_F(RuntimeTest, AnUnexpectedWaitIsReportedWithItsPlace) {
  runtime_.set_place([] { return "in layer 7"; });
  runtime_.launch(kA, kernel("k"));
  const HostWaitScope scope(runtime_, HostWaits::kForbidden);
  runtime_.synchronize(kA, Wait::kImplied, "item");
  EXPECT_THAT(runtime_.take_unexpected_waits(),
              ElementsAre("a thread that is not the test's waits for fake:0: item, in layer 7"));
}

TEST_F(RuntimeTest, ScopesForbidAndAllow) {
  runtime_.set_test_thread(std::this_thread::get_id());
  runtime_.launch(kA, kernel("k"));
  {
    const HostWaitScope none(runtime_, HostWaits::kForbidden);
    runtime_.synchronize_device(0);
    EXPECT_THAT(runtime_.take_unexpected_waits(),
                ElementsAre("the test's thread waits for fake:0: device"));
    {
      const HostWaitScope all(runtime_, HostWaits::kAllowed);
      elsewhere([&] { runtime_.synchronize(kA, Wait::kImplied, "item"); });
      EXPECT_THAT(runtime_.take_unexpected_waits(), IsEmpty());
    }
    runtime_.synchronize(kA, Wait::kUpkeep);
    EXPECT_THAT(runtime_.take_unexpected_waits(), IsEmpty());
    runtime_.synchronize(runtime_.record(kA));
    EXPECT_THAT(runtime_.take_unexpected_waits(), SizeIs(1));
  }
  runtime_.synchronize(kA);
  EXPECT_THAT(runtime_.take_unexpected_waits(), IsEmpty());
}

// ---- The end

TEST(Runtime, EndsWithWhatWasEnqueued) {
  std::atomic<int> ran{0};
  {
    Runtime runtime;
    for (int i = 0; i < 50; ++i) {
      runtime.wait({i % 4, i % 3}, runtime.record({(i + 1) % 4, i % 5}));
      runtime.launch({i % 4, i % 3}, kernel("k", [&] { ++ran; }));
    }
  }
  EXPECT_EQ(ran, 50);
}

TEST(Runtime, DropsWhatComesAfterTheEnd) {
  Runtime runtime;
  runtime.launch(kA, kernel("k"));
  runtime.shut_down();
  bool ran = false;
  runtime.launch(kA, kernel("late", [&] { ran = true; }));
  runtime.launch(kB, kernel("late", [&] { ran = true; }));
  runtime.wait(kA, runtime.record(kB));
  runtime.synchronize(kA);
  runtime.synchronize_device(0);
  EXPECT_FALSE(ran);
  EXPECT_TRUE(runtime.is_idle(kB));
  runtime.shut_down();
}

TEST_F(RuntimeTest, WhatIsRecordedRunsInEachReplayOnly) {
  int runs = 0;
  runtime_.begin_recording(kB);
  EXPECT_TRUE(runtime_.is_recording(kB));
  EXPECT_FALSE(runtime_.is_recording(kA));
  runtime_.launch(kB, kernel("count", [&] { ++runs; }));
  runtime_.launch(kA, kernel("not recorded", [&] { runs += 10; }));
  const std::vector<Task> tasks = runtime_.end_recording(kB);
  runtime_.synchronize(kA);
  EXPECT_EQ(runs, 10);
  EXPECT_THAT(tasks, SizeIs(1));
  for (StreamId stream : {kA, kB, kC}) {
    runtime_.replay(stream, tasks);
    runtime_.synchronize(stream);
  }
  EXPECT_EQ(runs, 13);
}

// Each replay runs a copy of the task's closure as it was recorded ("copied": 5 both times), or the
// closure that `renew` makes ("renewed": 1, then 2).
TEST_F(RuntimeTest, AReplayRunsACopyOrARenewedTask) {
  std::vector<int> seen;
  int next = 0;
  runtime_.begin_recording(kB);
  runtime_.launch(kB, kernel("copied", [&, own = 5]() mutable { seen.push_back(own++); }));
  Task renewed = kernel("renewed", [] { FAIL(); });
  renewed.renew = [&] { return [&, mine = ++next] { seen.push_back(mine); }; };
  runtime_.launch(kB, renewed);
  const std::vector<Task> tasks = runtime_.end_recording(kB);
  runtime_.replay(kB, tasks);
  runtime_.replay(kB, tasks);
  runtime_.synchronize(kB);
  EXPECT_THAT(seen, ElementsAre(5, 1, 5, 2));
}

TEST_F(RuntimeTest, RacesAreThoseOfTheReplay) {
  runtime_.begin_recording(kB);
  write_on(kB);
  const std::vector<Task> tasks = runtime_.end_recording(kB);
  write_on(kA);
  runtime_.replay(kA, tasks);
  EXPECT_THAT(runtime_.take_races(), IsEmpty());
  runtime_.replay(kB, tasks);
  EXPECT_THAT(runtime_.take_races(), SizeIs(1));
}

TEST_F(RuntimeTest, ARecordingRefusesWaitsAndEvents) {
  const Event before = runtime_.record(kA);
  write_on(kA);
  const Event after = runtime_.record(kA);
  const std::function<void()> refused[] = {
      [&] { runtime_.record(kB); },          [&] { runtime_.wait(kB, after); },
      [&] { runtime_.is_idle(kB); },         [&] { runtime_.synchronize(kB); },
      [&] { runtime_.begin_recording(kB); },
  };
  for (const std::function<void()>& what : refused) {
    runtime_.begin_recording(kB);
    runtime_.wait(kB, Event());  // allowed: the event was never recorded
    EXPECT_THROW(what(), RecordingError);
    EXPECT_THROW(runtime_.end_recording(kB), RecordingError);
    EXPECT_FALSE(runtime_.is_recording(kB));
    runtime_.synchronize(kB);  // the stream works as before
  }
  EXPECT_THROW(runtime_.begin_recording(kA), RecordingError) << "a default stream";
  EXPECT_THROW(runtime_.end_recording(kB), RecordingError) << "nothing is recorded";
}

// Many threads use streams that wait for each other. All tasks must run without a deadlock, and the
// thread sanitizer must find no race.
TEST(Runtime, ManyThreadsMayUseIt) {
  Runtime runtime;
  runtime.set_durations({{}, {}, microseconds(50)});
  runtime.set_tracing(true);
  char memory[64] = {};
  runtime.add_block(memory, sizeof(memory), "block");
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 100; ++i) {
        const StreamId here{(t + i) % 4, i % 3}, there{(t + i + 1) % 4, t};
        runtime.launch(
            here, {"k", Task::Kind::kKernel, {{Footprint(memory, 8), i % 7 == 0}}, nullptr, {}});
        const Event event = runtime.record(here);
        runtime.wait(there, event);
        if (i % 10 == 0) runtime.synchronize(event);
        if (i % 25 == 0) runtime.synchronize_device(t);
        runtime.query(event);
        runtime.take_races();
        runtime.counters();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(runtime.take_spans(), SizeIs(400));
}

}  // namespace
}  // namespace gpipe::testing::fake
