#include "command/interrupt.h"

#include <gtest/gtest.h>

#include <csignal>
#include <stdexcept>

namespace gpipe::command {
namespace {

TEST(Interrupt, FirstSignalOnlySetsTheFlag) {
  InterruptScope interrupt;
  EXPECT_FALSE(interrupt.requested());
  std::raise(SIGINT);
  EXPECT_TRUE(interrupt.requested());
}

TEST(Interrupt, TerminateCountsToo) {
  InterruptScope interrupt;
  std::raise(SIGTERM);
  EXPECT_TRUE(interrupt.requested());
}

TEST(Interrupt, AClosedTerminalCountsUnlessItIsIgnored) {
  {
    InterruptScope interrupt;
    std::raise(SIGHUP);
    EXPECT_TRUE(interrupt.requested());
  }
  std::signal(SIGHUP, SIG_IGN);
  {
    InterruptScope interrupt;
    std::raise(SIGHUP);
    EXPECT_FALSE(interrupt.requested());
  }
  std::signal(SIGHUP, SIG_DFL);
}

TEST(Interrupt, ANewScopeStartsClear) {
  {
    InterruptScope interrupt;
    std::raise(SIGINT);
  }
  InterruptScope interrupt;
  EXPECT_FALSE(interrupt.requested());
}

TEST(Interrupt, OnlyOneScope) {
  InterruptScope interrupt;
  EXPECT_THROW(InterruptScope{}, std::logic_error);
}

TEST(InterruptDeathTest, SecondSignalEndsTheProcess) {
  EXPECT_EXIT(
      {
        InterruptScope interrupt;
        std::raise(SIGINT);
        std::raise(SIGINT);
      },
      ::testing::KilledBySignal(SIGINT), "");
}

}  // namespace
}  // namespace gpipe::command
