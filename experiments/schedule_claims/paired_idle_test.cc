#include "experiments/schedule_claims/paired_idle.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

namespace gpipe::experiments {
namespace {

// Compares with the authors' formula, (p-1)(F&B + B - 3W), for p workers of two stages, and I = F.
TEST(PairedIdle, IsTheFormulaIfAPairTakesWhatItsPartsDo) {
  for (const StageCost& cost : {StageCost{1, 2, 1, 1}, StageCost{1, 1.7, 1, 0.7}}) {
    const double pair = cost.forward + cost.backward;
    for (const int64_t p : {1, 2, 4, 8}) {
      for (const int64_t m : {2 * p, 2 * p + 1, 3 * p + 2}) {
        SCOPED_TRACE("p = " + std::to_string(p) + ", m = " + std::to_string(m));
        const WorkerSpan span = paired_idle(p, m, cost, pair);
        EXPECT_NEAR(span.idle(),
                    static_cast<double>(p - 1) * (pair + cost.backward - 3 * cost.weight_gradient),
                    1e-9);
        EXPECT_NEAR(span.work, static_cast<double>(2 * m) * pair, 1e-9);
      }
    }
  }
}

TEST(PairedIdle, IsLessIfPairsAreShorter) {
  const StageCost cost{1, 2, 1, 1};
  for (const int64_t p : {2, 4, 8}) {
    const WorkerSpan span = paired_idle(p, 2 * p + 2, cost, 2.5);
    EXPECT_LE(span.idle(), static_cast<double>(p - 1) * (2.5 + 2 - 3) + 1e-9);
    EXPECT_GT(span.idle(), 0);
    EXPECT_LT(span.work, static_cast<double>(2 * (2 * p + 2)) * 3);
  }
}

TEST(PairedIdle, NeedsAsManyMicroBatchesAsTheRules) {
  EXPECT_THROW(paired_idle(4, 7, {}, 2), std::invalid_argument);
}

}  // namespace
}  // namespace gpipe::experiments
