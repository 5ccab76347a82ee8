#include "balance/costs/profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <vector>

namespace gpipe::balance {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

LayerProfile layer(double factor) {
  LayerProfile result;
  result.name = "0";
  result.forward = 1 * factor;
  result.backward = 2 * factor;
  result.parameters = 10;
  result.buffers = 3;
  result.kept = static_cast<int64_t>(100 * factor);
  result.workspace = static_cast<int64_t>(40 * factor);
  result.output = static_cast<int64_t>(60 * factor);
  result.split = SplitBackward{1.25 * factor, 0.75 * factor, static_cast<int64_t>(80 * factor)};
  return result;
}

Profile of_rows(int64_t rows) {
  Profile profile;
  profile.batch_rows = rows;
  const auto factor = static_cast<double>(rows);
  profile.input = 16 * rows;
  profile.layers = {layer(factor), layer(2 * factor)};
  profile.skips = {{0, 1, 8 * rows}};
  return profile;
}

void expect_same(const Profile& a, const Profile& b) {
  EXPECT_EQ(a.batch_rows, b.batch_rows);
  EXPECT_EQ(a.input, b.input);
  EXPECT_EQ(a.skips[0].bytes, b.skips[0].bytes);
  ASSERT_EQ(a.layers.size(), b.layers.size());
  for (size_t k = 0; k < a.layers.size(); ++k) {
    EXPECT_DOUBLE_EQ(a.layers[k].forward, b.layers[k].forward);
    EXPECT_DOUBLE_EQ(a.layers[k].backward, b.layers[k].backward);
    EXPECT_EQ(a.layers[k].parameters, b.layers[k].parameters);
    EXPECT_EQ(a.layers[k].buffers, b.layers[k].buffers);
    EXPECT_EQ(a.layers[k].kept, b.layers[k].kept);
    EXPECT_EQ(a.layers[k].workspace, b.layers[k].workspace);
    EXPECT_EQ(a.layers[k].output, b.layers[k].output);
    ASSERT_TRUE(a.layers[k].split && b.layers[k].split);
    EXPECT_DOUBLE_EQ(a.layers[k].split->input, b.layers[k].split->input);
    EXPECT_DOUBLE_EQ(a.layers[k].split->weight, b.layers[k].split->weight);
    EXPECT_EQ(a.layers[k].split->waiting, b.layers[k].split->waiting);
  }
}

TEST(Profile, OtherRowsAreInProportion) {
  expect_same(in_proportion(of_rows(4), 10), of_rows(10));
  expect_same(in_proportion(of_rows(4), 1), of_rows(1));
  expect_same(in_proportion(of_rows(4), 4), of_rows(4));
  expect_same(between(of_rows(4), of_rows(12), 7), of_rows(7));
}

TEST(Profile, HalvesThatNobodyHasMeasuredAreNotMadeUp) {
  Profile whole = of_rows(12);
  for (LayerProfile& each : whole.layers) each.split.reset();
  EXPECT_FALSE(between(of_rows(4), whole, 7).layers[0].split);
  EXPECT_FALSE(between(in_proportion(whole, 4), of_rows(12), 7).layers[0].split);
}

TEST(Profile, OnlyProfilesThatWereMadeAlikeAreMixed) {
  Profile low = of_rows(4);
  Profile high = of_rows(12);
  low.autocast = high.autocast = "bfloat16";
  low.shared_inputs = high.shared_inputs = std::vector<int64_t>{1};
  EXPECT_EQ(between(low, high, 7).autocast, "bfloat16");
  EXPECT_EQ(between(low, high, 7).shared_inputs, std::vector<int64_t>{1});
  high.autocast = "float16";
  EXPECT_THAT([&] { between(low, high, 7); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("guards of autocast")));
  high.autocast.reset();
  EXPECT_EQ(between(low, high, 7).autocast, std::nullopt);
  high.deferred_batch_norm = true;
  EXPECT_THAT([&] { between(low, high, 7); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("deferred batch norms")));
  low.deferred_batch_norm = true;
  EXPECT_TRUE(between(low, high, 7).deferred_batch_norm);
  EXPECT_TRUE(in_proportion(low, 7).deferred_batch_norm);
  high.shared_inputs->push_back(2);
  EXPECT_THAT([&] { between(low, high, 7); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("shared inputs")));
  high.shared_inputs.reset();
  EXPECT_EQ(between(low, high, 7).shared_inputs, std::nullopt);
}

TEST(Profile, TimesOfLayersAreScaledAndAdded) {
  LayerProfile scaled = layer(1);
  scale_times(scaled, 3);
  EXPECT_DOUBLE_EQ(scaled.forward, 3);
  EXPECT_DOUBLE_EQ(scaled.backward, 6);
  EXPECT_DOUBLE_EQ(scaled.split->input, 3.75);
  EXPECT_DOUBLE_EQ(scaled.split->weight, 2.25);
  EXPECT_EQ(scaled.split->waiting, 80);
  EXPECT_EQ(scaled.kept, 100);

  // The loss function has no weights, so its weight half takes no time.
  LayerProfile loss;
  loss.forward = 0.5;
  loss.backward = 5;
  loss.split = SplitBackward{5, 0, 0};
  LayerProfile last = layer(1);
  add_times(last, loss);
  EXPECT_DOUBLE_EQ(last.forward, 1.5);
  EXPECT_DOUBLE_EQ(last.backward, 7);
  EXPECT_DOUBLE_EQ(last.split->input, 6.25);
  EXPECT_DOUBLE_EQ(last.split->weight, 0.75);
  EXPECT_EQ(last.split->waiting, 80);
  loss.split.reset();
  add_times(last, loss);
  EXPECT_FALSE(last.split);
}

}  // namespace
}  // namespace gpipe::balance
