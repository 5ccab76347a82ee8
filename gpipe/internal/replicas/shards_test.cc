#include "gpipe/internal/replicas/shards.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace gpipe::internal {
namespace {

using ::testing::ElementsAre;

TEST(Shards, AllReplicasHaveAboutAsMuch) {
  EXPECT_THAT(owners_of({1, 8, 3, 5, 2}, 2), ElementsAre(1, 0, 1, 1, 0));
  EXPECT_THAT(owners_of({4, 4, 4}, 4), ElementsAre(0, 1, 2));
  EXPECT_THAT(owners_of({}, 4), ElementsAre());
  EXPECT_THAT(owners_of({7, 0}, 1), ElementsAre(0, 0));
}

TEST(Shards, ABucketHasAsMuchAsFits) {
  const std::vector<int64_t> owners = {0, 1, 0, 0, 0, 1};
  const std::vector<int64_t> bytes = {4, 100, 4, 9, 1, 1};
  EXPECT_THAT(buckets_of(0, owners, bytes, 8), ElementsAre(Bucket{0, 2}, Bucket{3}, Bucket{4}));
  EXPECT_THAT(buckets_of(1, owners, bytes, 8), ElementsAre(Bucket{1}, Bucket{5}));
  EXPECT_THAT(buckets_of(2, owners, bytes, 8), ElementsAre());
}

}  // namespace
}  // namespace gpipe::internal
