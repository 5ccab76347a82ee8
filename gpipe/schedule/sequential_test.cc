#include "gpipe/schedule/sequential.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <stdexcept>

namespace gpipe {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(Sequential, WholeTables) {
  EXPECT_EQ(sequential(1, 2).to_text(),
            "stages 1\n"
            "micro_batches 2\n"
            "worker 0: F0.0 B0.0 F0.1 B0.1\n");
  EXPECT_EQ(sequential(3, 2).to_text(),
            "stages 3\n"
            "micro_batches 2\n"
            "worker 0: F0.0 F1.0 F2.0 B2.0 B1.0 B0.0 F0.1 F1.1 F2.1 B2.1 B1.1 B0.1\n");
}

TEST(Sequential, HoldsOneMicroBatchAndNeverWaits) {
  for (int stages = 1; stages <= 5; ++stages) {
    for (int micro_batches = 1; micro_batches <= 5; ++micro_batches) {
      const ScheduleFacts facts = sequential(stages, micro_batches).verify();
      EXPECT_THAT(facts.peak_live, Each(1)) << stages << " x " << micro_batches;
      EXPECT_EQ(facts.bubble_ratio, 0) << stages << " x " << micro_batches;
    }
  }
}

TEST(Sequential, RefusesImpossibleCounts) {
  const auto refuses = [](int64_t stages, int64_t micro_batches) {
    EXPECT_THAT([&] { sequential(stages, micro_batches); },
                ThrowsMessage<std::invalid_argument>(HasSubstr("Schedule::create")))
        << stages << " x " << micro_batches;
  };
  refuses(0, 1);
  refuses(1, 0);
  refuses(-1, 4);
  refuses(1 << 13, 1 << 12);
}

}  // namespace
}  // namespace gpipe
