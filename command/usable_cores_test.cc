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
    cpu_set_t one_core;
    CPU_ZERO(&one_core);
    CPU_SET(sched_getcpu(), &one_core);
    ASSERT_EQ(sched_setaffinity(0, sizeof one_core, &one_core), 0);
    EXPECT_EQ(usable_cores(), 1);
  }).join();
}

}  // namespace
}  // namespace gpipe::command
