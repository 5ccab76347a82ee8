#include "regression.h"

#include <gtest/gtest.h>

TEST(FitSine, Learns) {
  const double once = fit_sine(1);
  EXPECT_GT(once, 0.1);
  EXPECT_LT(fit_sine(200), once / 10);
}
