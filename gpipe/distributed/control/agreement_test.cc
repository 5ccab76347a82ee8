#include "gpipe/distributed/control/agreement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "gpipe/runtime/bytes.h"

namespace gpipe::distributed {
namespace {

using internal::fields_text;

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::Optional;
using ::testing::StartsWith;

TEST(Agreement, IsReachedWhenAllHaveSaidTheSame) {
  Agreement agreement(3);
  EXPECT_EQ(agreement.add(2, {"chunks", "8"}), std::nullopt);
  EXPECT_EQ(agreement.add(0, {"chunks", "8"}), std::nullopt);
  EXPECT_FALSE(agreement.complete());
  EXPECT_EQ(agreement.add(1, {"chunks", "8"}), "");
  EXPECT_TRUE(agreement.complete());
  EXPECT_EQ(agreement.give_up("5 s"), std::nullopt);
}

TEST(Agreement, NamesTwoRanksAndBothValuesAtOnce) {
  Agreement agreement(4);
  EXPECT_EQ(agreement.add(3, {"chunks", "8"}), std::nullopt);
  EXPECT_EQ(agreement.add(1, {"chunks", "4"}),
            "chunks must be the same on all ranks: rank 1 has '4', rank 3 has '8'");
  // The verdict is given once: words that come later give none.
  EXPECT_EQ(agreement.add(0, {"chunks", "2"}), std::nullopt);
  EXPECT_EQ(agreement.add(0, {"chunks", "8"}), std::nullopt);
  EXPECT_FALSE(agreement.complete());
  EXPECT_EQ(agreement.add(2, {"chunks", "8"}), std::nullopt);
  EXPECT_TRUE(agreement.complete());
}

// Ranks in different calls are named even if they are at the same point.
TEST(Agreement, NamesWhoIsInAnotherCall) {
  Agreement agreement(3);
  EXPECT_EQ(agreement.add(2, {"step", "8", false, false, 7}), std::nullopt);
  EXPECT_THAT(
      agreement.add(1, {"step", "8", false, false, 5}),
      Optional(AllOf(HasSubstr("rank 1 is 2 calls behind rank 2: it is in its call 5, at "
                               "'step', and rank 2 in its call 7, at 'step'"),
                     HasSubstr("has not begun call 8 throws this, and all go on together"))));
  EXPECT_EQ(agreement.given_up(), 7);
  EXPECT_EQ(agreement.add(0, {"step", "8", false, false, 7}), std::nullopt);
  EXPECT_TRUE(agreement.complete());
}

TEST(Agreement, NamesTheCallsIfTheyDiffer) {
  Agreement agreement(2);
  agreement.add(1, {"save", ""});
  EXPECT_EQ(agreement.add(0, {"step", ""}),
            "rank 0 is at 'step', rank 1 is at 'save': all ranks must make the same calls in the "
            "same order");
}

TEST(Agreement, CollectsWhatMayDiffer) {
  Agreement agreement(3);
  const std::string binary("\0\xff\n", 3);
  EXPECT_EQ(agreement.add(2, {"times", binary, /*is_collected=*/true}), std::nullopt);
  EXPECT_EQ(agreement.add(0, {"times", "", /*is_collected=*/true}), std::nullopt);
  EXPECT_THAT(agreement.take_values(), IsEmpty());  // not all values have come
  EXPECT_EQ(agreement.add(1, {"times", "b", /*is_collected=*/true}), "");
  EXPECT_THAT(agreement.take_values(), ElementsAre("", "b", binary));
}

TEST(Agreement, WhatIsComparedIsNotCollected) {
  Agreement agreement(2);
  agreement.add(0, {"chunks", "8"});
  EXPECT_EQ(agreement.add(1, {"chunks", "8"}), "");
  EXPECT_THAT(agreement.take_values(), IsEmpty());
}

TEST(Agreement, NamesWhoComparesAndWhoExchanges) {
  for (const int64_t last : {0, 1}) {  // the rank that comes last
    Agreement agreement(3);
    agreement.add(1 - last, {"chunks", "8", /*is_collected=*/last == 0});
    EXPECT_EQ(agreement.add(last, {"chunks", "8", /*is_collected=*/last == 1}),
              "rank 0 compares 'chunks', rank 1 exchanges it: all ranks must make the same calls "
              "in the same order");
    EXPECT_EQ(agreement.add(2, {"chunks", "8", /*is_collected=*/true}), std::nullopt);
    EXPECT_TRUE(agreement.complete());
    EXPECT_THAT(agreement.take_values(), IsEmpty());
  }
}

TEST(Agreement, CollectsUnderOneNameOnly) {
  Agreement agreement(2);
  agreement.add(0, {"times", "1", /*is_collected=*/true});
  EXPECT_EQ(agreement.add(1, {"sizes", "2", /*is_collected=*/true}),
            "rank 0 is at 'times', rank 1 is at 'sizes': all ranks must make the same calls in "
            "the same order");
  EXPECT_THAT(agreement.take_values(), IsEmpty());
}

// What two ranks that give these values for `name` are told: empty if they agree.
std::string verdict_on(const std::string& name, const std::string& low, const std::string& high) {
  Agreement agreement(2);
  agreement.add(0, {name, low});
  return agreement.add(1, {name, high}).value_or("none");
}

TEST(Agreement, ShowsWhereLongTextsDiffer) {
  const std::string same(500, 's');
  Agreement agreement(2);
  agreement.add(0, {"schedule", same + "F0" + same});
  EXPECT_THAT(agreement.add(1, {"schedule", same + "B0"}),
              Optional(AllOf(HasSubstr("sF0s"), HasSubstr("sB0'"), HasSubstr("(1002 bytes, from "),
                             HasSubstr("(502 bytes, from byte 460)"), Not(HasSubstr(same)))));
}

TEST(Agreement, ShowsTheFirstLineThatDiffers) {
  const std::string same(100, 's');
  const auto verdict = [](const std::string& low, const std::string& high) {
    return verdict_on("layers", low, high);
  };
  EXPECT_EQ(verdict(same + "\n1: Linear\n2: ReLU\n", same + "\n1: Tanh\n2: ReLU\n"),
            "layers must be the same on all ranks: line 2 is the first that differs: rank 0 has "
            "'1: Linear', rank 1 has '1: Tanh'");
  EXPECT_EQ(verdict("0: Linear\n", "0: Linear\n1: ReLU\n"),
            "layers must be the same on all ranks: line 2 is the first that differs: rank 0 has "
            "'', rank 1 has '1: ReLU'");
  // Both lines are shown whole if one of them is the beginning of the other.
  EXPECT_EQ(verdict("0: Linear\n1: ReLU\n", "0: Linear 4\n1: ReLU\n"),
            "layers must be the same on all ranks: line 1 is the first that differs: rank 0 has "
            "'0: Linear', rank 1 has '0: Linear 4'");
}

// The first field that differs is named, as if it were compared alone.
TEST(Agreement, NamesTheFieldThatDiffers) {
  const auto verdict = [](const std::string& balance, const std::string& layers) {
    const std::string long_one(200, '1');
    return verdict_on("all", fields_text({{"balance", long_one}, {"layers", "0: A\n1: B\n"}}),
                      fields_text({{"balance", balance + long_one.substr(2)}, {"layers", layers}}));
  };
  EXPECT_EQ(verdict("11", "0: A\n1: B\n"), "");
  EXPECT_THAT(verdict("12", "0: A\n1: C\n"),
              AllOf(StartsWith("balance must be the same on all ranks: rank 0 has '1111"),
                    HasSubstr("rank 1 has '1211"), Not(HasSubstr("layers"))));
  EXPECT_THAT(verdict("", ""), AllOf(StartsWith("balance must be the same on all ranks: rank 0 "),
                                     HasSubstr("(200 bytes"), HasSubstr("1' (198 bytes")));
  EXPECT_EQ(verdict("11", "0: A\n1: C\n"),
            "layers must be the same on all ranks: line 2 is the first that differs: rank 0 has "
            "'1: B', rank 1 has '1: C'");
  EXPECT_EQ(verdict("11", ""),
            "layers must be the same on all ranks: line 1 is the first that differs: rank 0 has "
            "'0: A', rank 1 has ''");
}

// A text of a user's, such as Progress::settings, may have zeros and is one value all the same.
TEST(Agreement, NamesATextWithZeros) {
  const std::string zero(1, '\0');
  EXPECT_EQ(verdict_on("settings", "lr" + zero + "1", "lr" + zero + "2"),
            "settings must be the same on all ranks: rank 0 has 'lr\\x001', rank 1 has 'lr\\x002'");
}

TEST(Agreement, GivesUp) {
  Agreement agreement(4);
  EXPECT_EQ(agreement.give_up("5 s"), std::nullopt);  // no rank waits
  agreement.add(1, {"step", ""});
  agreement.add(3, {"step", ""});
  EXPECT_EQ(agreement.give_up("5 s"),
            "ranks 0, 2 did not come to 'step' within 5 s, where ranks 1, 3 wait: all ranks must "
            "make the same calls in the same order");
  EXPECT_EQ(agreement.give_up("5 s"), std::nullopt);
  EXPECT_EQ(agreement.add(0, {"step", ""}), std::nullopt);

  Agreement patient(2);
  patient.add(1, {"end", "", /*is_collected=*/true, /*is_patient=*/true});
  EXPECT_EQ(patient.give_up("5 s"), std::nullopt);
  EXPECT_EQ(patient.add(0, {"end", "", /*is_collected=*/true, /*is_patient=*/true}), "");
}

}  // namespace
}  // namespace gpipe::distributed
