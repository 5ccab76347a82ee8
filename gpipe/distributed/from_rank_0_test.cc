#include "gpipe/distributed/from_rank_0.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

#include "gpipe/schedule/schedule.h"
#include "gpipe/schedule/search/search.h"
#include "gpipe/testing/processes/world_ranks.h"

namespace gpipe::distributed {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using Say = WorldRanks::Say;

SearchOptions small_search() {
  SearchOptions options;
  options.placement = Placement::one_each(3);
  options.micro_batches = 4;
  return options;
}

TEST(FromRank0, IsOneSearchForAll) {
  WorldRanks ranks(3, [](const World& world, const Say& say) {
    int searches = 0;
    const std::string text = from_rank_0(world, [&] {
      ++searches;
      return search(small_search()).schedule.to_text();
    });
    say(std::to_string(searches));
    say(Schedule::from_text(text) == search(small_search()).schedule ? "same" : "another");
  });
  EXPECT_THAT(ranks.lines(), ElementsAre("1", "0", "0"));
  EXPECT_THAT(ranks.lines(), Each("same"));
  ranks.expect_ends();
}

TEST(FromRank0, IsOfAnyLength) {
  WorldRanks ranks(2, [](const World& world, const Say& say) {
    for (const size_t length : {size_t{0}, size_t{1}, size_t{2'000'000}}) {
      say(from_rank_0(world, [&] { return std::string(length, 'x'); }) == std::string(length, 'x')
              ? "same"
              : "another");
    }
  });
  for (int k = 0; k < 3; ++k) EXPECT_THAT(ranks.lines(), Each("same"));
  ranks.expect_ends();
}

TEST(FromRank0, IsAnErrorOfAllAfterWhichAllGoOn) {
  WorldRanks ranks(2, [](const World& world, const Say& say) {
    say(outcome([&] {
      return from_rank_0(world, []() -> std::string { throw std::out_of_range("nothing fits"); });
    }));
    say(from_rank_0(world, [] { return std::string("fits"); }));
  });
  EXPECT_THAT(ranks.lines(),
              ElementsAre("exception: nothing fits", "exception: rank 0: nothing fits"));
  EXPECT_THAT(ranks.lines(), Each("fits"));
  ranks.expect_ends();
}

TEST(FromRank0, AloneIsTheCall) {
  EXPECT_EQ(from_rank_0(World(), [] { return std::string("mine"); }), "mine");
  EXPECT_THROW(from_rank_0(World(), []() -> std::string { throw std::out_of_range("no"); }),
               std::out_of_range);
}

}  // namespace
}  // namespace gpipe::distributed
