#include "experiments/unet_speed/published.h"

#include <gtest/gtest.h>

#include "experiments/rows/speed_table_checks.h"

namespace gpipe::experiments {
namespace {

TEST(PublishedSpeed, HasARowForEveryVariant) {
  expect_rows_of(published_speed(), speed_variants(), 241);
}

TEST(PublishedSpeed, SpeedUpsAreToTheBaseline) {
  expect_speed_ups_of_throughputs(published_speed());
}

}  // namespace
}  // namespace gpipe::experiments
