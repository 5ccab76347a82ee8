#include "experiments/unet_speed/published.h"

#include <gtest/gtest.h>

#include "experiments/rows/speed_table_checks.h"

namespace gpipe::experiments {
namespace {

TEST(PublishedSpeed, BalancesHaveAllLayers) { expect_balances_of(241, speed_variants()); }

TEST(PublishedSpeed, SpeedUpsAreToTheBaseline) {
  expect_speed_ups_of_throughputs(speed_variants());
}

}  // namespace
}  // namespace gpipe::experiments
