#include "gpipe/runtime/run_lock.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "gpipe/runtime/running_code.h"
#include "gpipe/testing/log_capture.h"

namespace gpipe::internal {
namespace {

TEST(RunLock, OneAtATime) {
  RunLock lock;
  int64_t count = 0;  // plain memory: ThreadSanitizer checks the ordering
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 500; ++i) {
        const RunLock::Scope scope(lock);
        ++count;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(count, 4 * 500);
}

TEST(RunLock, ExcludesAllLocksThatHaveAPartOfIt) {
  const auto a = std::make_shared<RunLock::Part>();
  const auto b = std::make_shared<RunLock::Part>();
  RunLock first({a}), second({b}), both({b, a, b}), another;
  EXPECT_TRUE(both.excludes(first));
  EXPECT_TRUE(second.excludes(both));
  EXPECT_FALSE(first.excludes(second));
  EXPECT_FALSE(both.excludes(another));
  int64_t of_first = 0;  // plain memory: ThreadSanitizer checks the ordering
  int64_t of_second = 0;
  std::vector<std::thread> threads;
  for (RunLock* const lock : {&first, &second, &both, &both}) {
    threads.emplace_back([&, lock] {
      for (int i = 0; i < 500; ++i) {
        const RunLock::Scope scope(*lock);
        if (lock != &second) ++of_first;
        if (lock != &first) ++of_second;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(of_first, 3 * 500);
  EXPECT_EQ(of_second, 3 * 500);
}

// A lock that another thread holds for long may be held for a good reason, so the wait goes on. If
// a layer has not returned all the while, one warning names it.
TEST(RunLock, ALongWaitIsToldWhereCodeDoesNotReturn) {
  const std::chrono::milliseconds patience = RunLock::Part::patience;
  RunLock::Part::patience = std::chrono::milliseconds(20);
  for (const bool is_stuck : {false, true}) {
    RunLock lock;
    RunningCode code({"stage 0", "layer 3 ('relu')"});
    const testing::LogCapture log;
    std::optional<RunLock::Scope> scope(lock);
    std::optional<RunningCode::Action> action(code);
    bool has_waited = false;
    std::thread thread([&] {
      const RunLock::Scope other(lock);
      has_waited = true;
    });
    for (int k = 0; k < 2000 && (is_stuck ? log.warnings().empty() : k < 100); ++k) {
      if (!is_stuck || k == 0) code.enter(0);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    action.reset();
    scope.reset();
    thread.join();
    EXPECT_TRUE(has_waited);
    ASSERT_EQ(log.warnings().size(), is_stuck ? 1U : 0U);
    if (is_stuck) {
      EXPECT_NE(log.warnings()[0].find("in which layer 3 ('relu') has not returned for 0.018 s"),
                std::string::npos)
          << log.warnings()[0];
    }
  }
  RunLock::Part::patience = patience;
}

TEST(RunLock, IsReleasedByAnException) {
  RunLock lock;
  try {
    const RunLock::Scope scope(lock);
    throw std::runtime_error("in the run");
  } catch (const std::runtime_error&) {
  }
  const RunLock::Scope scope(lock);
}

TEST(RunLock, ThrowsInAThreadThatHoldsItInsteadOfWaiting) {
  RunLock lock;
  for (int k = 0; k < 2; ++k) {
    const RunLock::Scope scope(lock);
    try {
      const RunLock::Scope again(lock);
      ADD_FAILURE();
    } catch (const std::logic_error& error) {
      EXPECT_NE(std::string(error.what()).find("would wait for itself"), std::string::npos);
    }
  }
}

// A child is forked while another thread of the parent holds the lock. In the child the lock
// throws, because that thread does not exist there.
TEST(RunLock, ThrowsInAForkedChildInsteadOfWaiting) {
#if defined(__SANITIZE_THREAD__)
  return;  // ThreadSanitizer does not support a child forked from a threaded process
#endif
  auto lock = std::make_unique<RunLock>();
  std::atomic<bool> held{false};
  std::atomic<bool> end{false};
  std::thread holder([&] {
    const RunLock::Scope scope(*lock);
    held = true;
    while (!end) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  });
  while (!held) std::this_thread::yield();
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(20);
    int code = 1;
    try {
      const RunLock::Scope scope(*lock);
    } catch (const std::logic_error& error) {
      code = std::string(error.what()).find("fork()") == std::string::npos ? 2 : 0;
    }
    lock.reset();
    RunLock fresh;
    { const RunLock::Scope scope(fresh); }
    _exit(code);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0) << "1: no error, 2: another one";
  end = true;
  holder.join();
}

// The destructor of a static object may use a pipeline, but must not wait for a thread that exit()
// blocks. So the lock throws.
TEST(RunLockDeathTest, InExitItThrowsInsteadOfWaitingForAThreadThatIsHeldUp) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        alarm(20);
        static RunLock lock;
        static RunLock other;
        static std::atomic<bool> held{false};
        std::thread([] {
          const RunLock::Scope scope(lock);
          held = true;
          for (;;) stay_if_exiting();
        }).detach();
        while (!held) std::this_thread::yield();
        int code = shut_exit_gate(std::chrono::seconds(10)) ? 1 : 2;
        { const RunLock::Scope scope(other); }
        try {
          const RunLock::Scope scope(lock);
        } catch (const std::logic_error& error) {
          if (std::string(error.what()).find("exit()") != std::string::npos) --code;
        }
        _exit(code);
      },
      ::testing::ExitedWithCode(0), "");
}

// Objects that a run makes at first use, e.g. a static object of LibTorch, must be destroyed by
// exit() after the gate is shut.
TEST(RunLockDeathTest, ExitShutsTheGateBeforeItDestroysWhatARunMade) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  struct MadeInARun {
    ~MadeInARun() {
      if (!exiting()) _exit(1);
    }
  };
  EXPECT_EXIT(
      {
        {
          RunLock lock;
          const RunLock::Scope scope(lock);
          static MadeInARun made_in_a_run;
        }
        std::exit(0);
      },
      ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace gpipe::internal
