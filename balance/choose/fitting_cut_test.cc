#include "balance/choose/fitting_cut.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/schedule/schedule.h"

namespace gpipe::balance {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Optional;
using ::testing::ThrowsMessage;

// Layers of 1 s forward and 2 s backward, with 100 bytes of parameters.
Profile layers(int64_t count) {
  Profile profile;
  profile.device = "a device";
  profile.batch_rows = 1;
  for (int64_t k = 0; k < count; ++k) {
    LayerProfile layer;
    layer.name = std::to_string(k);
    layer.forward = 1;
    layer.backward = 2;
    layer.parameters = 100;
    profile.layers.push_back(layer);
  }
  return profile;
}

FittingCutOptions limits(std::vector<int64_t> limits, Checkpoint mode = Checkpoint::kNever,
                         int64_t chunks = 8) {
  FittingCutOptions options;
  options.limits = std::move(limits);
  options.explain.chunks = chunks;
  options.explain.checkpoint = mode;
  options.explain.param_scale = 1;
  return options;
}

TEST(FittingCut, IsEvenWhereThereIsRoom) {
  EXPECT_THAT(fastest_fitting_cut(layers(8), limits({1000, 1000})), Optional(ElementsAre(4, 4)));
  EXPECT_THAT(fastest_fitting_cut(layers(7), limits({1000, 1000, 1000})),
              Optional(::testing::UnorderedElementsAre(2, 2, 3)));
}

TEST(FittingCut, KeepsTheLimitOfEachPartition) {
  EXPECT_THAT(fastest_fitting_cut(layers(8), limits({299, 1000})), Optional(ElementsAre(2, 6)));
  EXPECT_THAT(fastest_fitting_cut(layers(8), limits({200, 600})), Optional(ElementsAre(2, 6)));
  EXPECT_EQ(fastest_fitting_cut(layers(8), limits({200, 599})), std::nullopt);
  EXPECT_EQ(fastest_fitting_cut(layers(8), limits({-1, 10000})), std::nullopt);
}

// Under 1F1B the first of two partitions has two micro-batches in flight, so it gets fewer layers.
// With a single micro-batch, or with recomputes, both partitions get the same number.
TEST(FittingCut, CountsActivationsForEachMicroBatchInFlight) {
  Profile profile = layers(6);
  for (LayerProfile& layer : profile.layers) layer.kept = 100;
  EXPECT_THAT(fastest_fitting_cut(profile, limits({800, 800})), Optional(ElementsAre(2, 4)));
  EXPECT_THAT(fastest_fitting_cut(profile, limits({800, 800}, Checkpoint::kNever, 1)),
              Optional(ElementsAre(3, 3)));
  EXPECT_THAT(fastest_fitting_cut(profile, limits({800, 800}, Checkpoint::kAlways)),
              Optional(ElementsAre(3, 3)));
}

TEST(FittingCut, CountsInputsOfFillDrainForAllMicroBatches) {
  Profile profile = layers(4);
  profile.input = 10;
  for (LayerProfile& layer : profile.layers) layer.output = 10;
  FittingCutOptions options = limits({280, 280}, Checkpoint::kAlways);
  options.explain.schedule = Schedule::gpipe;
  EXPECT_THAT(fastest_fitting_cut(profile, options), Optional(ElementsAre(2, 2)));
  options.limits = {280, 279};
  EXPECT_EQ(fastest_fitting_cut(profile, options), std::nullopt);
}

TEST(FittingCut, CountsSkipsWhereTheyArrive) {
  Profile profile = layers(4);
  profile.skips.push_back({0, 3, 50});
  EXPECT_THAT(fastest_fitting_cut(profile, limits({200, 250})), Optional(ElementsAre(2, 2)));
  EXPECT_EQ(fastest_fitting_cut(profile, limits({200, 249})), std::nullopt);
}

// A cut must have the memory that explain() predicts for it: with these limits it just fits.
TEST(FittingCut, CountsAsExplainDoes) {
  Profile profile = layers(9);
  profile.input = 7;
  for (size_t k = 0; k < profile.layers.size(); ++k) {
    LayerProfile& layer = profile.layers[k];
    layer.output = 5 + static_cast<int64_t>(k);
    layer.kept = 30 - 2 * static_cast<int64_t>(k);
    layer.workspace = 3 * static_cast<int64_t>(k % 4);
    layer.buffers = 1;
  }
  profile.skips = {{0, 7, 11}, {2, 4, 13}};
  for (const Checkpoint mode : {Checkpoint::kNever, Checkpoint::kExceptLast, Checkpoint::kAlways}) {
    for (const bool fill_drain : {false, true}) {
      FittingCutOptions options = limits({0, 0, 0}, mode, 5);
      if (fill_drain) options.explain.schedule = Schedule::gpipe;
      options.explain.param_scale = 3;
      const std::vector<int64_t> balance = smallest_cut(profile, options);
      const Explanation explanation = explain(profile, balance, options.explain);
      for (size_t j = 0; j < 3; ++j) options.limits[j] = explanation.partitions[j].memory;
      EXPECT_NE(fastest_fitting_cut(profile, options), std::nullopt);
      // No other cut has a smaller largest partition.
      const auto largest = std::max_element(options.limits.begin(), options.limits.end());
      options.limits.assign(3, *largest - 1);
      EXPECT_EQ(fastest_fitting_cut(profile, options), std::nullopt) << to_text(mode);
    }
  }
}

TEST(FittingCut, KeepsLayersTogether) {
  FittingCutOptions options = limits({1000, 1000});
  options.keep_together = {{2, 5}};
  EXPECT_THAT(fastest_fitting_cut(layers(8), options), Optional(ElementsAre(2, 6)));
}

TEST(SmallestCut, ExceedsTheLimitsLeast) {
  EXPECT_THAT(smallest_cut(layers(8), limits({300, 300})), ElementsAre(4, 4));
  EXPECT_THAT(smallest_cut(layers(8), limits({100, 300})), ElementsAre(3, 5));
  EXPECT_THAT(smallest_cut(layers(8), limits({1000, 1400})), ElementsAre(2, 6));
}

TEST(FittingCut, RefusesWhatIsNoPartition) {
  EXPECT_THAT([] { fastest_fitting_cut(layers(2), limits({})); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("limits has 0 values")));
  EXPECT_THAT(
      [] {
        fastest_fitting_cut(layers(2), limits({1, 1, 1}));
      },
      ThrowsMessage<std::invalid_argument>(HasSubstr("but 2 layers may be separated")));
  FittingCutOptions options = limits({1, 1});
  options.keep_together = {{1, 2}};
  EXPECT_THAT([&] { smallest_cut(layers(2), options); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("keep_together[0] is layers 1 to 2")));
}

}  // namespace
}  // namespace gpipe::balance
