#include "gpipe/testing/fake_accelerator/vector_clock.h"

#include <gtest/gtest.h>

namespace gpipe::testing::fake {
namespace {

TEST(VectorClock, HasSeenNothingAtFirst) {
  const VectorClock clock;
  EXPECT_EQ(clock.of(0), 0U);
  EXPECT_EQ(clock.of(100), 0U);
  EXPECT_FALSE(clock.has_seen(3, 1));
}

TEST(VectorClock, SeesAllTasksUpToATime) {
  VectorClock clock;
  clock.see(3, 5);
  EXPECT_TRUE(clock.has_seen(3, 1));
  EXPECT_TRUE(clock.has_seen(3, 5));
  EXPECT_FALSE(clock.has_seen(3, 6));
  EXPECT_FALSE(clock.has_seen(2, 1)) << "of another stream";
}

TEST(VectorClock, NeverGoesBack) {
  VectorClock clock;
  clock.see(1, 5);
  clock.see(1, 2);
  EXPECT_EQ(clock.of(1), 5U);
}

TEST(VectorClock, JoinsTheLaterOfEachStream) {
  VectorClock a, b;
  a.see(0, 4);
  a.see(1, 1);
  b.see(1, 7);
  b.see(9, 2);
  VectorClock both = a;
  both.join(b);
  EXPECT_EQ(both.of(0), 4U);
  EXPECT_EQ(both.of(1), 7U);
  EXPECT_EQ(both.of(9), 2U);
  b.join(a);  // a shorter clock is joined into a longer one
  EXPECT_EQ(b.of(0), 4U);
  EXPECT_EQ(b.of(1), 7U);
  EXPECT_EQ(b.of(9), 2U);
}

}  // namespace
}  // namespace gpipe::testing::fake
