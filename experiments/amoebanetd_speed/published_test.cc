#include "experiments/amoebanetd_speed/published.h"

#include <gtest/gtest.h>

#include <string>

#include "experiments/rows/speed_table_checks.h"

namespace gpipe::experiments {
namespace {

TEST(PublishedSpeed, BalancesHaveAllLayers) { expect_balances_of(24, speed_variants()); }

TEST(PublishedSpeed, SpeedUpsAreToN2M1) { expect_speed_ups_of_throughputs(speed_variants()); }

TEST(PublishedSpeed, OneMicroBatchIsCheckpointed) {
  for (const SpeedVariant& variant : speed_variants()) {
    EXPECT_EQ(variant.checkpoint == Checkpoint::kAlways, variant.chunks == 1) << variant.name;
    EXPECT_EQ(variant.name,
              "n" + std::to_string(variant.balance.size()) + "m" + std::to_string(variant.chunks));
  }
}

}  // namespace
}  // namespace gpipe::experiments
