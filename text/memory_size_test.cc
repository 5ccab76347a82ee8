#include "text/memory_size.h"

#include <gtest/gtest.h>

#include <string>

namespace gpipe::text {
namespace {

constexpr int64_t kKiB = int64_t{1} << 10;
constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kGiB = int64_t{1} << 30;

TEST(MemoryUnit, IsTheLargestOfWhichThereIsAHalf) {
  const auto name = [](int64_t largest) { return std::string(memory_unit(largest).name); };
  EXPECT_EQ(name(0), "KiB");
  EXPECT_EQ(name(100), "KiB");
  EXPECT_EQ(name(kMiB / 2 - 1), "KiB");
  EXPECT_EQ(name(kMiB / 2), "MiB");
  EXPECT_EQ(name(kGiB / 2 - 1), "MiB");
  EXPECT_EQ(name(kGiB / 2), "GiB");
  EXPECT_EQ(name(1000 * kGiB), "GiB");
  EXPECT_EQ(memory_unit(3 * kKiB).bytes, kKiB);
}

TEST(InUnit, HasFourDigitsOrOneBehindThePoint) {
  const auto text = [](int64_t bytes) { return in_unit(bytes, memory_unit(kGiB)); };
  EXPECT_EQ(text(0), "0.000");
  EXPECT_EQ(text(3 * kGiB / 2), "1.500");
  EXPECT_EQ(text(10 * kGiB - 1), "10.00");
  EXPECT_EQ(text(12 * kGiB), "12.00");
  EXPECT_EQ(text(100 * kGiB - 1), "100.0");
  EXPECT_EQ(text(2345 * kGiB), "2345.0");
}

TEST(InUnit, SaysThatThereIsSomething) {
  EXPECT_EQ(in_unit(1, memory_unit(kGiB)), "<0.001");
  EXPECT_EQ(in_unit(kGiB / 1000, memory_unit(kGiB)), "0.001");
  EXPECT_EQ(in_unit(1, memory_unit(kGiB), 2), "<0.01");
}

TEST(InUnit, SmallModelsHaveFiguresToo) {
  EXPECT_EQ(in_unit(1320, memory_unit(2640)), "1.289");
  EXPECT_EQ(in_unit(17 * kMiB, memory_unit(17 * kMiB), 2), "17.0");
}

}  // namespace
}  // namespace gpipe::text
