#include "gpipe/runtime/exit_gate.h"

#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

namespace gpipe::internal {
namespace {

using std::chrono::milliseconds;

// Each test that shuts the gate runs in a process of its own.
class ExitGateDeathTest : public ::testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

constexpr milliseconds kLong{60'000};
constexpr milliseconds kShort{50};

std::atomic<bool> inside{false};

// Starts a thread that nobody joins, and returns once that thread is at work.
template <typename Work>
void start(Work work) {
  std::thread([work] {
    const WorkScope scope;
    inside = true;
    work();
  }).detach();
  while (!inside) std::this_thread::yield();
}

[[noreturn]] void hang() {
  for (;;) pause();
}

// Ends this process with code 0 if `good`, and with 1 otherwise.
[[noreturn]] void end_with(bool good) { _exit(good ? 0 : 1); }

TEST_F(ExitGateDeathTest, WaitsForAThreadAtWork) {
  static std::atomic<bool> over{false};
  EXPECT_EXIT(
      {
        start([] {
          while (!exiting()) std::this_thread::yield();
          std::this_thread::sleep_for(kShort);
          over = true;
        });
        const bool left = shut_exit_gate(kLong);
        end_with(left && over);
      },
      ::testing::ExitedWithCode(0), "");
}

TEST_F(ExitGateDeathTest, WaitsNoLongerThanItsPatience) {
  EXPECT_EXIT(
      {
        start(hang);
        end_with(!shut_exit_gate(kShort));
      },
      ::testing::ExitedWithCode(0), "");
}

TEST_F(ExitGateDeathTest, DoesNotWaitForAThreadThatWaitsForTheCaller) {
  EXPECT_EXIT(
      {
        start(hang);
        set_exit_preparation([] { return true; });
        end_with(shut_exit_gate(kLong));
      },
      ::testing::ExitedWithCode(0), "");
}

TEST_F(ExitGateDeathTest, WaitsForOthersThanTheThreadThatWaitsForTheCaller) {
  EXPECT_EXIT(
      {
        start(hang);
        inside = false;
        start(hang);
        set_exit_preparation([] { return true; });
        end_with(!shut_exit_gate(kShort));
      },
      ::testing::ExitedWithCode(0), "");
}

TEST_F(ExitGateDeathTest, AWaitOutsideWorkMakesUpForNobodysWork) {
  EXPECT_EXIT(
      {
        { const WaitScope without_effect; }
        start(hang);
        end_with(!shut_exit_gate(kShort));
      },
      ::testing::ExitedWithCode(0), "");
}

TEST_F(ExitGateDeathTest, DoesNotWaitForAThreadThatWaits) {
  EXPECT_EXIT(
      {
        start([] {
          const WorkScope nested;
          const WaitScope wait;
          hang();
        });
        end_with(shut_exit_gate(kLong));
      },
      ::testing::ExitedWithCode(0), "");
}

TEST_F(ExitGateDeathTest, AThreadThatWasWaitingDoesNotComeBack) {
  static std::atomic<bool> waiting{false};
  static std::atomic<bool> back{false};
  EXPECT_EXIT(
      {
        start([] {
          {
            const WaitScope wait;
            waiting = true;
            while (!exiting()) std::this_thread::yield();
          }
          back = true;
        });
        while (!waiting) std::this_thread::yield();
        const bool left = shut_exit_gate(kLong);
        std::this_thread::sleep_for(kShort);
        end_with(left && !back);
      },
      ::testing::ExitedWithCode(0), "");
}

TEST_F(ExitGateDeathTest, NobodyComesInAfterwards) {
  static std::atomic<bool> in{false};
  EXPECT_EXIT(
      {
        const bool left = shut_exit_gate(kLong) && shut_exit_gate(kLong);
        std::thread([] {
          const WorkScope scope;
          in = true;
        }).detach();
        std::this_thread::sleep_for(kShort);
        end_with(left && !in);
      },
      ::testing::ExitedWithCode(0), "");
}

TEST_F(ExitGateDeathTest, DoesNotWaitForAThreadThatComesTooLate) {
  EXPECT_EXIT(
      {
        start([] {
          while (!exiting()) std::this_thread::yield();
          std::thread([] { const WorkScope too_late; }).detach();
          std::this_thread::sleep_for(kShort);
        });
        end_with(shut_exit_gate(kLong));
      },
      ::testing::ExitedWithCode(0), "");
}

TEST_F(ExitGateDeathTest, AThreadAtWorkStaysAtTheNextGoodPlace) {
  static std::atomic<bool> past{false};
  EXPECT_EXIT(
      {
        start([] {
          for (;;) {
            stay_if_exiting();
            if (exiting()) past = true;
          }
        });
        const bool left = shut_exit_gate(kLong);
        // The thread may have set `past` once after the gate was shut. After that it must stay in
        // stay_if_exiting().
        past = false;
        std::this_thread::sleep_for(kShort);
        end_with(left && !past);
      },
      ::testing::ExitedWithCode(0), "");
}

TEST_F(ExitGateDeathTest, DoesNotWaitForItselfAndLetsItselfPass) {
  EXPECT_EXIT(
      {
        const WorkScope scope;
        const WorkScope nested;
        const bool left = shut_exit_gate(kLong);
        stay_if_exiting();
        { const WaitScope wait; }
        const WorkScope again;
        end_with(left && on_exiting_thread());
      },
      ::testing::ExitedWithCode(0), "");
}

TEST_F(ExitGateDeathTest, LetsPassAThreadThatWorksForTheExitingOne) {
  EXPECT_EXIT(
      {
        (void)shut_exit_gate(kLong);
        std::thread([] {
          const WorkScope scope(/*for_exit=*/true);
          stay_if_exiting();
        }).join();
        end_with(true);
      },
      ::testing::ExitedWithCode(0), "");
}

TEST_F(ExitGateDeathTest, LetsNobodyPassOnceThatWorkIsOver) {
  static std::atomic<bool> helped{false};
  static std::atomic<bool> in{false};
  EXPECT_EXIT(
      {
        (void)shut_exit_gate(kLong);
        std::thread([] {
          { const WorkScope scope(/*for_exit=*/true); }
          helped = true;
          const WorkScope for_itself;
          in = true;
        }).detach();
        while (!helped) std::this_thread::yield();
        std::this_thread::sleep_for(kShort);
        end_with(!in);
      },
      ::testing::ExitedWithCode(0), "");
}

// If exit() runs in the parent, the gate of a child that is forked later is open.
TEST_F(ExitGateDeathTest, IsOpenInAForkedChild) {
  EXPECT_EXIT(
      {
        std::thread([] { (void)shut_exit_gate(kLong); }).join();
        const pid_t child = fork();
        if (child == 0) {
          alarm(20);
          const WorkScope scope;
          end_with(!exiting());
        }
        int status = 0;
        end_with(waitpid(child, &status, 0) == child && WIFEXITED(status) &&
                 WEXITSTATUS(status) == 0);
      },
      ::testing::ExitedWithCode(0), "");
}

// Objects that are made late, after many runs, are destroyed after the gate is shut, too, if later
// runs have shut_at_exit() called again.
TEST_F(ExitGateDeathTest, ExitShutsItBeforeItDestroysWhatWasMadeLate) {
  struct MadeLate {
    ~MadeLate() {
      if (!exiting()) _exit(1);
    }
  };
  EXPECT_EXIT(
      {
        for (int i = 0; i < 1000; ++i) shut_at_exit();
        static MadeLate made_late;
        for (int i = 0; i < 1000; ++i) shut_at_exit();
        std::exit(0);
      },
      ::testing::ExitedWithCode(0), "");
}

TEST_F(ExitGateDeathTest, ExitShutsIt) {
  static std::atomic<bool> over{false};
  struct Late {
    ~Late() {
      if (armed && !(exiting() && over)) _exit(1);
    }
    bool armed = false;
  };
  static Late late;
  EXPECT_EXIT(
      {
        late.armed = true;
        for (int i = 0; i < 1000; ++i) shut_at_exit();
        start([] {
          while (!exiting()) std::this_thread::yield();
          std::this_thread::sleep_for(kShort);
          over = true;
        });
        std::exit(0);
      },
      ::testing::ExitedWithCode(0), "");
}

#if defined(__GLIBC__) && __GLIBC_PREREQ(2, 33)

// Every run of every pipeline calls shut_at_exit(), so a call must take no memory.
TEST_F(ExitGateDeathTest, ToAskForItAgainAndAgainTakesNoMemory) {
  EXPECT_EXIT(
      {
        const size_t before = mallinfo2().uordblks;
        for (int i = 0; i < 100'000; ++i) shut_at_exit();
        const size_t after = mallinfo2().uordblks;
        end_with(after < before + 100'000);
      },
      ::testing::ExitedWithCode(0), "");
}

#endif

TEST(ExitGate, ScopesCostNothingWhereNobodyExits) {
  for (int i = 0; i < 3; ++i) {
    { const WaitScope without_effect; }
    const WorkScope scope;
    const WorkScope nested;
    const WaitScope wait;
    stay_if_exiting();
  }
  EXPECT_FALSE(exiting());
  EXPECT_FALSE(on_exiting_thread());
}

// Threads that were at work in the parent do not count in a forked child.
TEST(ExitGate, AForkedChildWaitsForNobody) {
#if defined(__SANITIZE_THREAD__)
  return;  // ThreadSanitizer does not support a child forked from a threaded process
#endif
  std::mutex mutex;
  std::condition_variable changed;
  bool end = false;
  std::atomic<bool> at_work{false};
  std::thread worker([&] {
    const WorkScope scope;
    at_work = true;
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait(lock, [&] { return end; });
  });
  while (!at_work) std::this_thread::yield();
  for (const bool from_work : {false, true}) {
    pid_t child = -1;
    if (from_work) {
      const WorkScope scope;
      child = fork();
      if (child == 0) end_with(shut_exit_gate(kShort));
    } else {
      child = fork();
      if (child == 0) end_with(shut_exit_gate(kShort));
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "from work: " << from_work;
  }
  {
    std::lock_guard<std::mutex> lock(mutex);
    end = true;
  }
  changed.notify_all();
  worker.join();
}

// A child that was forked in the middle of work is at work until that work ends, and later work
// counts, too.
TEST(ExitGate, AForkedChildIsAtWorkWhereItsThreadIs) {
#if defined(__SANITIZE_THREAD__)
  return;  // ThreadSanitizer does not support a child forked from a threaded process
#endif
  std::optional<WorkScope> scope(std::in_place);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    scope.reset();
    start(hang);
    end_with(!shut_exit_gate(kShort));
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

}  // namespace
}  // namespace gpipe::internal
