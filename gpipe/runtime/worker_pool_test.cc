#include "gpipe/runtime/worker_pool.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "gpipe/runtime/exit_gate.h"

namespace gpipe::internal {
namespace {

TEST(WorkerPool, RunsTheBodyOnceOnEveryWorker) {
  WorkerPool pool(4);
  std::vector<std::atomic<int>> calls(4);
  for (int run = 0; run < 100; ++run) pool.run([&](int64_t worker) { ++calls[worker]; });
  for (const auto& count : calls) EXPECT_EQ(count, 100);
}

TEST(WorkerPool, KeepsItsThreads) {
  WorkerPool pool(3);
  std::vector<std::thread::id> first(3);
  pool.run([&](int64_t worker) { first[worker] = std::this_thread::get_id(); });
  EXPECT_EQ(std::set<std::thread::id>(first.begin(), first.end()).size(), 3u);
  for (int run = 0; run < 20; ++run) {
    std::vector<std::thread::id> now(3);
    pool.run([&](int64_t worker) { now[worker] = std::this_thread::get_id(); });
    EXPECT_EQ(now, first);
  }
}

TEST(WorkerPool, InitRunsOnEachWorkerBeforeTheConstructorReturns) {
  std::vector<std::thread::id> initialised(3);
  WorkerPool pool(3, [&](int64_t worker) { initialised[worker] = std::this_thread::get_id(); });
  std::vector<std::thread::id> ran(3);
  pool.run([&](int64_t worker) { ran[worker] = std::this_thread::get_id(); });
  EXPECT_EQ(initialised, ran);
}

TEST(WorkerPool, SingleInlineWorkerIsTheCaller) {
  WorkerPool pool(1, nullptr, /*inline_single=*/true);
  EXPECT_TRUE(pool.is_inline());
  std::thread::id id;
  pool.run([&](int64_t worker) {
    EXPECT_EQ(worker, 0);
    id = std::this_thread::get_id();
  });
  EXPECT_EQ(id, std::this_thread::get_id());
  WorkerPool threaded(1);
  EXPECT_FALSE(threaded.is_inline());
  threaded.run([&](int64_t) { id = std::this_thread::get_id(); });
  EXPECT_NE(id, std::this_thread::get_id());
}

TEST(WorkerPool, WhatBodiesWroteIsVisible) {
  WorkerPool pool(4);
  int64_t sum[4] = {0, 0, 0, 0};  // plain memory: ThreadSanitizer checks the ordering
  for (int run = 0; run < 50; ++run) {
    pool.run([&](int64_t worker) { sum[worker] += worker; });
    EXPECT_EQ(sum[3], 3 * (run + 1));
  }
}

TEST(WorkerPool, NoneAndNegative) {
  WorkerPool none(0);
  none.run([](int64_t) { FAIL(); });
  EXPECT_THROW(WorkerPool(-1), std::invalid_argument);
}

TEST(WorkerPool, WhatInitThrowsReachesTheMakerOfThePool) {
  std::atomic<int> threads{0};
  for (int64_t failing = 0; failing < 3; ++failing) {
    EXPECT_THROW(WorkerPool(3,
                            [&](int64_t worker) {
                              ++threads;
                              if (worker == failing) throw std::out_of_range("in init");
                            }),
                 std::out_of_range);
    EXPECT_EQ(threads, 3 * (failing + 1)) << "not all threads were joined";
  }
  EXPECT_THROW(WorkerPool(2,
                          [](int64_t) {
                            throw std::system_error(std::make_error_code(std::errc::no_such_device),
                                                    "in init");
                          }),
               std::system_error);
  WorkerPool(3).run([&](int64_t) { ++threads; });
  EXPECT_EQ(threads, 12);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

int64_t pages_of_this_process() {
  std::ifstream file("/proc/self/statm");
  int64_t pages = 0;
  file >> pages;
  return pages;
}

// How many threads this process has.
int64_t threads_of_this_process() {
  std::ifstream file("/proc/self/status");
  std::string word;
  while (file >> word && word != "Threads:") continue;
  int64_t threads = 0;
  file >> threads;
  return threads;
}

// This function runs in a process of its own, because it limits the address space so that some
// stacks fit and others do not. Sanitizers need more address space than any limit leaves.
[[noreturn]] void run_out_of_threads() {
  alarm(50);
  constexpr int64_t kWorkers = 1000;
  const rlim_t room = pages_of_this_process() * sysconf(_SC_PAGESIZE) + (rlim_t{256} << 20);
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) != 0) _exit(2);
  const rlimit former = limit;
  limit.rlim_cur = room;
  if (setrlimit(RLIMIT_AS, &limit) != 0) _exit(3);
  std::string message;
  std::atomic<int64_t> inits{0};
  for (int round = 0; round < 3; ++round) {
    try {
      WorkerPool pool(kWorkers, [&](int64_t) { ++inits; });
      _exit(4);
    } catch (const std::system_error& error) {
      message = error.what();
    }
    if (threads_of_this_process() != 1) _exit(5);
  }
  if (message.find("of the 1000 worker threads") == std::string::npos) _exit(6);
  if (message.find("could not be started") == std::string::npos) _exit(7);
  if (inits == 0) _exit(8);
  if (setrlimit(RLIMIT_AS, &former) != 0) _exit(9);
  std::atomic<int> calls{0};
  WorkerPool pool(20);
  pool.run([&](int64_t) { ++calls; });
  _exit(calls == 20 ? 0 : 10);
}

TEST(WorkerPoolDeathTest, AThreadThatCannotBeStartedIsAnErrorAndNoThreadIsLeft) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(run_out_of_threads(), ::testing::ExitedWithCode(0), "");
}

#endif

// The pool's owner, e.g. a static object, is destroyed by exit() while the pool's threads are in a
// run: once exit() is called by another thread, once by one of the pool's own threads. (In the
// first case, destroying it in use before exit() shuts the gate is a mistake.)
TEST(WorkerPoolDeathTest, IsDestroyedByExitInTheMiddleOfARun) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a static object is destroyed while another thread uses it: the race is the test";
#endif
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  // A pool with a single worker is tested, too, because one unfinished worker is enough for the
  // destructor not to wait.
  for (const int workers : {1, 3}) {
    for (const bool from_worker : {false, true}) {
      for (const bool before_the_gate : {false, true}) {
        if (!from_worker && before_the_gate) continue;
        EXPECT_EXIT(
            {
              alarm(50);
              if (before_the_gate) shut_at_exit();
              static std::unique_ptr<WorkerPool> pool = std::make_unique<WorkerPool>(workers);
              if (!before_the_gate) shut_at_exit();
              static std::atomic<int> in_body{0};
              auto body = [=](int64_t worker) {
                ++in_body;
                if (from_worker && worker == workers / 2) {
                  while (in_body < workers) std::this_thread::yield();
                  std::exit(0);
                }
                // This thread is not blocked if the pool is destroyed first, because the gate is
                // not shut yet.
                while (!exiting()) std::this_thread::yield();
                stay_if_exiting();
              };
              std::thread([body] { pool->run(body); }).detach();
              while (in_body < workers) std::this_thread::yield();
              if (from_worker) {
                for (;;) pause();
              }
              std::exit(0);
            },
            ::testing::ExitedWithCode(0), "");
      }
    }
  }
}

TEST(WorkerPoolDeathTest, WorksForTheDestructorsThatExitRuns) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        alarm(50);
        struct Last {
          std::unique_ptr<WorkerPool> pool;
          ~Last() {
            std::atomic<int> calls{0};
            pool->run([&](int64_t) { ++calls; });
            WorkerPool(2).run([&](int64_t) { ++calls; });
            if (calls != 5) _exit(1);
          }
        };
        static Last last;
        last.pool = std::make_unique<WorkerPool>(3);
        shut_at_exit();
        std::exit(0);
      },
      ::testing::ExitedWithCode(0), "");
}

// Pools may live only for a moment, or only for one run. Each body is called once for each worker.
TEST(WorkerPool, MadeAndDestroyedInQuickSuccession) {
  std::atomic<int> calls{0};
  for (int round = 0; round < 300; ++round) {
    WorkerPool pool(1 + round % 5);
    if (round % 3 != 0) pool.run([&](int64_t) { ++calls; });
  }
  int expected = 0;
  for (int round = 0; round < 300; ++round) expected += round % 3 != 0 ? 1 + round % 5 : 0;
  EXPECT_EQ(calls, expected);
}

TEST(WorkerPool, RefusesWorkInAForkedChildAndDestroysThere) {
#if defined(__SANITIZE_THREAD__)
  // ThreadSanitizer does not support a child forked from a threaded process, so only the other
  // builds check this.
  return;
#endif
  auto pool = std::make_unique<WorkerPool>(2);
  pool->run([](int64_t) {});
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    int code = 1;
    try {
      pool->run([](int64_t) {});
    } catch (const std::logic_error&) {
      code = 0;
    }
    pool.reset();
    _exit(code);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  std::atomic<int> calls{0};
  pool->run([&](int64_t) { ++calls; });
  EXPECT_EQ(calls, 2);
}

}  // namespace
}  // namespace gpipe::internal
