#include "gpipe/runtime/worker_pool.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

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
  pool.run([&](int64_t) { id = std::this_thread::get_id(); });
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

TEST(WorkerPool, RefusesWorkInAForkedChildAndDestroysThere) {
#if defined(__SANITIZE_THREAD__)
  // A child forked off a threaded process is what ThreadSanitizer does not support; the other runs
  // check it.
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
