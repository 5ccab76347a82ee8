#include "gpipe/schedule/search/optimize.h"

#include <gtest/gtest.h>

#include <limits>

#include "gpipe/schedule/search/anneal.h"
#include "gpipe/schedule/search/generators.h"

namespace gpipe::internal {
namespace {

constexpr double kNone = std::numeric_limits<double>::infinity();

Optimized optimized(const Workload& workload, int64_t budget, std::vector<Order> seeds = {}) {
  Optimizing optimizing;
  optimizing.budget = budget;
  optimizing.seeds = std::move(seeds);
  std::optional<Optimized> result = optimize(workload, optimizing);
  EXPECT_TRUE(result.has_value());
  return *result;
}

TEST(Optimize, KeepsLimitsAndIsTheSameEachTime) {
  const Workload workload =
      Workload::uniform(Placement::v_shape(3), 7, {1.0, 1.8, 1.1, 0.7}, 0.1, 4.0);
  const Optimized first = optimized(workload, 2'000'000);
  EXPECT_EQ(optimized(workload, 2'000'000).order, first.order);
  for (int32_t worker = 0; worker < 3; ++worker) {
    const WorkerOrder& order = first.order[static_cast<size_t>(worker)];
    EXPECT_TRUE(keeps_limits(workload, worker, order));
    EXPECT_LE(peak_memory(workload, order), 4.0);
  }
  Timing timing(workload);
  ASSERT_TRUE(timing.run(first.order));
  EXPECT_EQ(timing.makespan(), first.makespan);
  EXPECT_GE(first.makespan, lower_bound(workload) - 1e-9);
  EXPECT_LE(first.actions, 2'500'000);
}

TEST(Optimize, IsNeverWorseThanItsSeeds) {
  const Workload workload = Workload::uniform(Placement::loop(3, 2), 6, {}, 0.0, kNone);
  const Order seed = to_order(zero_bubble_interleaved(3, 2, 6));
  Timing timing(workload);
  ASSERT_TRUE(timing.run(seed));
  EXPECT_LE(optimized(workload, 1, {seed}).makespan, timing.makespan());
}

TEST(Optimize, HasAnOrderWhereOneMicroBatchFits) {
  Workload workload = Workload::uniform(Placement::v_shape(2), 3, {}, 0.0, 2.0);
  workload.waiting.assign(4, 9.0);
  Optimizing optimizing;
  optimizing.stop = [] { return true; };
  const std::optional<Optimized> result = optimize(workload, optimizing);
  ASSERT_TRUE(result.has_value());
  EXPECT_TRUE(to_schedule(result->order, 4, 3).verify(Sends::kBuffered).ascending);
  for (const WorkerOrder& order : result->order) EXPECT_LE(peak_memory(workload, order), 2.0);
}

TEST(Optimize, NothingFitsWhereNothingCan) {
  const Workload workload = Workload::uniform(Placement::v_shape(2), 3, {}, 0.0, 1.0);
  EXPECT_FALSE(optimize(workload, {}).has_value());
}

TEST(Optimize, StopsWhenAskedWithTheBestSoFar) {
  const Workload workload = Workload::uniform(Placement::v_shape(4), 9, {}, 0.3, 5.0);
  Optimizing optimizing;
  optimizing.budget = int64_t{1} << 60;
  int asked = 0;
  optimizing.stop = [&] { return ++asked > 50; };
  const std::optional<Optimized> result = optimize(workload, optimizing);
  ASSERT_TRUE(result.has_value());
  EXPECT_TRUE(result->stopped);
  EXPECT_TRUE(to_schedule(result->order, 8, 9).verify(Sends::kBuffered).ascending);
}

TEST(Optimize, ManyMicroBatchesRepeatASteadyState) {
  const StageCost cost{1.0, 1.8, 1.1, 0.7};
  const Workload fewer = Workload::uniform(Placement::one_each(3), 9, cost, 0.0, 3.0);
  const Workload more = Workload::uniform(Placement::one_each(3), 40, cost, 0.0, 3.0);
  Timing timing(more);
  const std::optional<Order> longer = stretched(fewer, to_order(zb_h1(3, 9)), more, &timing);
  ASSERT_TRUE(longer.has_value());
  EXPECT_GT(timing.actions(), 3 * 3 * 40) << "timing.actions() includes the work of stretched()";
  ASSERT_TRUE(timing.run(*longer));
  const double stretched_makespan = timing.makespan();
  ASSERT_TRUE(timing.run(to_order(zb_h1(3, 40))));
  EXPECT_NEAR(stretched_makespan, timing.makespan(), 1e-9);
  for (int32_t worker = 0; worker < 3; ++worker) {
    EXPECT_TRUE(keeps_limits(more, worker, (*longer)[static_cast<size_t>(worker)]));
  }
  // With memory for one micro-batch at a time there is no steady state to repeat, but optimize()
  // finds an order.
  const Workload one_in_flight = Workload::uniform(Placement::one_each(3), 40, cost, 0.0, 1.0);
  EXPECT_GE(optimized(one_in_flight, 100'000).makespan, lower_bound(one_in_flight));
}

TEST(Optimize, JoinsWhereAWholeBackwardIsFaster) {
  // The halves of a backward take much longer than a whole one, so the result must be at least as
  // short as 1F1B, which splits nothing.
  const Workload workload =
      Workload::uniform(Placement::one_each(3), 6, {1.0, 1.0, 1.0, 1.0}, 0.0, kNone);
  const Optimized result = optimized(workload, 3'000'000);
  Timing timing(workload);
  ASSERT_TRUE(timing.run(to_order(Schedule::one_f_one_b(3, 6))));
  EXPECT_LE(result.makespan, timing.makespan() + 1e-9);
}

}  // namespace
}  // namespace gpipe::internal
