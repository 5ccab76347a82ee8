#include "trainer.h"

#include <gtest/gtest.h>

TEST(Trainer, Learns) {
  const std::vector<double> losses = train({2, 3}, /*chunks=*/4, /*steps=*/50);
  EXPECT_LT(losses.back(), losses.front() / 2);
}

TEST(Trainer, BalanceDoesNotChangeTheLosses) {
  EXPECT_EQ(train({2, 3}, /*chunks=*/4, /*steps=*/5), train({1, 1, 3}, /*chunks=*/4, /*steps=*/5));
}
