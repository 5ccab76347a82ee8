#include "gpipe/internal/threads/openmp_team.h"

#include <ATen/Parallel.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <thread>

#include "gpipe/internal/threads/cpu_threads.h"

namespace gpipe::internal {
namespace {

int64_t threads_of_process() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return std::distance(begin(tasks), end(tasks));
}

// Waits until the process has only so many threads, because an ended thread is listed for a moment
// longer.
bool comes_down_to(int64_t threads) {
  for (int i = 0; i < 1000 && threads_of_process() > threads; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return threads_of_process() == threads;
}

double parallel_operator() { return at::ones({1 << 20}).exp().sum().item<double>(); }

TEST(OpenMpTeamTest, IsGoneAndComesBackWithTheNextOperator) {
  const DefaultThreadsScope scope;
  std::thread([] {
    set_threads_of_this_thread(3);
    const int64_t alone = threads_of_process();
    const double sum = parallel_operator();
    ASSERT_EQ(threads_of_process(), alone + 2);
    release_openmp_team();
    EXPECT_TRUE(comes_down_to(alone)) << threads_of_process() << " instead of " << alone;
    EXPECT_EQ(parallel_operator(), sum);
    EXPECT_EQ(threads_of_process(), alone + 2);
    release_openmp_team();
    release_openmp_team();  // now there is no team to release
    EXPECT_EQ(parallel_operator(), sum);
  }).join();
}

TEST(OpenMpTeamTest, IsOnlyTheCallingThreads) {
  const DefaultThreadsScope scope;
  std::thread([] {
    set_threads_of_this_thread(3);
    (void)parallel_operator();
    const int64_t before = threads_of_process();
    std::thread([] { release_openmp_team(); }).join();
    EXPECT_TRUE(comes_down_to(before));
  }).join();
}

TEST(OpenMpTeamTest, WithinAParallelOperatorNothingHappens) {
  at::parallel_for(0, 4, 1, [](int64_t, int64_t) { release_openmp_team(); });
  EXPECT_GT(parallel_operator(), 0);
}

// A forked child has a copy of the parent's team, but none of its threads. So ending the team would
// never return, and the release does nothing.
TEST(OpenMpTeamTest, AForkedChildLeavesTheParentsTeamAlone) {
  (void)parallel_operator();
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    release_openmp_team();
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

}  // namespace
}  // namespace gpipe::internal
