#include "experiments/data/fake.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <vector>

namespace gpipe::experiments {
namespace {

TEST(FakeDataset, ImagesDependOnSeedAndIndexAlone) {
  const FakeDataset data(10, {3, 4, 5}, 4, 1);
  EXPECT_EQ(data.shape().size(), 60);
  std::vector<float> a(60);
  std::vector<float> b(60);
  Random first({1});
  Random second({2});
  EXPECT_EQ(data.read(7, first, a.data()).label, 3);
  EXPECT_EQ(data.read(7, second, b.data()).error, "");
  EXPECT_EQ(a, b);
  data.read(6, first, b.data());
  EXPECT_NE(a, b);
  FakeDataset(10, {3, 4, 5}, 4, 2).read(7, first, b.data());
  EXPECT_NE(a, b);
  for (float pixel : a) {
    EXPECT_GE(pixel, 0);
    EXPECT_LT(pixel, 1);
  }
}

TEST(FakeDataset, RefusesEmptiness) {
  EXPECT_THROW(FakeDataset(0, {1, 1, 1}, 1, 0), std::invalid_argument);
  EXPECT_THROW(FakeDataset(1, {1, 0, 1}, 1, 0), std::invalid_argument);
  EXPECT_THROW(FakeDataset(1, {1, 1, 1}, 0, 0), std::invalid_argument);
}

}  // namespace
}  // namespace gpipe::experiments
