#include "gpipe/schedule/commands/comparison.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

namespace gpipe::internal {
namespace {

using ::testing::HasSubstr;

const ComparisonRow& row(const std::vector<ComparisonRow>& rows, const std::string& name) {
  const auto found = std::find_if(rows.begin(), rows.end(),
                                  [&](const ComparisonRow& each) { return each.name == name; });
  if (found == rows.end()) throw std::invalid_argument(name);
  return *found;
}

TEST(Comparison, BestFirstAndWhatDoesNotFitLast) {
  ComparisonOptions options;
  options.workers = 3;
  options.micro_batches = 6;
  options.memory = 3.0;
  options.budget = 1'000'000;
  const std::vector<ComparisonRow> rows = compare(options);
  for (size_t k = 1; k < rows.size(); ++k) {
    if (rows[k - 1].fits == rows[k].fits) {
      EXPECT_LE(rows[k - 1].makespan, rows[k].makespan + 1e-9);
    } else {
      EXPECT_TRUE(rows[k - 1].fits);
    }
  }
  EXPECT_TRUE(row(rows, "1f1b").fits);
  EXPECT_EQ(row(rows, "1f1b").peak, 3.0);
  EXPECT_EQ(row(rows, "1f1b").makespan, 3.0 * (6 + 2));
  EXPECT_EQ(row(rows, "1f1b").splits, 0);
  EXPECT_FALSE(row(rows, "fill-drain").fits);
  // With two stages a worker, each of half the size, filling the pipeline takes half as long, and
  // there are twice as many transfers.
  EXPECT_EQ(row(rows, "looped-bfs x2").makespan, 3.0 * (6 + 1));
  EXPECT_EQ(row(rows, "looped-bfs x2").peak, 6.0);
  EXPECT_GT(row(rows, "looped-bfs x2").transfers, row(rows, "1f1b").transfers);
  EXPECT_GT(row(rows, "zb-h1").splits, 0);
  EXPECT_LE(row(rows, "search").makespan, row(rows, "zb-h1").makespan);

  const std::string text = to_text(rows);
  EXPECT_THAT(text, HasSubstr("schedule"));
  EXPECT_THAT(text, HasSubstr("does not fit"));
  EXPECT_THAT(text, HasSubstr("\nlooped-bfs x2 ")) << "the longest names are whole";
  EXPECT_EQ(static_cast<size_t>(std::count(text.begin(), text.end(), '\n')), rows.size() + 1);
  EXPECT_THAT(to_json(rows), HasSubstr("{\"name\": \"1f1b\", \"makespan\": 24, "));
  EXPECT_THAT(to_svg(rows, 0.0), HasSubstr("<title>F0.0</title>"));
}

TEST(Comparison, ASlowWorkerIsSlowInAllItsStages) {
  ComparisonOptions options;
  options.workers = 3;
  options.micro_batches = 6;
  options.budget = 1'000'000;
  const std::vector<ComparisonRow> even = compare(options);
  options.slowness = {1, 1, 1};
  const std::vector<ComparisonRow> ones = compare(options);
  options.slowness = {1, 1, 1.5};
  const std::vector<ComparisonRow> rows = compare(options);
  for (const ComparisonRow& each : rows) {
    EXPECT_EQ(row(ones, each.name).makespan, row(even, each.name).makespan) << each.name;
    // No schedule is shorter than the work of the slow worker alone: 6 micro-batches, 3 for each,
    // times its slowness.
    EXPECT_GE(each.makespan, 6 * 3 * 1.5) << each.name;
    double of_slow = 0;
    for (size_t s = 0; s < each.costs.size(); ++s) {
      if (each.costs[s].forward * static_cast<double>(each.costs.size()) / 3 == 1.5) {
        of_slow += each.costs[s].forward;
      }
    }
    EXPECT_EQ(of_slow, 1.5) << each.name;
  }
  // The slow worker has the last stage and is busy all the time: 6 times 4.5. Before and after it
  // the two other stages take a forward each (2) and a backward each (4).
  EXPECT_EQ(row(rows, "1f1b").makespan, 6 * 4.5 + 2 + 4);
  EXPECT_LE(row(rows, "search").makespan, row(rows, "zb-h1").makespan);
  options.slowness = {1.7, 1.7, 1.7};
  EXPECT_DOUBLE_EQ(row(compare(options), "1f1b").makespan, 1.7 * row(even, "1f1b").makespan);
}

TEST(Comparison, CostsMayBeSmallNumbers) {
  ComparisonOptions options;
  options.workers = 2;
  options.micro_batches = 3;
  options.budget = 0;
  constexpr double kUnit = 1.0 / (1 << 23);
  options.worker_cost = {kUnit, 2 * kUnit, kUnit, kUnit};
  const std::vector<ComparisonRow> rows = compare(options);
  EXPECT_EQ(row(rows, "1f1b").makespan, 12 * kUnit);
  EXPECT_THAT(to_json(rows),
              HasSubstr("{\"name\": \"1f1b\", \"makespan\": 1.430511474609375e-06, "));
  EXPECT_THAT(to_text(rows), HasSubstr("    1.43e-06 "));
  ComparisonRow odd = row(rows, "1f1b");
  odd.makespan = 0.1 + 0.2;
  EXPECT_THAT(to_json({odd}), HasSubstr("\"makespan\": 0.30000000000000004, "));
}

TEST(Comparison, WrongOptions) {
  ComparisonOptions options;
  options.workers = 0;
  EXPECT_THROW(compare(options), std::invalid_argument);
  options.workers = 2;
  options.memory = -1;
  EXPECT_THROW(compare(options), std::invalid_argument);
  options.memory = 0;
  for (const std::vector<double>& wrong : std::vector<std::vector<double>>{
           {1}, {1, 1, 1}, {1, 0}, {1, -1}, {1, std::nan("")}, {1, HUGE_VAL}}) {
    options.slowness = wrong;
    EXPECT_THROW(compare(options), std::invalid_argument);
  }
  options.slowness = {};
  options.stages_per_worker = {0};
  EXPECT_THROW(compare(options), std::invalid_argument);
}

TEST(Comparison, AWorkerMayHaveOneStage) {
  ComparisonOptions options;
  options.workers = 3;
  options.micro_batches = 6;
  options.search = false;
  options.stages_per_worker = {1};
  // With one stage a worker, there is nothing to interleave.
  const std::vector<ComparisonRow> rows = compare(options);
  EXPECT_EQ(row(rows, "interleaved x1").makespan, row(rows, "1f1b").makespan);
}

TEST(Comparison, StoppedBeforeItBeginsItHasOneRow) {
  ComparisonOptions options;
  options.stop = [] { return true; };
  const std::vector<ComparisonRow> rows = compare(options);
  ASSERT_EQ(rows.size(), 1);
  rows.front().schedule.verify(Sends::kBuffered);
}

TEST(Comparison, WithRoomForLessThanOneMicroBatchNothingIsSearched) {
  ComparisonOptions options;
  options.memory = 0.9;
  options.budget = 1000;
  for (const ComparisonRow& each : compare(options)) {
    EXPECT_FALSE(each.fits) << each.name;
    EXPECT_EQ(each.name.find("search"), std::string::npos);
  }
}

TEST(Comparison, WhereNothingFitsTheNearestThatDoesIsTold) {
  ComparisonOptions options;
  options.search = false;
  options.memory = 1.5;
  const std::vector<ComparisonRow> rows = compare(options);
  EXPECT_EQ(
      nothing_fits(rows),
      "none of these schedules fits; give 1, with which a search finds one, or 2.00 for v-min");
  // With the memory that the message names, a schedule fits.
  options.memory = 2;
  EXPECT_EQ(nothing_fits(compare(options)), "");
  options.memory = 1;
  options.search = true;
  options.budget = 1000;
  EXPECT_EQ(nothing_fits(compare(options)), "");
}

TEST(Comparison, WhatASearchRefusesIsTold) {
  ComparisonOptions options;
  options.budget = -1;
  EXPECT_THROW(compare(options), std::invalid_argument);
}

}  // namespace
}  // namespace gpipe::internal
