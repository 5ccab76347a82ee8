#include "diagnose/breakdown.h"

#include <gtest/gtest.h>

#include <numeric>

namespace gpipe::diagnosis {
namespace {

// Costs of layers that take 1 second for a row's forward and 2 for its backward, times `factors`.
// In a micro-batch of one row, the row takes `small` times as long as in one of four rows.
Costs costs(const std::vector<double>& factors, double small = 1) {
  Costs result;
  for (const int64_t rows : {1, 4}) {
    balance::Profile profile;
    profile.batch_rows = rows;
    for (const double factor : factors) {
      balance::LayerProfile layer;
      layer.forward = factor * static_cast<double>(rows) * (rows == 1 ? small : 1);
      layer.backward = 2 * layer.forward;
      layer.output = rows;
      profile.layers.push_back(layer);
    }
    result.profiles.push_back(profile);
  }
  return result;
}

PipelineSetup setup(std::vector<int64_t> balance, int64_t chunks, Checkpoint mode) {
  const size_t partitions = balance.size();
  return {std::move(balance),
          chunks,
          std::vector<Checkpoint>(partitions, mode),
          {"gpipe", Schedule::gpipe}};
}

double seconds_of(const std::vector<Part>& parts, Cause cause) {
  for (const Part& part : parts) {
    if (part.cause == cause) return part.seconds;
  }
  ADD_FAILURE() << to_text(cause) << " is missing";
  return 0;
}

TEST(BreakDown, NothingIsLostByOneWorkerWithTheWholeBatch) {
  const auto parts =
      break_down(costs({1, 1}), 4, setup({2}, 1, Checkpoint::kNever), Machine(), 24, 24);
  EXPECT_EQ(parts.size(), 7u);
  for (const Part& part : parts) EXPECT_EQ(part.seconds, 0) << to_text(part.cause);
}

TEST(BreakDown, EachCauseGetsItsOwn) {
  // Each cause has its own part of the step. There are 4 micro-batches of 1 row, which take 1.5
  // times as long as a row of the whole batch.
  Machine machine;
  machine.latency = 0.125;
  machine.contention = 1.25;
  const auto parts = break_down(costs({1, 3}, 1.5), 4, setup({1, 1}, 4, Checkpoint::kAlways),
                                machine, /*ideal=*/4 * 12.0 / 2, /*step=*/200);
  EXPECT_DOUBLE_EQ(seconds_of(parts, Cause::kSmallMicroBatches), 0.5 * 24);
  EXPECT_DOUBLE_EQ(seconds_of(parts, Cause::kImbalance), 1.5 * (36 - 24));
  // The slow partition waits for the first forward of the fast one (1), and the caller waits for
  // the last backward of the fast one (2).
  EXPECT_DOUBLE_EQ(seconds_of(parts, Cause::kFillAndDrain), 1.5 * (1 + 2));
  EXPECT_DOUBLE_EQ(seconds_of(parts, Cause::kRecompute), 1.5 * (4 * 3 + 1));
  EXPECT_DOUBLE_EQ(seconds_of(parts, Cause::kTransfers), 2 * 0.125);
  EXPECT_GT(seconds_of(parts, Cause::kSharedCores), 0);
  EXPECT_GT(seconds_of(parts, Cause::kOverhead), 0);
}

TEST(BreakDown, PartsSumUpExactly) {
  const double ideal = on_grid(0.1234567890123);
  const double step = on_grid(9.8765432109876);
  Machine machine;
  machine.cores = 1;
  machine.latency = 1.0 / 3;
  const auto parts = break_down(costs({0.1, 0.7, 0.3}, 1.1), 4,
                                setup({1, 2}, 3, Checkpoint::kExceptLast), machine, ideal, step);
  double sum = 0;
  for (const Part& part : parts) sum += part.seconds;
  EXPECT_EQ(sum, step - ideal);
  double backwards = 0;
  for (auto part = parts.rbegin(); part != parts.rend(); ++part) backwards += part->seconds;
  EXPECT_EQ(backwards, step - ideal);
}

TEST(BreakDown, FewCoresAreACauseOfTheirOwn) {
  Machine machine;
  machine.cores = 1;
  const auto parts =
      break_down(costs({1, 1}), 4, setup({1, 1}, 4, Checkpoint::kNever), machine, 12, 24);
  EXPECT_DOUBLE_EQ(seconds_of(parts, Cause::kFillAndDrain), 3);
  EXPECT_DOUBLE_EQ(seconds_of(parts, Cause::kSharedCores), 9);
  EXPECT_DOUBLE_EQ(seconds_of(parts, Cause::kOverhead), 0);
}

TEST(FitContention, FindsWhatTheWorkersWereBusyMore) {
  const PipelineSetup two = setup({1, 1}, 4, Checkpoint::kNever);
  Machine machine;
  machine.contention = 1.3;
  const double busy = model_step(costs({1, 1}), 4, two, machine).busy;
  EXPECT_NEAR(fit_contention(costs({1, 1}), 4, two, Machine(), busy), 1.3, 1e-9);
  EXPECT_EQ(fit_contention(costs({1, 1}), 4, two, Machine(), 0.9 * busy / 1.3), 1);
  // With one worker the contention is 1, because no other worker runs beside it.
  EXPECT_EQ(fit_contention(costs({1, 1}), 4, setup({2}, 4, Checkpoint::kNever), Machine(), 99), 1);
}

}  // namespace
}  // namespace gpipe::diagnosis
