#include "gpipe/distributed/meet/batch_threads.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <cerrno>
#include <thread>

namespace gpipe::distributed {
namespace {

int policy() { return sched_getscheduler(0); }
int policy_of_new_thread() {
  int policy = -1;
  std::thread([&] { policy = sched_getscheduler(0); }).join();
  return policy;
}

TEST(BatchThreads, ThreadsStartedInItAreAndThisOneIsAsBefore) {
  ASSERT_EQ(policy(), SCHED_OTHER);
  {
    const BatchThreads outer;
    {
      const BatchThreads inner;
      EXPECT_EQ(policy_of_new_thread(), SCHED_BATCH);
    }
    EXPECT_EQ(policy_of_new_thread(), SCHED_BATCH);
  }
  EXPECT_EQ(policy(), SCHED_OTHER);
  EXPECT_EQ(policy_of_new_thread(), SCHED_OTHER);
}

TEST(BatchThreads, AnotherPolicyThatTheProgramHasChosenStays) {
  std::thread([] {
    const sched_param param{};
    ASSERT_EQ(sched_setscheduler(0, SCHED_IDLE, &param), 0);
    {
      const BatchThreads scope;
      EXPECT_EQ(policy_of_new_thread(), SCHED_IDLE);
    }
    EXPECT_EQ(policy(), SCHED_IDLE);
  }).join();
}

TEST(BatchThreads, NiceValuesStay) {
  std::thread([] {
    errno = 0;
    const int before = nice(1);
    ASSERT_EQ(errno, 0);
    { const BatchThreads scope; }
    EXPECT_EQ(nice(0), before);
  }).join();
}

}  // namespace
}  // namespace gpipe::distributed
