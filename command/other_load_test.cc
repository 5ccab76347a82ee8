#include "command/other_load.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <set>
#include <string>
#include <thread>

namespace gpipe::command {
namespace {

constexpr char kStat[] =
    "cpu  1000 0 0 1000 0 0 0 0 0 0\n"
    "cpu0 100 10 20 300 40 1 2 3 50 5\n"
    "cpu1 200 0 0 700 0 0 0 0 0 0\n"
    "cpu10 7 0 0 0 0 0 0 0 0 0\n"
    "intr 12 13\n";

TEST(CoreTimes, AreOfTheCoresAskedFor) {
  const std::optional<CoreTimes> first = core_times(kStat, {0});
  ASSERT_TRUE(first);
  EXPECT_EQ(first->busy, 136);
  EXPECT_EQ(first->idle, 340);
  const std::optional<CoreTimes> two = core_times(kStat, {1, 10});
  ASSERT_TRUE(two);
  EXPECT_EQ(two->busy, 207);
  EXPECT_EQ(two->idle, 700);
  EXPECT_FALSE(core_times(kStat, {0, 2})) << "there is no core 2";
  EXPECT_FALSE(core_times(kStat, {}));
  EXPECT_FALSE(core_times("", {0}));
}

TEST(LoadShares, AreWhatIsNotOurs) {
  const std::optional<LoadShares> shares = load_shares({100, 50}, {190, 60}, 0.6);
  ASSERT_TRUE(shares);
  EXPECT_NEAR(shares->others, 0.3, 1e-9);
  EXPECT_NEAR(shares->idle, 0.1, 1e-9);
  // This process's own share may come out larger than the busy share, because the kernel's clock is
  // coarser than the process's. Then the share of others is 0, and not negative.
  EXPECT_EQ(load_shares({100, 50}, {190, 60}, 0.95)->others, 0);
  EXPECT_FALSE(load_shares({0, 0}, {0, 0}, 0.6)) << "nothing was counted";
}

TEST(LoadShares, DisturbWhereThereIsNoRoomBesideOurs) {
  EXPECT_TRUE(disturbs({0.5, 0}));
  EXPECT_TRUE(disturbs({0.12, 0.05}));
  EXPECT_FALSE(disturbs({0.05, 0}));
  EXPECT_FALSE(disturbs({0.2, 0.7})) << "of 64 cores, say";
}

// OtherLoad must see a child process that computes on the only core that the test may use.
TEST(OtherLoad, SeesAnotherProcessOnItsCores) {
  cpu_set_t all;
  CPU_ZERO(&all);
  ASSERT_EQ(sched_getaffinity(0, sizeof all, &all), 0);
  cpu_set_t one_core;
  CPU_ZERO(&one_core);
  for (int core = 0; core < CPU_SETSIZE && CPU_COUNT(&one_core) == 0; ++core) {
    if (CPU_ISSET(core, &all)) CPU_SET(core, &one_core);
  }
  ASSERT_EQ(sched_setaffinity(0, sizeof one_core, &one_core), 0);
  const pid_t child = fork();
  if (child == 0) {
    while (true) {
      std::atomic_signal_fence(std::memory_order_seq_cst);
    }
  }
  const OtherLoad load;
  // This process computes, too. Its own work does not count as other load.
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(1);
  while (std::chrono::steady_clock::now() < end) {
    std::atomic_signal_fence(std::memory_order_seq_cst);
  }
  const std::optional<LoadShares> shares = load.shares();
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  sched_setaffinity(0, sizeof all, &all);
  if (!shares) GTEST_SKIP() << "/proc/stat counts nothing here";
  EXPECT_GT(shares->others, 0.2);
  EXPECT_TRUE(disturbs(*shares));
}

}  // namespace
}  // namespace gpipe::command
