#include "models/unet.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <sstream>
#include <string>

#include "meta/meta_scope.h"
#include "models/testing/checks.h"
#include "models/testing/golden.h"

namespace gpipe::models {
namespace {

using testing::Counts;
using testing::expect_golden;
using testing::expect_golden_micro_batched;
using ::testing::HasSubstr;
using testing::skip_partitions;

UNetOptions options(int64_t depth, int64_t num_convs, int64_t base_channels, int64_t in = 3,
                    int64_t out = 1) {
  return UNetOptions()
      .depth(depth)
      .num_convs(num_convs)
      .base_channels(base_channels)
      .in_channels(in)
      .out_channels(out);
}

torch::nn::Sequential on_meta(const UNetOptions& options) {
  MetaScope meta;
  return unet(options);
}

struct CountCase {
  // The options: depth, num_convs, base_channels, in_channels, out_channels.
  std::array<int64_t, 5> options;
  Counts counts;
};

const CountCase kCounts[] = {
    {{5, 6, 72, 3, 1}, {362157516, 67, 0, 0, 285, 10}},
    {{5, 11, 128, 3, 1}, {2213834176, 122, 0, 0, 505, 10}},
    {{5, 24, 128, 3, 1}, {4993859008, 265, 0, 0, 1077, 10}},
    {{5, 24, 160, 3, 1}, {7802903600, 265, 0, 0, 1077, 10}},
    {{5, 48, 160, 3, 1}, {15822206000, 529, 0, 0, 2133, 10}},
    {{5, 5, 64, 3, 1}, {232687328, 56, 0, 0, 241, 10}},
    {{5, 2, 16, 3, 1}, {4519160, 23, 0, 0, 109, 10}},
    {{5, 1, 8, 3, 1}, {442012, 12, 0, 0, 65, 10}},
    {{1, 1, 16, 3, 1}, {5048, 4, 0, 0, 17, 2}},
    {{2, 2, 8, 3, 1}, {17068, 11, 0, 0, 49, 4}},
    {{3, 3, 4, 3, 1}, {30566, 22, 0, 0, 97, 6}},
    {{3, 2, 16, 1, 2}, {279520, 15, 0, 0, 69, 6}},
    {{5, 5, 16, 3, 1}, {14543288, 56, 0, 0, 241, 10}},
    {{2, 1, 7, 3, 1}, {4980, 6, 0, 0, 29, 4}},
    {{4, 4, 32, 3, 1}, {11186800, 37, 0, 0, 161, 8}},
    {{2, 2, 16, 3, 1}, {67832, 11, 0, 0, 49, 4}},
};

TEST(UNetTest, HasExactlyThePublishedSizes) {
  for (const auto& [o, counts] : kCounts) {
    SCOPED_TRACE(::testing::PrintToString(o));
    EXPECT_EQ(testing::count(on_meta(options(o[0], o[1], o[2], o[3], o[4]))), counts);
  }
}

TEST(UNetTest, GivesTheGoldenNumbers) {
  expect_golden("unet_d2_n2_c8_16x16", [] { return unet(options(2, 2, 8)); });
  expect_golden("unet_d5_n1_c8_64x64", [] { return unet(options(5, 1, 8)); });
  expect_golden("unet_d1_n3_c7_in1_out2_10x12", [] { return unet(options(1, 3, 7, 1, 2)); });
}

TEST(UNetTest, GivesTheGoldenNumbersInMicroBatches) {
  expect_golden_micro_batched("unet_d2_n2_c8_16x16", [] { return unet(options(2, 2, 8)); });
}

TEST(UNetTest, DefaultsAreThoseOfTheSpeedTable) {
  MetaScope meta;
  EXPECT_EQ(testing::count(unet()), testing::count(unet(options(5, 5, 64))));
}

TEST(UNetTest, SkipsGoBetweenThePartitionsOfThePublishedBalances) {
  const auto speed = on_meta(UNetOptions());
  EXPECT_EQ(skip_partitions(speed, {104, 137}), "1>1 0>1 0>1 0>1 0>1");
  EXPECT_EQ(skip_partitions(speed, {30, 66, 84, 61}), "2>2 1>2 1>2 1>3 0>3");
  EXPECT_EQ(skip_partitions(speed, {16, 27, 31, 44, 22, 57, 27, 17}), "3>4 3>5 2>5 1>6 1>6");
  EXPECT_EQ(skip_partitions(speed, {34, 76, 70, 61}), "1>2 1>2 1>2 1>3 0>3");
  EXPECT_EQ(skip_partitions(on_meta(options(5, 24, 128)), {526, 551}), "0>1 0>1 0>1 0>1 0>1");
  EXPECT_EQ(skip_partitions(on_meta(options(5, 24, 160)), {472, 54, 36, 515}),
            "1>3 0>3 0>3 0>3 0>3");
  EXPECT_EQ(skip_partitions(on_meta(options(5, 48, 160)), {800, 140, 62, 36, 36, 36, 36, 987}),
            "2>7 0>7 0>7 0>7 0>7");
}

TEST(UNetTest, OddSizesArePadded) {
  auto model = unet(options(3, 1, 4));
  EXPECT_EQ(model->forward(at::rand({2, 3, 23, 30})).sizes(), (at::IntArrayRef{2, 1, 23, 30}));
}

TEST(UNetTest, CanBeCloned) {
  testing::expect_clone_works(unet(options(2, 1, 4)), at::rand({1, 3, 16, 16}));
}

TEST(UNetTest, ShowsItsSkips) {
  std::ostringstream text;
  text << *unet(options(1, 1, 2));
  EXPECT_THAT(text.str(), HasSubstr("Stash, Skippable(stash: 'skip')"));
  EXPECT_THAT(text.str(), HasSubstr("PopCat, Skippable(pop: 'skip')"));
}

}  // namespace
}  // namespace gpipe::models
