#include "gpipe/distributed/agreement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gpipe::distributed {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Optional;

TEST(Agreement, IsReachedWhenAllHaveSaidTheSame) {
  Agreement agreement(3);
  EXPECT_EQ(agreement.add(2, "chunks", "8"), std::nullopt);
  EXPECT_EQ(agreement.add(0, "chunks", "8"), std::nullopt);
  EXPECT_FALSE(agreement.complete());
  EXPECT_EQ(agreement.add(1, "chunks", "8"), "");
  EXPECT_TRUE(agreement.complete());
  EXPECT_EQ(agreement.give_up("5 s"), std::nullopt);
}

TEST(Agreement, NamesTwoRanksAndBothValuesAtOnce) {
  Agreement agreement(4);
  EXPECT_EQ(agreement.add(3, "chunks", "8"), std::nullopt);
  EXPECT_EQ(agreement.add(1, "chunks", "4"),
            "chunks must be the same on all ranks: rank 1 has '4', rank 3 has '8'");
  // The verdict stands.
  EXPECT_EQ(agreement.add(0, "chunks", "2"), std::nullopt);
  EXPECT_EQ(agreement.add(0, "chunks", "8"), std::nullopt);
  EXPECT_FALSE(agreement.complete());
  EXPECT_EQ(agreement.add(2, "chunks", "8"), std::nullopt);
  EXPECT_TRUE(agreement.complete());
}

TEST(Agreement, NamesTheCallsIfTheyDiffer) {
  Agreement agreement(2);
  agreement.add(1, "save", "");
  EXPECT_EQ(agreement.add(0, "step", ""),
            "rank 0 is at 'step', rank 1 is at 'save': all ranks must make the same calls in the "
            "same order");
}

TEST(Agreement, ShowsWhereLongTextsDiffer) {
  const std::string same(500, 's');
  Agreement agreement(2);
  agreement.add(0, "schedule", same + "F0" + same);
  EXPECT_THAT(agreement.add(1, "schedule", same + "B0"),
              Optional(AllOf(HasSubstr("sF0s"), HasSubstr("sB0'"), HasSubstr("(1002 bytes, from "),
                             HasSubstr("(502 bytes, from byte 460)"), Not(HasSubstr(same)))));
}

TEST(Agreement, GivesUp) {
  Agreement agreement(4);
  EXPECT_EQ(agreement.give_up("5 s"), std::nullopt);  // nobody waits
  agreement.add(1, "step", "");
  agreement.add(3, "step", "");
  EXPECT_EQ(agreement.give_up("5 s"),
            "rank 0, 2 did not come to 'step' within 5 s, where rank 1, 3 waits: all ranks must "
            "make the same calls in the same order");
  EXPECT_EQ(agreement.give_up("5 s"), std::nullopt);
  EXPECT_EQ(agreement.add(0, "step", ""), std::nullopt);
}

}  // namespace
}  // namespace gpipe::distributed
