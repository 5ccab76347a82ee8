#include "balance/step/cut_costs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

namespace gpipe::balance {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// Layer k has k + 1 units of everything.
Profile profile() {
  Profile profile;
  profile.input = 1000;
  for (int64_t k = 0; k < 5; ++k) {
    const auto unit = static_cast<double>(k + 1);
    LayerProfile layer;
    layer.forward = unit;
    layer.backward = 2 * unit;
    layer.parameters = 10 * (k + 1);
    layer.buffers = k + 1;
    layer.kept = 100 * (k + 1);
    layer.workspace = 7 * (5 - k);
    layer.output = 20 * (k + 1);
    profile.layers.push_back(layer);
  }
  return profile;
}

TEST(CutCosts, StagesAreSumsOfTheirLayers) {
  const CutCosts costs = cut_costs(profile(), {2, 3});
  ASSERT_EQ(costs.stages.size(), 2u);
  const StageCosts& stage = costs.stages[1];
  EXPECT_EQ(stage.layers.first, 2);
  EXPECT_EQ(stage.layers.last, 4);
  EXPECT_EQ(stage.forward, 3 + 4 + 5);
  EXPECT_EQ(stage.recompute, 3 + 4 + 5);
  EXPECT_EQ(stage.backward, 2 * (3 + 4 + 5));
  EXPECT_EQ(stage.loss_forward, 0);
  EXPECT_EQ(stage.loss_backward, 0);
  EXPECT_EQ(stage.parameters, 10 * (3 + 4 + 5));
  EXPECT_EQ(stage.buffers, 3 + 4 + 5);
  EXPECT_EQ(stage.kept, 100 * (3 + 4 + 5));
  EXPECT_EQ(stage.workspace, 7 * 3) << "the largest";
  EXPECT_EQ(stage.received, 40);
  EXPECT_EQ(stage.sent, 0);
  EXPECT_EQ(stage.returned, profile().layers.back().output);
  EXPECT_EQ(costs.stages[0].returned, 0);
  EXPECT_EQ(costs.stages[0].received, 1000);
  EXPECT_EQ(costs.stages[0].sent, 40);
  EXPECT_THAT(costs.bytes, ElementsAre(40));
}

TEST(CutCosts, SkipsThatCrossACutAreRoutes) {
  Profile skips = profile();
  skips.skips = {{0, 4, 500}, {0, 1, 60}, {2, 3, 7}};
  const CutCosts costs = cut_costs(skips, {2, 1, 1, 1});
  EXPECT_EQ(costs.routes, Routes::create(4, {{0, 3, "skip"}, {1, 2, "skip"}}));
  EXPECT_THAT(costs.bytes, ElementsAre(40, 60, 80, 500, 7));
  EXPECT_EQ(costs.stages[0].sent, 40 + 500);
  EXPECT_EQ(costs.stages[1].received, 40);
  EXPECT_EQ(costs.stages[1].sent, 60 + 7);
  EXPECT_EQ(costs.stages[2].received, 60 + 7);
  EXPECT_EQ(costs.stages[3].received, 80 + 500);
}

TEST(CutCosts, WithoutDirectSkipsEveryStageBetweenReceivesAndSendsThem) {
  Profile skips = profile();
  skips.skips = {{0, 4, 500}, {2, 3, 7}};
  const CutCosts costs = cut_costs(skips, {2, 1, 1, 1}, /*direct_skips=*/false);
  EXPECT_EQ(costs.routes,
            Routes::create(4, {{0, 1, "skip"}, {1, 2, "skip"}, {2, 3, "skip"}, {1, 2, "skip"}}));
  EXPECT_THAT(costs.bytes, ElementsAre(40, 60, 80, 500, 500, 500, 7));
  EXPECT_EQ(costs.stages[1].received, 40 + 500);
  EXPECT_EQ(costs.stages[1].sent, 60 + 500 + 7);
  EXPECT_EQ(costs.stages[2].received, 60 + 500 + 7);
  EXPECT_EQ(costs.stages[3].received, 80 + 500);
}

TEST(CutCosts, WithoutMeasuredHalvesABackwardIsHalvedAndAllWaits) {
  Profile some = profile();
  some.layers[0].split = SplitBackward{1, 1, 1};
  for (const Profile& halves : {profile(), some}) {
    EXPECT_FALSE(halves_measured(halves));
    const StageCosts stage = cut_costs(halves, {2, 3}).stages[1];
    EXPECT_EQ(stage.input_gradient, 12);
    EXPECT_EQ(stage.weight_gradient, 12);
    EXPECT_EQ(stage.waiting, 40 + 1200);
  }
}

TEST(CutCosts, MeasuredHalvesAreTakenButInTheFirstStageAllIsInTheSecond) {
  Profile halves = profile();
  for (LayerProfile& layer : halves.layers) layer.split = SplitBackward{1.5, 0.75, 30};
  EXPECT_TRUE(halves_measured(halves));
  const CutCosts costs = cut_costs(halves, {2, 3});
  EXPECT_EQ(costs.stages[0].input_gradient, 0);
  EXPECT_EQ(costs.stages[0].weight_gradient, 6);
  EXPECT_EQ(costs.stages[0].waiting, 1000 + 300);
  EXPECT_EQ(costs.stages[1].input_gradient, 4.5);
  EXPECT_EQ(costs.stages[1].weight_gradient, 2.25);
  EXPECT_EQ(costs.stages[1].waiting, 90);
}

TEST(CutCosts, RefusesABalanceOfAnotherModel) {
  const auto refuses = [](const std::string& part) {
    return ThrowsMessage<std::invalid_argument>(HasSubstr(part));
  };
  EXPECT_THAT([] { cut_costs(profile(), {}); }, refuses("sums up to 0"));
  EXPECT_THAT([] { cut_costs(profile(), {2, 2}); }, refuses("sums up to 4, but the profile has 5"));
  EXPECT_THAT([] { cut_costs(profile(), {5, 0}); }, refuses("a partition of 0 layers"));
  // The sum of these numbers would overflow, to 5.
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  const std::vector<int64_t> balance = {kMost, kMost, 7};
  EXPECT_THAT([&] { cut_costs(profile(), balance); },
              refuses("sums up to more than the profile's 5 layers"));
}

TEST(CutCosts, AnEvenCutKeepsLayersTogether) {
  EXPECT_THAT(whole_costs(profile(), false), ElementsAre(3, 6, 9, 12, 15));
  EXPECT_THAT(whole_costs(profile(), true), ElementsAre(4, 8, 12, 16, 20));
  EXPECT_THAT(even_cut(profile(), 2, {}, true), ElementsAre(3, 2));
  EXPECT_THAT(even_cut(profile(), 2, {{2, 3}}, true), ElementsAre(4, 1));
}

}  // namespace
}  // namespace gpipe::balance
