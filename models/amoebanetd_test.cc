#include "models/amoebanetd.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
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

AmoebaNetDOptions options(int64_t num_classes, int64_t num_layers, int64_t num_filters) {
  return AmoebaNetDOptions()
      .num_classes(num_classes)
      .num_layers(num_layers)
      .num_filters(num_filters);
}

struct CountCase {
  std::array<int64_t, 3> options;  // num_classes, num_layers, num_filters
  Counts counts;
};

const CountCase kCounts[] = {
    {{1000, 18, 208}, {81505540, 831, 825, 168391, 24, 0}},
    {{1000, 18, 416}, {319024120, 831, 825, 336507, 24, 0}},
    {{1000, 18, 544}, {542734840, 831, 825, 439963, 24, 0}},
    {{1000, 36, 544}, {1055832376, 1533, 1527, 828613, 42, 0}},
    {{1000, 72, 512}, {1844858344, 2937, 2931, 1511505, 78, 0}},
    {{1000, 18, 256}, {122470120, 831, 825, 207187, 24, 0}},
    {{1000, 6, 208}, {31436612, 363, 357, 69227, 12, 0}},
    {{1000, 6, 416}, {118946424, 363, 357, 138335, 12, 0}},
    {{1000, 6, 544}, {200669816, 363, 357, 180863, 12, 0}},
    {{1000, 12, 544}, {371702328, 597, 591, 310413, 18, 0}},
    {{1000, 24, 512}, {632778216, 1065, 1059, 536033, 30, 0}},
    {{10, 3, 32}, {391354, 246, 240, 6904, 9, 0}},
    {{10, 6, 64}, {2686346, 363, 357, 21383, 12, 0}},
    {{1000, 3, 64}, {2555816, 246, 240, 13728, 9, 0}},
    {{10, 0, 32}, {130010, 128, 123, 3057, 6, 0}},
    {{10, 3, 16}, {100886, 246, 240, 3492, 9, 0}},
    {{10, 6, 32}, {679578, 363, 357, 10751, 12, 0}},
    {{100, 9, 48}, {2257264, 480, 474, 21818, 15, 0}},
    {{10, 3, 36}, {493456, 246, 240, 7752, 9, 0}},
    {{1000, 12, 128}, {22202216, 597, 591, 73189, 18, 0}},
};

TEST(AmoebaNetDTest, HasExactlyThePublishedSizes) {
  MetaScope meta;
  for (const auto& [o, counts] : kCounts) {
    SCOPED_TRACE(::testing::PrintToString(o));
    EXPECT_EQ(testing::count(amoebanetd(options(o[0], o[1], o[2]))), counts);
  }
}

TEST(AmoebaNetDTest, GivesTheGoldenNumbers) {
  expect_golden("amoebanetd_L3_F32_nc10_224", [] { return amoebanetd(options(10, 3, 32)); });
}

TEST(AmoebaNetDTest, GivesTheGoldenNumbersInMicroBatches) {
  expect_golden_micro_batched("amoebanetd_L3_F16_nc10_224",
                              [] { return amoebanetd(options(10, 3, 16)); });
}

TEST(AmoebaNetDTest, DefaultsAreThoseOfTheSpeedTable) {
  MetaScope meta;
  EXPECT_EQ(testing::count(amoebanetd()).parameters, 122470120);
}

TEST(AmoebaNetDTest, CanBeCloned) {
  testing::expect_clone_works(amoebanetd(options(10, 3, 8)), at::rand({1, 3, 224, 224}));
}

}  // namespace
}  // namespace gpipe::models
