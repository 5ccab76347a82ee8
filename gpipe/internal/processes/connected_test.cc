#include "gpipe/internal/processes/connected.h"

#include <gtest/gtest.h>

namespace gpipe::internal {
namespace {

TEST(Connected, IsToldOnceAndOnlyWhileConnected) {
  EXPECT_FALSE(first_alone_while_connected());
  { const Connected over; }
  EXPECT_FALSE(first_alone_while_connected());
  const Connected connected;
  EXPECT_TRUE(first_alone_while_connected());
  EXPECT_FALSE(first_alone_while_connected());
}

}  // namespace
}  // namespace gpipe::internal
