#include "gpipe/distributed/launcher/core_shares.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "machine/cores.h"

namespace gpipe::distributed {
namespace {

using ::testing::ElementsAre;

TEST(CoreShares, EachCoreIsInOneShare) {
  EXPECT_THAT(share_cores({0, 1, 2, 3}, 2), ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3)));
  EXPECT_THAT(share_cores({1, 3, 4, 8, 9}, 3),
              ElementsAre(ElementsAre(1), ElementsAre(3, 4), ElementsAre(8, 9)));
}

TEST(CoreShares, NeighborsShareWhereThereAreTooFew) {
  EXPECT_THAT(share_cores({4, 5}, 4),
              ElementsAre(ElementsAre(4), ElementsAre(4), ElementsAre(5), ElementsAre(5)));
}

TEST(CoreShares, WhatIsBoundIsWhatMayBeUsed) {
  std::vector<int> cores;
  std::thread([&] {  // the binding ends with the thread
    ASSERT_TRUE(bind_to_cores({machine::usable_core_numbers().back()}));
    cores = machine::usable_core_numbers();
  })
      .join();
  EXPECT_THAT(cores, ElementsAre(machine::usable_core_numbers().back()));
}

}  // namespace
}  // namespace gpipe::distributed
