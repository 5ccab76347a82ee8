#include "balance/choose/corrected_limits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace gpipe::balance {
namespace {

using ::testing::ElementsAre;

// Answers each call with the next of `answers`, and returns the limits of all calls.
std::vector<std::vector<int64_t>> limits_of(const std::vector<int64_t>& room, int most,
                                            const std::vector<PredictionErrors>& answers) {
  std::vector<std::vector<int64_t>> calls;
  correct_by_plans(room, most, [&](const std::vector<int64_t>& limits) {
    calls.push_back(limits);
    return answers.at(calls.size() - 1);
  });
  return calls;
}

PredictionErrors errors(std::vector<PredictionError> of_devices) { return of_devices; }

TEST(CorrectedLimits, AreTheRoomLessTheLastErrorOfEachDevice) {
  EXPECT_THAT(
      limits_of({100, 200}, 6, {errors({{0, 10}, {1, -20}}), errors({{1, 30}}), std::nullopt}),
      ElementsAre(ElementsAre(100, 200), ElementsAre(90, 220), ElementsAre(90, 170)));
}

TEST(CorrectedLimits, AreNotRaisedWhereADeviceIsExceeded) {
  EXPECT_THAT(limits_of({100}, 6,
                        {errors({{0, 30, true}}), errors({{0, 10, true}}), errors({{0, 10, false}}),
                         std::nullopt}),
              ElementsAre(ElementsAre(100), ElementsAre(70), ElementsAre(70), ElementsAre(90)));
}

// fit() plans the first micro-batches of a cut and then all of them.
TEST(CorrectedLimits, AreCorrectedInTurnByTwoErrorsOfADevice) {
  EXPECT_THAT(limits_of({100}, 6, {errors({{0, 5}, {0, -20, true}}), std::nullopt}),
              ElementsAre(ElementsAre(100), ElementsAre(95)));
}

TEST(CorrectedLimits, EndAfterTheMostAttempts) {
  EXPECT_EQ(limits_of({100}, 3, std::vector<PredictionErrors>(3, errors({}))).size(), 3);
  EXPECT_EQ(limits_of({100}, 0, {}).size(), 0);
}

// Layers with 100 bytes of parameters and no activations.
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

TEST(CorrectedLimits, TheSmallestCutMovesAwayFromADeviceThatTakesMoreThanPredicted) {
  FittingCutOptions options;
  options.limits = {1000, 1000};
  options.explain.chunks = 4;
  options.explain.param_scale = 1;
  std::vector<std::vector<int64_t>> cuts;
  correct_smallest_cut(layers(8), options, 6,
                       [&](const Explanation& cut, const std::vector<int64_t>& limits) {
                         EXPECT_EQ(limits[0], cuts.empty() ? 1000 : 600);
                         cuts.push_back(cut.balance());
                         return errors({{0, 400}});
                       });
  // The cut (2, 6) is found again under the same limits, which ends it.
  EXPECT_THAT(cuts, ElementsAre(ElementsAre(4, 4), ElementsAre(2, 6)));
}

}  // namespace
}  // namespace gpipe::balance
