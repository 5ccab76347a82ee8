#include "models/old_amoebanetd.h"

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <sstream>
#include <string>
#include <vector>

#include "meta/meta_scope.h"
#include "models/testing/checks.h"
#include "models/testing/golden.h"
#include "models/testing/pipelines.h"

namespace gpipe::models {
namespace {

using testing::Counts;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using testing::expect_golden;
using ::testing::HasSubstr;
using testing::tensors_after;

OldAmoebaNetDOptions options(int64_t num_classes, int64_t num_layers, int64_t num_filters) {
  return OldAmoebaNetDOptions()
      .num_classes(num_classes)
      .num_layers(num_layers)
      .num_filters(num_filters);
}

struct CountCase {
  std::array<int64_t, 3> options;  // num_classes, num_layers, num_filters
  Counts counts;
};

// The first five rows are those of the published table.
const CountCase kCounts[] = {
    {{10, 6, 208}, {89745302, 1053, 1047, 236481, 445, 0}},
    {{10, 6, 416}, {358456186, 1053, 1047, 472613, 445, 0}},
    {{10, 6, 544}, {612770042, 1053, 1047, 617925, 445, 0}},
    {{10, 12, 544}, {1163292602, 1917, 1911, 1143717, 805, 0}},
    {{10, 24, 512}, {2005905418, 3645, 3639, 2066237, 1525, 0}},
};

struct SmallCase {
  std::array<int64_t, 3> options;
  int64_t parameters, layers, state_entries;
};

const SmallCase kSmall[] = {
    {{10, 1, 16}, 140326, 145, 660},      {{10, 1, 20}, 216892, 145, 660},
    {{10, 1, 32}, 546650, 145, 660},      {{10, 2, 16}, 222198, 205, 948},
    {{10, 2, 32}, 868986, 205, 948},      {{10, 3, 36}, 1504120, 265, 1236},
    {{100, 3, 48}, 2713696, 265, 1236},   {{1000, 1, 64}, 2918632, 145, 660},
    {{10, 4, 512}, 380274698, 325, 1524},
};

TEST(OldAmoebaNetDTest, HasExactlyThePublishedSizes) {
  MetaScope meta;
  for (const auto& [o, counts] : kCounts) {
    SCOPED_TRACE(::testing::PrintToString(o));
    EXPECT_EQ(testing::count(old_amoebanetd(options(o[0], o[1], o[2]))), counts);
  }
}

TEST(OldAmoebaNetDTest, HasExactlyTheKnownSizes) {
  MetaScope meta;
  for (const auto& [o, parameters, layers, state_entries] : kSmall) {
    SCOPED_TRACE(::testing::PrintToString(o));
    const Counts counts = testing::count(old_amoebanetd(options(o[0], o[1], o[2])));
    EXPECT_EQ(counts.parameters, parameters);
    EXPECT_EQ(counts.layers, layers);
    EXPECT_EQ(counts.parameter_tensors + counts.buffer_tensors, state_entries);
  }
}

TEST(OldAmoebaNetDTest, DefaultsAreThoseOfTheOriginal) {
  MetaScope meta;
  EXPECT_EQ(testing::count(old_amoebanetd()).parameters, 380274698);
}

TEST(OldAmoebaNetDTest, GivesTheGoldenNumbers) {
  expect_golden("old_amoebanetd_L1_F32_nc10_224",
                [] { return old_amoebanetd(options(10, 1, 32)); });
}

TEST(OldAmoebaNetDTest, GivesTheGoldenNumbersWithTwoCellsInARow) {
  expect_golden("old_amoebanetd_L2_F16_nc10_224",
                [] { return old_amoebanetd(options(10, 2, 16)); });
}

TEST(OldAmoebaNetDTest, ACellGrowsAndShrinksTheTensors) {
  const std::vector<size_t> tensors =
      tensors_after(old_amoebanetd(options(10, 1, 8)), at::rand({1, 3, 224, 224}));
  EXPECT_THAT(std::vector<size_t>(tensors.begin(), tensors.begin() + 4), ElementsAre(1, 1, 1, 2));
  const std::vector<size_t> cell = {2, 3, 3, 4, 5, 4, 5, 6, 5, 6, 7, 6, 7, 8, 7, 8, 9, 8, 8, 2};
  for (size_t first = 4; first < 144; first += 20) {
    const auto begin = tensors.begin() + static_cast<std::ptrdiff_t>(first);
    EXPECT_THAT(std::vector<size_t>(begin, begin + 20), ElementsAreArray(cell)) << first;
  }
  EXPECT_EQ(tensors.back(), 1u);
}

TEST(OldAmoebaNetDTest, TensorsAtTheCutsOfPublishedBalances) {
  const std::vector<size_t> tensors =
      tensors_after(old_amoebanetd(options(10, 4, 8)), at::rand({1, 3, 224, 224}));
  const auto tensors_at_cuts = [&tensors](const std::vector<size_t>& balance) {
    std::vector<size_t> counts;
    size_t cut = 0;
    for (size_t i = 0; i + 1 < balance.size(); ++i)
      counts.push_back(tensors[(cut += balance[i]) - 1]);
    EXPECT_EQ(cut + balance.back(), tensors.size());
    return counts;
  };
  EXPECT_THAT(tensors_at_cuts({84, 241}), ElementsAre(2));
  EXPECT_THAT(tensors_at_cuts({144, 181}), ElementsAre(2));
  EXPECT_THAT(tensors_at_cuts({78, 77, 92, 78}), ElementsAre(8, 7, 3));
  EXPECT_THAT(tensors_at_cuts({43, 35, 36, 38, 43, 45, 46, 39}), ElementsAre(8, 8, 6, 6, 7, 8, 3));
}

TEST(OldAmoebaNetDTest, APipelineEqualsThePlainModel) {
  // Some cuts are right behind a Twin or a TwinLast, which return a tensor twice. Others are behind
  // an identity, or where nine tensors cross.
  for (const std::vector<int64_t>& balance :
       std::vector<std::vector<int64_t>>{{145}, {4, 141}, {6, 25, 114}, {41, 40, 33, 31}}) {
    testing::expect_pipeline_equals_plain_model([] { return old_amoebanetd(options(10, 1, 8)); },
                                                balance, {2, 3, 224, 224});
  }
}

TEST(OldAmoebaNetDTest, CanBeCloned) {
  testing::expect_clone_works(old_amoebanetd(options(10, 1, 8)), at::rand({1, 3, 224, 224}));
}

TEST(OldAmoebaNetDTest, ShowsItsLayers) {
  MetaScope meta;
  std::ostringstream text;
  text << *old_amoebanetd(options(10, 1, 8));
  EXPECT_THAT(text.str(), HasSubstr("(cells_0_3): Operate(1 before 2)"));
  EXPECT_THAT(text.str(), HasSubstr("(cells_0_5): Merge(2)"));
}

}  // namespace
}  // namespace gpipe::models
