#include "gpipe/internal/threads/cpu_threads.h"

#include <ATen/Parallel.h>
#include <ATen/ops/ones.h>
#include <c10/core/Device.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <thread>

#include "gpipe/placement.h"

namespace gpipe::internal {
namespace {

// Runs `call` on a new thread, which has no number of intra-op threads of its own yet.
template <typename Call>
void on_new_thread(const Call& call) {
  std::thread(call).join();
}

int64_t number_of_new_thread() {
  int64_t number = 0;
  on_new_thread([&] { number = at::get_num_threads(); });
  return number;
}

// Returns this thread's number of intra-op threads after an operator that is large enough to be
// parallel.
int64_t number_at_operator() {
  (void)at::ones({1 << 20}).exp();
  return at::get_num_threads();
}

TEST(CpuThreadsTest, WhatIsWantedIsTakenAsItIs) {
  EXPECT_EQ(share_of_cpu_threads(3, 1), 3);
  EXPECT_EQ(share_of_cpu_threads(1, 100), 1);
  EXPECT_EQ(share_of_cpu_threads(1000, 100), 1000);
}

TEST(CpuThreadsTest, AQuotaMakesLibTorchsOwnNumberSmaller) {
  EXPECT_EQ(default_cpu_threads(8, 8, /*is_chosen=*/false, 2.5), 2);
  EXPECT_EQ(default_cpu_threads(8, 8, /*is_chosen=*/false, 0.5), 1);
  EXPECT_EQ(default_cpu_threads(8, 8, /*is_chosen=*/false, 16.0), 8);
  EXPECT_EQ(default_cpu_threads(8, 8, /*is_chosen=*/false, std::nullopt), 8);
  // A number that the user has chosen stays.
  EXPECT_EQ(default_cpu_threads(8, 8, /*is_chosen=*/true, 2.0), 8);
  EXPECT_EQ(default_cpu_threads(6, 8, /*is_chosen=*/false, 2.0), 6);
}

TEST(CpuThreadsTest, WorkersWithAStageOnTheCpuShareThem) {
  const c10::Device cpu(c10::kCPU), other(c10::kMeta);
  const Placement v_shape = Placement::v_shape(2);
  EXPECT_EQ(workers_on_cpu(v_shape, {0, 1}, {cpu, cpu, cpu, cpu}), 2);
  EXPECT_EQ(workers_on_cpu(v_shape, {0, 1}, {other, cpu, cpu, other}), 1);
  EXPECT_EQ(workers_on_cpu(v_shape, {0, 1}, {cpu, other, other, other}), 1);
  EXPECT_EQ(workers_on_cpu(v_shape, {0, 1}, {other, other, other, other}), 0);
  EXPECT_EQ(workers_on_cpu(v_shape, {1}, {cpu, cpu, cpu, cpu}), 1);
  EXPECT_EQ(workers_on_cpu(v_shape, {1}, {cpu, other, other, cpu}), 0);
}

TEST(CpuThreadsTest, OtherwiseStagesShareThisThreadsNumberEqually) {
  const DefaultThreadsScope scope;
  on_new_thread([] {
    set_threads_of_this_thread(8);
    EXPECT_EQ(share_of_cpu_threads(0, 1), 8);
    EXPECT_EQ(share_of_cpu_threads(-1, 2), 4);
    EXPECT_EQ(share_of_cpu_threads(0, 3), 2) << "rounded down";
    EXPECT_EQ(share_of_cpu_threads(0, 8), 1);
    EXPECT_EQ(share_of_cpu_threads(0, 9), 1) << "at least one";
    EXPECT_EQ(share_of_cpu_threads(0, 0), 8) << "no stage is on the CPU";
  });
}

TEST(CpuThreadsTest, ANumberIsOfTheCallingThreadOnly) {
  const DefaultThreadsScope scope;
  const int64_t of_this_thread = at::get_num_threads();
  on_new_thread([] {
    set_threads_of_this_thread(3);
    EXPECT_EQ(at::get_num_threads(), 3);
    EXPECT_EQ(number_at_operator(), 3);
    set_threads_of_this_thread(1);
    EXPECT_EQ(number_at_operator(), 1);
  });
  EXPECT_EQ(number_at_operator(), of_this_thread);
}

// A thread's own number stays, although the other thread's number is by then the one with which
// LibTorch would start at the first operator.
TEST(CpuThreadsTest, ANumberStaysWhenAnotherThreadSetsItsOwnBeforeTheFirstOperator) {
  const DefaultThreadsScope scope;
  on_new_thread([] {
    set_threads_of_this_thread(3);
    on_new_thread([] { set_threads_of_this_thread(5); });
    EXPECT_EQ(number_at_operator(), 3);
  });
}

TEST(DefaultThreadsScopeTest, ThreadsStartedAfterItBeginWithThisThreadsNumber) {
  const DefaultThreadsScope of_this_test;
  on_new_thread([] {
    set_threads_of_this_thread(6);
    {
      const DefaultThreadsScope scope;
      on_new_thread([] { set_threads_of_this_thread(3); });
      on_new_thread([] { set_threads_of_this_thread(2); });
    }
    EXPECT_EQ(number_of_new_thread(), 6);
    EXPECT_EQ(at::get_num_threads(), 6) << "the scope does not change its own thread's number";
  });
}

TEST(DefaultThreadsScopeTest, ThreadsStartedWithinItBeginWithThisThreadsNumberToo) {
  const DefaultThreadsScope of_this_test;
  on_new_thread([] {
    set_threads_of_this_thread(6);
    on_new_thread([] { set_threads_of_this_thread(3); });
    const DefaultThreadsScope scope;
    EXPECT_EQ(number_of_new_thread(), 6);
    EXPECT_EQ(at::get_num_threads(), 6);
  });
}

}  // namespace
}  // namespace gpipe::internal
