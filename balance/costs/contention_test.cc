#include "balance/costs/contention.h"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <stdexcept>
#include <vector>

namespace gpipe::balance {
namespace {

// The tests measure with a clock that only `work` advances.
class Contention : public ::testing::Test {
 protected:
  ContentionOptions options() {
    ContentionOptions options;
    options.seconds = 50;
    options.now = [this] { return time_; };
    return options;
  }
  std::function<void()> work(double alone, double beside) {
    return [this, alone, beside] {
      ++calls_;
      time_ += others_.load() ? beside : alone;
    };
  }
  std::function<void()> other() {
    return [this] { others_.store(true); };
  }

  double time_ = 0;
  int calls_ = 0;
  std::atomic<bool> others_{false};
};

TEST_F(Contention, IsTheRatioOfTheTimes) {
  EXPECT_DOUBLE_EQ(measure_contention(work(2, 3), {other()}, options()), 1.5);
  EXPECT_GE(calls_, 25 + 17);
}

TEST_F(Contention, AloneThereIsNone) {
  EXPECT_DOUBLE_EQ(measure_contention(work(2, 3), {}, options()), 1.0);
}

TEST_F(Contention, IsNeverBelowOne) {
  EXPECT_DOUBLE_EQ(measure_contention(work(3, 2), {other(), other()}, options()), 1.0);
  EXPECT_DOUBLE_EQ(measure_contention(work(0, 2), {},
                                      [this] {
                                        ContentionOptions none = options();
                                        none.seconds = 0;
                                        return none;
                                      }()),
                   1.0);
}

TEST_F(Contention, LongCallsAreMeasuredThreeTimes) {
  measure_contention(work(1000, 1000), {}, options());
  EXPECT_EQ(calls_, 2 * (1 + 3));
}

TEST_F(Contention, ErrorsArrive) {
  EXPECT_THROW(measure_contention([] { throw std::runtime_error("work"); }, {other()}, options()),
               std::runtime_error);
  EXPECT_THROW(
      measure_contention(work(2, 3), {other(), [] { throw std::runtime_error("x"); }}, options()),
      std::runtime_error);
}

}  // namespace
}  // namespace gpipe::balance
