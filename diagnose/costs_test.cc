#include "diagnose/costs.h"

#include <gtest/gtest.h>

namespace gpipe::diagnosis {
namespace {

balance::Profile profile(int64_t rows, double forward, double backward, int64_t kept) {
  balance::Profile result;
  result.batch_rows = rows;
  result.input = 10 * rows;
  balance::LayerProfile layer;
  layer.forward = forward;
  layer.backward = backward;
  layer.parameters = 7;
  layer.kept = kept;
  layer.output = 2 * kept;
  result.layers = {layer, layer};
  result.skips = {{0, 1, 100 * rows}};
  return result;
}

// Costs with profiles for 2 and 4 rows.
Costs two_profiles() {
  Costs costs;
  costs.profiles = {profile(2, 3, 4, 8), profile(4, 5, 6, 16)};
  return costs;
}

TEST(Costs, AMeasuredNumberOfRowsIsAsMeasured) {
  const Costs costs = two_profiles();
  EXPECT_EQ(costs.at(4).layers[1].forward, 5);
  EXPECT_EQ(costs.at(2).layers[0].backward, 4);
  EXPECT_EQ(work_of(costs.at(2)), 14);
}

TEST(Costs, BetweenTwoTheyAreInterpolated) {
  const Costs costs = two_profiles();
  const balance::Profile three = costs.at(3);
  EXPECT_EQ(three.batch_rows, 3);
  EXPECT_DOUBLE_EQ(three.layers[0].forward, 4);
  EXPECT_DOUBLE_EQ(three.layers[1].backward, 5);
  EXPECT_EQ(three.layers[0].kept, 12);
  EXPECT_EQ(three.layers[0].output, 24);
  EXPECT_EQ(three.layers[0].parameters, 7);
  EXPECT_EQ(three.skips[0].bytes, 300);
  EXPECT_EQ(three.input, 30);
}

TEST(Costs, BeyondTheyAreProportional) {
  const Costs costs = two_profiles();
  EXPECT_DOUBLE_EQ(costs.at(1).layers[0].forward, 1.5);
  EXPECT_EQ(costs.at(1).layers[0].kept, 4);
  EXPECT_EQ(costs.at(1).skips[0].bytes, 100);
  EXPECT_DOUBLE_EQ(costs.at(8).layers[0].backward, 12);
  EXPECT_EQ(costs.at(8).input, 80);
  EXPECT_EQ(costs.at(8).layers[0].parameters, 7);
}

}  // namespace
}  // namespace gpipe::diagnosis
