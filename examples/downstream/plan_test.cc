#include "plan.h"

#include <gtest/gtest.h>

TEST(Plan, OneForwardOneBackwardHoldsAsManyAsThereAreStages) {
  EXPECT_EQ(plan(4, 32).gpipe, 32);
  EXPECT_EQ(plan(4, 32).one_f_one_b, 4);
}
