#include "experiments/rows/layer_costs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/linear.h>

#include <stdexcept>

#include "models/unet.h"

namespace gpipe::experiments {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

balance::Profile two_layers() {
  balance::Profile profile;
  profile.device = "a device";
  profile.batch_rows = 4;
  profile.input = 400;
  profile.layers = {{"0", 1, 2, 10, 3, 100, 20, 80}, {"1", 3, 4, 0, 0, 200, 40, 60}};
  profile.skips = {{0, 1, 48}};
  return profile;
}

TEST(MeasuredCosts, AreInProportionToTheRows) {
  const LayerCosts costs = measured_costs(two_layers());
  const balance::Profile profile = costs(10);
  EXPECT_EQ(profile.device, "a device");
  EXPECT_EQ(profile.batch_rows, 10);
  EXPECT_EQ(profile.input, 1000);
  EXPECT_DOUBLE_EQ(profile.layers[0].forward, 2.5);
  EXPECT_DOUBLE_EQ(profile.layers[1].backward, 10);
  EXPECT_EQ(profile.layers[0].output, 200);
  EXPECT_EQ(profile.layers[0].kept, 250);
  EXPECT_EQ(profile.layers[0].workspace, 50);
  EXPECT_EQ(profile.layers[0].parameters, 10) << "parameters are not scaled by the number of rows";
  EXPECT_EQ(profile.layers[0].buffers, 3);
  EXPECT_EQ(profile.skips[0].bytes, 120);
  EXPECT_EQ(costs(4).layers[0].forward, 1);
  balance::Profile none = two_layers();
  none.batch_rows = 0;
  EXPECT_THAT([&] { measured_costs(none); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("has 0 rows")));
}

// The halves of backwards must be scaled and added up as whole backwards are. Otherwise a split
// schedule would get the costs of another number of rows.
TEST(LayerCosts, HalvesOfBackwardsGoAlong) {
  balance::Profile halves = two_layers();
  for (balance::LayerProfile& layer : halves.layers) {
    layer.split = balance::SplitBackward{1.5, 0.5, 120};
  }
  const balance::SplitBackward more = *measured_costs(halves)(10).layers[1].split;
  EXPECT_DOUBLE_EQ(more.input, 3.75);
  EXPECT_DOUBLE_EQ(more.weight, 1.25);
  EXPECT_EQ(more.waiting, 300);
  const balance::SplitBackward slower = *scaled(measured_costs(halves), 3)(4).layers[0].split;
  EXPECT_DOUBLE_EQ(slower.input, 4.5);
  EXPECT_DOUBLE_EQ(slower.weight, 1.5);
  EXPECT_EQ(slower.waiting, 120) << "scaled() multiplies times, not bytes";
  const LayerCosts costs = measured_costs(halves);
  const balance::SplitBackward sum = *sum_of_times({costs, costs})(4).layers[0].split;
  EXPECT_DOUBLE_EQ(sum.input, 3);
  EXPECT_DOUBLE_EQ(sum.weight, 1);
  EXPECT_EQ(sum.waiting, 120);
  EXPECT_FALSE(sum_of_times({costs, measured_costs(two_layers())})(4).layers[0].split)
      << "one of the costs has no measured halves, so the sum has none";
}

TEST(NominalCosts, AreCountedForEachNumberOfRowsOnce) {
  int models_made = 0;
  const LayerCosts costs = nominal_costs(
      [&models_made] {
        ++models_made;
        return torch::nn::Sequential(torch::nn::Linear(10, 20), torch::nn::ReLU());
      },
      {10}, {/*flops_per_second=*/1.0, /*bytes_per_second=*/1e30, /*seconds_per_operator=*/0});
  EXPECT_DOUBLE_EQ(costs(3).layers[0].forward, 2 * 3 * 10 * 20);
  EXPECT_DOUBLE_EQ(costs(5).layers[0].forward, 2 * 5 * 10 * 20);
  EXPECT_EQ(costs(5).layers[0].output, 5 * 20 * 4);
  EXPECT_EQ(costs(5).batch_rows, 5);
  EXPECT_DOUBLE_EQ(costs(3).layers[0].forward, 2 * 3 * 10 * 20);
  EXPECT_EQ(models_made, 1);
}

TEST(NominalCosts, TakeNoMemoryForALargeNetwork) {
  const LayerCosts costs = nominal_costs(
      [] { return models::unet(models::UNetOptions().num_convs(1).base_channels(512)); },
      {3, 192, 192});
  const balance::Profile profile = costs(64);  // 6 GB in the first activation alone
  EXPECT_EQ(profile.layers[0].output, int64_t{64} * 512 * 192 * 192 * 4);
  EXPECT_EQ(profile.skips.size(), 5);
  EXPECT_GT(profile.layers[0].backward, profile.layers[0].forward);
}

TEST(ScaledCosts, OnlyTimesChange) {
  const balance::Profile profile = scaled(measured_costs(two_layers()), 3)(4);
  EXPECT_DOUBLE_EQ(profile.layers[0].forward, 3);
  EXPECT_DOUBLE_EQ(profile.layers[1].backward, 12);
  EXPECT_EQ(profile.layers[0].output, 80);
}

}  // namespace
}  // namespace gpipe::experiments
