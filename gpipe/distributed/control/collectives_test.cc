#include "gpipe/distributed/control/collectives.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace gpipe::distributed {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::StartsWith;

Collectives::Time after(int seconds) { return Collectives::Time(std::chrono::seconds(seconds)); }

Agree compared(uint64_t number, const std::string& value) { return {number, {"chunks", value}}; }
Agree collected(uint64_t number, const std::string& value) {
  return {number, {"times", value, /*is_collected=*/true}};
}

TEST(Collectives, RankZeroDecidesWhenAllHaveCome) {
  Collectives calls(2);
  EXPECT_FALSE(calls.hear(1, 0, collected(1, "one"), after(0)));
  const auto values = calls.hear(0, 0, collected(1, "zero"), after(0));
  ASSERT_TRUE(values);
  EXPECT_EQ(values->number, 1);
  EXPECT_EQ(values->text, "");
  EXPECT_THAT(values->values, ElementsAre("zero", "one"));
  EXPECT_FALSE(calls.hear(0, 0, compared(2, "8"), after(0)));
  const auto same = calls.hear(1, 0, compared(2, "8"), after(0));
  ASSERT_TRUE(same);
  EXPECT_EQ(same->number, 2);
  EXPECT_EQ(same->text, "");
  EXPECT_THAT(same->values, IsEmpty());
}

TEST(Collectives, CallsThatOverlapAreApart) {
  Collectives calls(3);
  EXPECT_FALSE(calls.hear(1, 0, compared(1, "8"), after(0)));
  // The values of ranks 1 and 2 differ, which decides call 1. What rank 0 says later in call 1 does
  // not begin that call again.
  EXPECT_THAT(calls.hear(2, 0, compared(1, "4"), after(0))->text, HasSubstr("rank 2 has '4'"));
  EXPECT_FALSE(calls.hear(1, 0, compared(2, "5"), after(0)));
  EXPECT_FALSE(calls.hear(2, 0, compared(2, "5"), after(0)));
  EXPECT_FALSE(calls.hear(0, 0, compared(1, "8"), after(0)));
  const auto second = calls.hear(0, 0, compared(2, "5"), after(0));
  ASSERT_TRUE(second);
  EXPECT_EQ(second->number, 2);
  EXPECT_EQ(second->text, "");
}

TEST(Collectives, ARankWaitsForTheVerdictOfItsOwnCall) {
  Collectives calls(2);
  EXPECT_FALSE(calls.is_waiting());
  EXPECT_EQ(calls.begin(), 1);
  EXPECT_TRUE(calls.is_waiting());
  EXPECT_FALSE(calls.has_verdict());
  calls.know(0, {2, "of the next call", {}});
  EXPECT_FALSE(calls.has_verdict());
  calls.know(0, {1, "", {"a", "b"}});
  ASSERT_TRUE(calls.has_verdict());
  EXPECT_THAT(calls.end().values, ElementsAre("a", "b"));
  EXPECT_FALSE(calls.has_verdict());
  EXPECT_FALSE(calls.is_waiting());
  EXPECT_EQ(calls.ended(), 1);
  // The verdict of call 2 came before this rank made that call, and is kept for it.
  EXPECT_EQ(calls.begin(), 2);
  EXPECT_EQ(calls.ended(), 1);
  ASSERT_TRUE(calls.has_verdict());
  EXPECT_EQ(calls.end().text, "of the next call");
  EXPECT_EQ(calls.begun(), 2);
  EXPECT_EQ(calls.ended(), 2);
}

TEST(Collectives, GivesUpWhatHasWaitedLong) {
  Collectives calls(3);
  EXPECT_THAT(calls.give_up(after(100), "5 s"), IsEmpty());
  calls.hear(1, 7, compared(4, "8"), after(10));
  calls.hear(2, 7, compared(4, "8"), after(14));  // only the rank's first word counts
  calls.hear(1, 7, collected(5, "9"), after(12));
  EXPECT_THAT(calls.give_up(after(9), "5 s"), IsEmpty());
  const auto first = calls.give_up(after(10), "5 s");
  ASSERT_THAT(first, SizeIs(1));
  EXPECT_EQ(first[0].epoch, 7);
  EXPECT_EQ(first[0].verdict.number, 4);
  EXPECT_THAT(first[0].verdict.text, StartsWith("rank 0 did not come to 'chunks' within 5 s"));
  const auto second = calls.give_up(after(12), "5 s");  // call 4 has been decided
  ASSERT_THAT(second, SizeIs(1));
  EXPECT_EQ(second[0].verdict.number, 5);
  EXPECT_THAT(second[0].verdict.text, StartsWith("ranks 0, 2 did not come to 'times'"));
  EXPECT_THAT(second[0].verdict.values, IsEmpty());
  EXPECT_THAT(calls.give_up(after(100), "5 s"), IsEmpty());
}

TEST(Collectives, AnEpochForgetsThoseBefore) {
  Collectives calls(2);
  calls.begin();
  calls.know(0, {1, "", {}});
  calls.end();
  calls.begin();
  calls.hear(1, 0, compared(2, "8"), after(0));
  calls.begin_epoch(1);
  EXPECT_EQ(calls.ended(), 0);
  EXPECT_FALSE(calls.is_waiting());
  EXPECT_EQ(calls.begin(), 1);
  EXPECT_FALSE(calls.has_verdict());
  // A verdict of the earlier epoch, which was still in transit, arrives and is ignored.
  calls.know(0, {1, "old", {}});
  EXPECT_FALSE(calls.has_verdict());
  EXPECT_FALSE(calls.hear(0, 0, compared(2, "4"), after(0)));
  EXPECT_FALSE(calls.hear(1, 0, compared(1, "4"), after(0)));
  EXPECT_FALSE(calls.hear(1, 1, compared(1, "8"), after(0)));
  EXPECT_EQ(calls.hear(0, 1, compared(1, "8"), after(0))->text, "");
  EXPECT_THAT(calls.give_up(after(100), "5 s"), IsEmpty());
}

TEST(Collectives, AnEpochFindsWhatCameBeforeIt) {
  Collectives calls(3);
  calls.begin();
  calls.know(1, {1, "of the next epoch", {}});
  EXPECT_FALSE(calls.has_verdict());
  EXPECT_FALSE(calls.hear(2, 1, collected(2, "two"), after(0)));
  EXPECT_FALSE(calls.hear(1, 1, collected(2, "one"), after(0)));
  calls.begin_epoch(1);
  calls.begin();
  ASSERT_TRUE(calls.has_verdict());
  EXPECT_EQ(calls.end().text, "of the next epoch");
  EXPECT_THAT(calls.hear(0, 1, collected(2, "zero"), after(0))->values,
              ElementsAre("zero", "one", "two"));
}

}  // namespace
}  // namespace gpipe::distributed
