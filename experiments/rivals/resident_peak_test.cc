#include "experiments/rivals/resident_peak.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <stdexcept>
#include <vector>

namespace gpipe::experiments {
namespace {

TEST(ResidentPeakTest, ReadsWhatLinuxSays) {
  const ResidentMemory memory = parse_resident_memory(
      "Name:\tours\nVmHWM:\t   3000 kB\nRssAnon:\t  1000 kB\nRssFile:\t 700 kB\nRssShmem:\t 5 "
      "kB\n");
  EXPECT_EQ(memory.peak, 3000 * 1024);
  EXPECT_EQ(memory.anonymous, 1000 * 1024);
  EXPECT_EQ(memory.other, 705 * 1024);
}

TEST(ResidentPeakTest, RefusesAStatusWithoutTheFigures) {
  EXPECT_THROW(parse_resident_memory("VmHWM:\t1 kB\n"), std::runtime_error);
}

TEST(ResidentPeakTest, SeesWhatIsHeldAndRemembersIt) {
  constexpr int64_t kBytes = int64_t{64} << 20;
  constexpr int64_t kSlack = int64_t{8} << 20;
  const ResidentPeak peak;
  EXPECT_LT(peak.bytes(), kSlack);
  {
    const auto block = std::make_unique<char[]>(kBytes);
    std::memset(block.get(), 1, kBytes);
    EXPECT_GE(peak.bytes(), kBytes - kSlack);
  }
  EXPECT_GE(peak.bytes(), kBytes - kSlack);
  EXPECT_LT(peak.bytes(), kBytes + kSlack);
}

TEST(ResidentPeakTest, WhatWasFreedBeforeHidesNothing) {
  constexpr int64_t kBytes = int64_t{64} << 20;
  std::vector<std::unique_ptr<char[]>> blocks;
  for (int k = 0; k < 64; ++k) {
    blocks.push_back(std::make_unique<char[]>(kBytes / 64));
    std::memset(blocks.back().get(), 1, kBytes / 64);
  }
  blocks.clear();
  const ResidentPeak peak;
  for (int k = 0; k < 64; ++k) {
    blocks.push_back(std::make_unique<char[]>(kBytes / 64));
    std::memset(blocks.back().get(), 1, kBytes / 64);
  }
  EXPECT_GE(peak.bytes(), kBytes * 7 / 8);
}

}  // namespace
}  // namespace gpipe::experiments
