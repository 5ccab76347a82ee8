#include "diagnose/named_choices.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace gpipe::diagnosis {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Not;

std::vector<std::string> names(const Placement& placement,
                               const std::set<int64_t>& micro_batches = {1, 2, 8}) {
  std::vector<std::string> result;
  for (const ScheduleChoice& choice : named_choices(placement, micro_batches)) {
    result.push_back(choice.name);
  }
  return result;
}

TEST(NamedChoices, HaveTheirStagesWhereThePlacementHasThem) {
  EXPECT_THAT(names(Placement::one_each(3)),
              ElementsAre("1f1b", "gpipe", "fill-drain", "zb-h1", "zb-h2"));
  EXPECT_THAT(names(Placement::one_each(1)),
              ElementsAre("1f1b", "gpipe", "fill-drain", "zb-h1", "zb-h2"));
  EXPECT_THAT(names(Placement::loop(2, 3)),
              ElementsAre("interleaved", "looped-bfs", "zb-interleaved"));
  EXPECT_THAT(names(Placement::v_shape(2)), ElementsAre("zb-v", "v-half", "v-min", "dualpipe-v"));
  EXPECT_THAT(names(Placement::loop(1, 3)),
              ElementsAre("sequential", "interleaved", "looped-bfs", "zb-interleaved"));
  EXPECT_THAT(names(Placement::of({0, 1, 0})), IsEmpty());
  EXPECT_THAT(names(Placement::of({1, 0})), IsEmpty());

  for (const Placement& placement : {Placement::one_each(3), Placement::loop(2, 3),
                                     Placement::v_shape(2), Placement::loop(1, 3)}) {
    for (const ScheduleChoice& choice : named_choices(placement, {4})) {
      EXPECT_NO_THROW(choice.make(placement.stages(), 4).check(placement)) << choice.name;
    }
  }
}

TEST(NamedChoices, WhereTheirSearchTakesLongTheyAreLeftOut) {
  EXPECT_THAT(names(Placement::one_each(4), {1, 2, 4, 8, 16, 32}), Contains("zb-h2"));
  EXPECT_THAT(names(Placement::one_each(8), {1, 2, 4, 8, 16, 32, 64}),
              ElementsAre("1f1b", "gpipe", "fill-drain", "zb-h1"));
  // For a single number of micro-batches the search of zb-h2 on 8 workers takes little enough work.
  EXPECT_THAT(names(Placement::one_each(8), {32}), Contains("zb-h2"));
  EXPECT_THAT(names(Placement::one_each(64), {32}), Not(Contains("zb-h2")));
  // dualpipe-v searches only if there are fewer than two micro-batches for each worker. On 16
  // workers it is left out for 31, because the search would take too long.
  EXPECT_THAT(names(Placement::v_shape(16), {32, 64}), ElementsAre("dualpipe-v"));
  EXPECT_THAT(names(Placement::v_shape(16), {31, 64}), IsEmpty());
}

}  // namespace
}  // namespace gpipe::diagnosis
