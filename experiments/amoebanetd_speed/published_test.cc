#include "experiments/amoebanetd_speed/published.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <numeric>
#include <string>

namespace gpipe::experiments {
namespace {

TEST(PublishedSpeed, HasARowForEveryVariant) {
  const PublishedTable table = published_speed();
  ASSERT_EQ(table.rows.size(), speed_variants().size());
  for (std::size_t i = 0; i < table.rows.size(); ++i) {
    const SpeedVariant& variant = speed_variants()[i];
    EXPECT_EQ(table.rows[i].experiment, variant.name);
    if (variant.balance.empty()) continue;
    EXPECT_EQ(std::accumulate(variant.balance.begin(), variant.balance.end(), int64_t{0}), 24);
  }
}

// The published speed-ups are those of the published throughputs.
TEST(PublishedSpeed, SpeedUpsAreToN2M1) {
  const PublishedTable table = published_speed();
  const auto throughput = [&](std::size_t i) {
    return std::stod(table.rows[i].figures.at("throughput").at("torchgpipe"));
  };
  EXPECT_EQ(table.rows[0].experiment, table.reference);
  for (std::size_t i = 0; i < table.rows.size(); ++i) {
    EXPECT_NEAR(std::stod(table.rows[i].figures.at("speed_up").at("torchgpipe")),
                throughput(i) / throughput(0), 0.0006);
  }
}

TEST(PublishedSpeed, OneMicroBatchIsCheckpointed) {
  for (const SpeedVariant& variant : speed_variants()) {
    EXPECT_EQ(variant.checkpoint == Checkpoint::kAlways, variant.chunks == 1) << variant.name;
    EXPECT_EQ(variant.name,
              "n" + std::to_string(variant.balance.size()) + "m" + std::to_string(variant.chunks));
  }
}

}  // namespace
}  // namespace gpipe::experiments
