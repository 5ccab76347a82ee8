#include "command/usable_cores.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <thread>

namespace gpipe::command {
namespace {

TEST(UsableCoresTest, AreThoseOfTheAffinity) {
  EXPECT_GE(usable_cores(), 1);
  EXPECT_LE(usable_cores(), std::thread::hardware_concurrency());
  std::thread([] {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
    EXPECT_EQ(usable_cores(), 1);
  }).join();
}

}  // namespace
}  // namespace gpipe::command
