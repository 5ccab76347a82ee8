#include "gpipe/distributed/control/fault_collector.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace gpipe::distributed {
namespace {

using ::testing::ElementsAre;

Fault fault(FaultKind kind, int64_t rank, const std::string& text = "t") {
  Fault result;
  result.kind = kind;
  result.rank = rank;
  result.text = text;
  return result;
}
Fault exception(int64_t rank, const std::string& text = "t") {
  return fault(FaultKind::kException, rank, text);
}

FaultCollector::Time at(int milliseconds) {
  return FaultCollector::Time() + std::chrono::milliseconds(milliseconds);
}

TEST(FaultCollector, ExceptionsComeBeforeEndsBeforeSilencesThenTheEarliest) {
  FaultCollector faults;
  EXPECT_TRUE(faults.empty());
  EXPECT_TRUE(faults.add(fault(FaultKind::kSilence, 1), at(0)));
  EXPECT_TRUE(faults.add(fault(FaultKind::kLeft, 2), at(2)));
  EXPECT_TRUE(faults.add(fault(FaultKind::kDeath, 3), at(1)));
  EXPECT_TRUE(faults.add(exception(5), at(9)));
  EXPECT_TRUE(faults.add(exception(4), at(9)));
  EXPECT_TRUE(faults.add(exception(6), at(8)));
  EXPECT_THAT(faults.sorted(),
              ElementsAre(exception(6), exception(4), exception(5), fault(FaultKind::kDeath, 3),
                          fault(FaultKind::kLeft, 2), fault(FaultKind::kSilence, 1)));
  EXPECT_EQ(faults.take().size(), 6);
  EXPECT_TRUE(faults.empty());
}

TEST(FaultCollector, WhatComesTwiceCountsOnceWithTheEarlierTime) {
  FaultCollector faults;
  EXPECT_TRUE(faults.add(exception(1), at(5)));
  EXPECT_TRUE(faults.add(exception(2), at(4)));
  EXPECT_FALSE(faults.add(exception(1), at(3)));
  EXPECT_FALSE(faults.add(exception(2), at(6)));
  EXPECT_THAT(faults.sorted(), ElementsAre(exception(1), exception(2)));
}

TEST(FaultCollector, ARankMayThrowSeveralExceptions) {
  FaultCollector faults;
  EXPECT_TRUE(faults.add(exception(1, "a"), at(2)));
  EXPECT_TRUE(faults.add(exception(1, "b"), at(1)));
  EXPECT_FALSE(faults.add(exception(1, "a"), at(3)));
  EXPECT_THAT(faults.sorted(), ElementsAre(exception(1, "b"), exception(1, "a")));
}

TEST(FaultCollector, AnEndFollowsFromAnException) {
  FaultCollector faults;
  EXPECT_TRUE(faults.add(exception(1), at(1)));
  EXPECT_FALSE(faults.add(fault(FaultKind::kDeath, 1), at(0)));
  EXPECT_TRUE(faults.add(exception(2), at(0)));
  EXPECT_THAT(faults.sorted(), ElementsAre(exception(2), exception(1)));

  // The exception may come after the death, over another connection, and replaces it.
  FaultCollector late;
  EXPECT_TRUE(late.add(fault(FaultKind::kDeath, 1), at(1)));
  EXPECT_FALSE(late.add(fault(FaultKind::kSilence, 1), at(2)));
  EXPECT_TRUE(late.has_loss_of(1));
  EXPECT_FALSE(late.has_loss_of(2));
  EXPECT_TRUE(late.add(exception(1), at(3)));
  EXPECT_FALSE(late.has_loss_of(1));
  EXPECT_THAT(late.sorted(), ElementsAre(exception(1)));
}

TEST(FaultCollector, DoesNotGrowWithoutEnd) {
  FaultCollector faults;
  for (int i = 0; i < 1000; ++i) faults.add(exception(0, std::to_string(i)), at(i));
  EXPECT_EQ(faults.sorted().size(), 256);
  EXPECT_EQ(faults.sorted().front().text, "0");
}

}  // namespace
}  // namespace gpipe::distributed
