#include "balance/step/explain.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "balance/testing/irregular_profile.h"
#include "gpipe/schedule/named_schedule.h"
#include "gpipe/testing/seed.h"

namespace gpipe::balance {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// A profile of equal layers. Times are whole seconds, so that sums are exact.
Profile even(int64_t layers) {
  Profile profile;
  profile.device = "device";
  profile.batch_rows = 4;
  profile.input = 1000;
  for (int64_t i = 0; i < layers; ++i) {
    profile.layers.push_back({std::to_string(i), 1, 2, 10, 1, 100, 7, 50});
  }
  return profile;
}

ExplainOptions plain(int64_t chunks) {
  ExplainOptions options;
  options.chunks = chunks;
  options.checkpoint = Checkpoint::kNever;
  options.schedule = Schedule::gpipe;
  return options;
}

TEST(Explain, EqualPartitionsHaveTheBubbleOfThePaper) {
  const Explanation explanation = explain(even(8), {2, 2, 2, 2}, plain(8));
  EXPECT_DOUBLE_EQ(explanation.step, (8 + 3) * 6.0);
  EXPECT_DOUBLE_EQ(explanation.bubble, 3.0 / 11);
  EXPECT_DOUBLE_EQ(explanation.one_device, 8 * 8 * 3.0);
  EXPECT_DOUBLE_EQ(explanation.speed_up, 8 * 8 * 3.0 / ((8 + 3) * 6.0));
  EXPECT_EQ(explanation.binding, 0);
  EXPECT_THAT(explanation.balance(), ElementsAre(2, 2, 2, 2));
  for (const PartitionExplanation& partition : explanation.partitions) {
    EXPECT_DOUBLE_EQ(partition.forward, 2);
    EXPECT_DOUBLE_EQ(partition.backward, 4);
    EXPECT_EQ(partition.recompute, 0);
    EXPECT_EQ(partition.parameters, 20);
    EXPECT_DOUBLE_EQ(partition.busy, 8.0 / 11);
  }
  EXPECT_EQ(explanation.partitions[1].layers.first, 2);
  EXPECT_EQ(explanation.partitions[1].layers.last, 3);
}

TEST(Explain, TheHeaviestPartitionBinds) {
  const Explanation explanation = explain(even(8), {1, 2, 4, 1}, plain(16));
  EXPECT_EQ(explanation.binding, 2);
  EXPECT_GE(explanation.step, 16 * 12.0);
  EXPECT_GT(explanation.partitions[2].busy, 0.9);
}

TEST(Explain, RecomputesFollowModeAndSchedule) {
  ExplainOptions options = plain(4);
  const auto recomputes = [&options] {
    std::vector<double> result;
    for (const PartitionExplanation& partition : explain(even(4), {2, 2}, options).partitions) {
      result.push_back(partition.recompute);
    }
    return result;
  };
  options.checkpoint = Checkpoint::kAlways;
  EXPECT_THAT(recomputes(), ElementsAre(2, 2));
  EXPECT_DOUBLE_EQ(explain(even(4), {2, 2}, options).step, (4 + 1) * (2.0 + 2.0 + 4.0));
  options.checkpoint = Checkpoint::kExceptLast;
  EXPECT_THAT(recomputes(), ElementsAre(1.5, 1.5)) << "fill-drain: all but the last micro-batch";
  options.schedule = Schedule::one_f_one_b;
  EXPECT_THAT(recomputes(), ElementsAre(2, 0)) << "the last stage's backwards follow at once";
  options.schedule = nullptr;
  EXPECT_THAT(recomputes(), ElementsAre(2, 0)) << "1F1B is the default";
}

TEST(Explain, MemoryIsWhatIsInFlight) {
  ExplainOptions options = plain(8);
  options.param_scale = 3;
  const auto memory = [&options] {
    const Explanation explanation = explain(even(4), {2, 2}, options);
    return std::vector<int64_t>{explanation.partitions[0].memory, explanation.partitions[1].memory};
  };
  // A partition always holds the parameters and buffers of its two layers, and one workspace.
  const int64_t fixed = 2 * 10 * 3 + 2 + 7;
  EXPECT_THAT(memory(), ElementsAre(fixed + 8 * 1200, fixed + 8 * 250)) << "fill-drain keeps all";
  options.schedule = Schedule::one_f_one_b;
  EXPECT_THAT(memory(), ElementsAre(fixed + 2 * 1200, fixed + 1 * 250));
  options.schedule = Schedule::gpipe;
  options.checkpoint = Checkpoint::kAlways;
  EXPECT_THAT(memory(), ElementsAre(fixed + 8 * 1000 + 200, fixed + 8 * 50 + 200))
      << "inputs and one recompute";
  // Parameters may be counted less than once.
  options.param_scale = 0.5;
  EXPECT_THAT(memory(), ElementsAre(fixed - 50 + 8 * 1000 + 200, fixed - 50 + 8 * 50 + 200));
}

TEST(Explain, SkipsAreSentAndReceivedWhereTheyCrossACut) {
  Profile profile = even(6);
  profile.skips = {{0, 5, 7000}, {2, 3, 300}};
  const Explanation explanation = explain(profile, {2, 2, 2}, plain(1));
  EXPECT_EQ(explanation.partitions[0].sent, 50 + 7000);
  EXPECT_EQ(explanation.partitions[1].sent, 50);
  EXPECT_EQ(explanation.partitions[2].sent, 0);
  const int64_t fixed = 2 * 10 * 2 + 2 + 7;
  EXPECT_EQ(explanation.partitions[2].memory, fixed + 200 + 50 + 7000);
}

TEST(Explain, TransfersTakeTime) {
  ExplainOptions options = plain(1);
  options.bandwidth = 25;  // an activation takes 2 s in each direction
  options.latency = 0.5;
  EXPECT_DOUBLE_EQ(explain(even(4), {2, 2}, options).step, 2 * 6.0 + 2 * 2.5);
  Profile profile = even(4);
  profile.skips = {{0, 2, 100}};  // 4 s: arrives later than the activation
  EXPECT_DOUBLE_EQ(explain(profile, {2, 2}, options).step, 2 * 6.0 + 2 * 4.5);
  EXPECT_DOUBLE_EQ(explain(profile, {4}, options).step, 12.0) << "nothing leaves the partition";
}

TEST(Explain, SlownessAndOverheadAndCores) {
  ExplainOptions options = plain(4);
  options.slowness = {1, 3};
  EXPECT_DOUBLE_EQ(explain(even(4), {3, 1}, options).step, (4 + 1) * 9.0);
  EXPECT_DOUBLE_EQ(explain(even(4), {3, 1}, options).partitions[1].backward, 6);
  options.slowness.clear();
  options.overhead = 0.5;
  EXPECT_DOUBLE_EQ(explain(even(4), {2, 2}, options).step, (4 + 1) * (6 + 2 * 0.5));
  options.overhead = 0;
  options.cores = 1;
  EXPECT_DOUBLE_EQ(explain(even(4), {2, 2}, options).step, 4 * 12.0);
  EXPECT_DOUBLE_EQ(explain(even(4), {2, 2}, options).speed_up, 1.0);
}

TEST(Explain, MicroBatchesOfOtherSizes) {
  ExplainOptions options = plain(3);
  options.micro_batch_sizes = {2, 2, 0.5};
  const Explanation never = explain(even(4), {4}, options);
  EXPECT_DOUBLE_EQ(never.step, 4.5 * 12);
  EXPECT_DOUBLE_EQ(never.one_device, 4.5 * 12);
  EXPECT_EQ(never.partitions[0].memory, 4 * 10 * 2 + 4 + 45 * (1000 + 400) / 10 + 2 * 7);
  options.checkpoint = Checkpoint::kExceptLast;
  const Explanation except_last = explain(even(4), {4}, options);
  EXPECT_DOUBLE_EQ(except_last.step, 4.5 * 12 + 4 * 4) << "the small one is the last";
  EXPECT_DOUBLE_EQ(except_last.partitions[0].recompute * 3, 4 * 4);
  options.micro_batch_sizes = {1, 1, 1};
  EXPECT_EQ(explain(even(4), {2, 2}, options).step, [] {
    ExplainOptions equal = plain(3);
    equal.checkpoint = Checkpoint::kExceptLast;
    return explain(even(4), {2, 2}, equal).step;
  }());
}

TEST(Explain, TransfersAreOfTheMicroBatchsSize) {
  ExplainOptions options = plain(1);
  options.bandwidth = 25;  // an activation of the profile's rows takes 2 s each way
  options.latency = 0.5;
  options.micro_batch_sizes = {3};
  EXPECT_DOUBLE_EQ(explain(even(4), {2, 2}, options).step, 3 * 12.0 + 2 * (3 * 2 + 0.5));
}

TEST(Explain, ASplitBackwardTakesHalvesAndKeepsUntilTheSecond) {
  ExplainOptions options = plain(2);
  options.schedule = [](int64_t, int64_t) {
    return Schedule::from_text(
        "stages 1\nmicro_batches 2\nworker 0: F0.0 I0.0 F0.1 I0.1 W0.0 W0.1\n");
  };
  const Explanation explanation = explain(even(2), {2}, options);
  EXPECT_DOUBLE_EQ(explanation.step, 2 * 6.0);
  EXPECT_EQ(explanation.partitions[0].memory, 2 * 10 * 2 + 2 + 7 + 2 * 1200);
}

TEST(Explain, ASplitBackwardRecomputesBeforeItsFirstHalf) {
  ExplainOptions options = plain(2);
  options.checkpoint = Checkpoint::kAlways;
  const int64_t fixed = 2 * 10 * 2 + 2 + 7;
  const auto explain_actions = [&options](const std::string& actions) {
    options.schedule = [actions](int64_t, int64_t) {
      return Schedule::from_text("stages 1\nmicro_batches 2\nworker 0: " + actions + "\n");
    };
    return explain(even(2), {2}, options);
  };
  const Explanation late = explain_actions("F0.0 I0.0 F0.1 I0.1 W0.0 W0.1");
  EXPECT_DOUBLE_EQ(late.step, 2 * (2.0 + 2.0 + 4.0));
  EXPECT_EQ(late.partitions[0].memory, fixed + 2 * 1200) << "both recomputed, neither released";
  const Explanation early = explain_actions("F0.0 I0.0 W0.0 F0.1 I0.1 W0.1");
  EXPECT_EQ(early.partitions[0].memory, fixed + 1200);
}

TEST(Explain, MeasuredHalvesOfABackwardAreTaken) {
  Profile profile = even(2);
  EXPECT_FALSE(explain(profile, {1, 1}, plain(1)).halves_measured);
  EXPECT_FALSE(explain(profile, {1, 1}, plain(1)).splits);
  for (LayerProfile& layer : profile.layers) layer.split = SplitBackward{1.5, 0.75, 30};
  ExplainOptions options = plain(1);
  options.schedule = [](int64_t, int64_t) {
    return Schedule::from_text(
        "stages 2\nmicro_batches 1\nworker 0: F0.0 I0.0 W0.0\nworker 1: F1.0 I1.0 W1.0\n");
  };
  const Explanation explanation = explain(profile, {1, 1}, options);
  EXPECT_TRUE(explanation.halves_measured);
  EXPECT_TRUE(explanation.splits);
  EXPECT_DOUBLE_EQ(explanation.partitions[1].input_gradient, 1.5);
  EXPECT_DOUBLE_EQ(explanation.partitions[1].weight_gradient, 0.75);
  // No stage waits for the gradient of the first partition's inputs, so the weight half does all of
  // its backward.
  EXPECT_DOUBLE_EQ(explanation.partitions[0].input_gradient, 0);
  EXPECT_DOUBLE_EQ(explanation.partitions[0].weight_gradient, 2);
  EXPECT_DOUBLE_EQ(explanation.step, 1 + 1 + 1.5 + 2);
  EXPECT_EQ(explanation.partitions[0].waiting, 1000 + 100);
  EXPECT_EQ(explanation.partitions[1].waiting, 30);
}

TEST(Explain, BetweenTheHalvesOnlyWhatWaitsIsHeld) {
  Profile profile = even(2);
  for (LayerProfile& layer : profile.layers) layer.split = SplitBackward{1, 1, 30};
  ExplainOptions options = plain(2);
  options.schedule = [](int64_t, int64_t) {
    return Schedule::from_text(
        "stages 2\nmicro_batches 2\nworker 0: F0.0 F0.1 B0.0 B0.1\n"
        "worker 1: F1.0 I1.0 F1.1 I1.1 W1.0 W1.1\n");
  };
  const int64_t fixed = 10 * 2 + 1 + 7;
  // Partition 1 holds one whole micro-batch (50 arrive, 100 are kept), and 30 bytes of another one
  // that waits for its weight half.
  EXPECT_EQ(explain(profile, {1, 1}, options).partitions[1].memory, fixed + 150 + 30);
}

TEST(Explain, PartitionsMayHaveModesOfTheirOwn) {
  ExplainOptions options = plain(2);
  options.partition_checkpoints = {Checkpoint::kAlways, Checkpoint::kNever};
  const Explanation explanation = explain(even(4), {2, 2}, options);
  EXPECT_DOUBLE_EQ(explanation.partitions[0].recompute, 2);
  EXPECT_EQ(explanation.partitions[1].recompute, 0);
  options.partition_checkpoints = {Checkpoint::kAlways};
  EXPECT_THAT(
      [&] {
        explain(even(4), {2, 2}, options);
      },
      ThrowsMessage<std::invalid_argument>(
          HasSubstr("partition_checkpoints has 1 modes, expected 2")));
}

// The expected values are predictions from before explain(), //diagnose and experiments shared one
// model of a step.
TEST(Explain, PredictionsAreTheSameToTheLastBit) {
  ExplainOptions options;
  options.chunks = 5;
  options.micro_batch_sizes = {1, 1, 1, 1, 0.5};
  options.partition_checkpoints = {Checkpoint::kAlways, Checkpoint::kExceptLast, Checkpoint::kNever,
                                   Checkpoint::kExceptLast};
  options.slowness = {1, 1.5, 1, 2};
  options.bandwidth = 16384;
  options.latency = 1.0 / 256;
  options.overhead = 1.0 / 128;
  options.cores = 2;
  options.contention = 1.25;
  options.param_scale = 3;
  struct Prediction {
    const char* schedule;
    double step;
    std::vector<int64_t> partitions;
    std::vector<int64_t> workers;
  };
  const std::vector<Prediction> predictions = {
      {"1f1b", 5.806396484375, {4792, 1329, 2264, 1604}, {4792, 1329, 2264, 1604}},
      {"zb-h1", 6.1636962890625, {4792, 1389, 2444, 1814}, {4792, 1389, 2444, 1814}},
      {"gpipe", 6.522705078125, {5227, 1425, 3344, 2629}, {5227, 1425, 3344, 2629}},
      {"interleaved", 6.6640625, {5292, 1425, 2696, 1764}, {7093, 2670}},
  };
  for (const Prediction& prediction : predictions) {
    options.schedule = schedule_by_name(prediction.schedule);
    const Explanation explanation =
        explain(testing::irregular_profile(/*halves=*/true), {2, 2, 3, 2}, options);
    EXPECT_EQ(explanation.step, prediction.step) << prediction.schedule;
    std::vector<int64_t> partitions, workers;
    for (const PartitionExplanation& partition : explanation.partitions) {
      partitions.push_back(partition.memory);
    }
    for (const WorkerExplanation& worker : explanation.workers) workers.push_back(worker.memory);
    EXPECT_EQ(partitions, prediction.partitions) << prediction.schedule;
    EXPECT_EQ(workers, prediction.workers) << prediction.schedule;
  }
}

TEST(Explain, AWorkerHoldsWhatItsPartitionsHoldTogether) {
  ExplainOptions options = plain(1);
  options.schedule = [](int64_t, int64_t) {
    return Schedule::from_text(
        "stages 4\nmicro_batches 1\nworker 0: F0.0 F3.0 B3.0 B0.0\n"
        "worker 1: F1.0 F2.0 B2.0 B1.0\n");
  };
  const Explanation explanation = explain(even(4), {1, 1, 1, 1}, options);
  ASSERT_EQ(explanation.workers.size(), 2);
  // A worker holds the parameters and buffers of its two partitions, the larger workspace, and the
  // most that both partitions hold at a time.
  EXPECT_EQ(explanation.workers[0].memory, 2 * 10 * 2 + 2 + 7 + (1000 + 100) + (50 + 100));
  EXPECT_EQ(explanation.workers[1].memory, 2 * 10 * 2 + 2 + 7 + 2 * (50 + 100));
  EXPECT_DOUBLE_EQ(explanation.workers[0].busy, 0.5);
  EXPECT_EQ(explanation.partitions[0].fixed, 10 * 2 + 1 + 7);
  EXPECT_EQ(explanation.partitions[0].received, 1000);
  EXPECT_EQ(explanation.partitions[3].kept, 100);
}

TEST(Explain, RecomputesCountForWhoBinds) {
  ExplainOptions options = plain(8);
  options.checkpoint = Checkpoint::kExceptLast;
  options.schedule = Schedule::one_f_one_b;
  EXPECT_EQ(explain(even(15), {7, 8}, options).binding, 0) << "7 x 4 s against 8 x 3 s";
  options.checkpoint = Checkpoint::kNever;
  EXPECT_EQ(explain(even(15), {7, 8}, options).binding, 1);
}

TEST(Explain, NoTimesGiveNoSpeedUp) {
  Profile profile = even(2);
  for (LayerProfile& layer : profile.layers) layer.forward = layer.backward = 0;
  const Explanation explanation = explain(profile, {1, 1}, plain(2));
  EXPECT_EQ(explanation.step, 0);
  EXPECT_EQ(explanation.speed_up, 0);
  EXPECT_EQ(explanation.bubble, 0);
  EXPECT_THAT(best_balance(profile, 2, plain(2)), ElementsAre(1, 1));
}

struct Mistake {
  std::function<void()> call;
  std::string part;
};

TEST(Explain, MistakesAreNamed) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const auto with = [](const std::function<void(ExplainOptions&)>& change) {
    return [change] {
      ExplainOptions options = plain(2);
      change(options);
      explain(even(4), {2, 2}, options);
    };
  };
  const std::vector<Mistake> mistakes = {
      {[] { explain(even(4), {}); }, "balance is empty"},
      {[] {
         explain(even(4), {2, 3});
       },
       "more than the profile's 4 layers"},
      {[] {
         explain(even(4), {2, 1});
       },
       "sums up to 3, but the profile has 4 layers"},
      {[] {
         explain(even(4), {4, 0});
       },
       "balance[1] is 0"},
      {[] {
         explain(even(4), {5, -1});
       },
       "more than the profile's 4"},
      {[] { explain(Profile(), {1}); }, "layers is empty"},
      {with([](ExplainOptions& options) { options.chunks = 0; }), "chunks is 0"},
      {with([](ExplainOptions& options) { options.cores = -1; }), "cores is -1"},
      {with([nan](ExplainOptions& options) { options.bandwidth = nan; }), "bandwidth is nan"},
      {with([](ExplainOptions& options) { options.latency = -1; }), "latency is -1"},
      {with([](ExplainOptions& options) { options.overhead = -1; }), "overhead is -1"},
      {with([](ExplainOptions& options) { options.contention = 0.5; }), "contention is 0.5"},
      {with([nan](ExplainOptions& options) { options.param_scale = nan; }), "param_scale is nan"},
      {with([](ExplainOptions& options) { options.param_scale = 1e300; }),
       "param_scale is 1e+300, expected at most 1e+06"},
      {[] {
         Profile profile = even(2);
         profile.layers[1].parameters = int64_t{1} << 50;
         ExplainOptions options;
         options.param_scale = 1e6;
         explain(profile, {1, 1}, options);
       },
       "partition 1 takes 1.1259e+21 bytes"},
      {with([](ExplainOptions& options) { options.slowness = {1}; }), "slowness has 1 values"},
      {with([](ExplainOptions& options) {
         options.slowness = {1, 0};
       }),
       "slowness[1] is 0"},
      {with([](ExplainOptions& options) { options.micro_batch_sizes = {1}; }),
       "micro_batch_sizes has 1 values, expected 2, one for each micro-batch"},
      {with([](ExplainOptions& options) {
         options.micro_batch_sizes = {1, -1};
       }),
       "micro_batch_sizes[1] is -1"},
      {with([](ExplainOptions& options) {
         options.schedule = [](int64_t stages, int64_t) { return Schedule::gpipe(stages, 7); };
       }),
       "2 stages and 7 micro-batches, expected 2 and 2"},
      {with([](ExplainOptions& options) {
         options.schedule = [](int64_t stages, int64_t chunks) {
           return Schedule::gpipe(stages, chunks).only({ActionKind::kForward});
         };
       }),
       "the schedule has no backwards"},
  };
  for (const Mistake& mistake : mistakes) {
    EXPECT_THAT(mistake.call, ThrowsMessage<std::invalid_argument>(
                                  AllOf(HasSubstr("explain: "), HasSubstr(mistake.part))));
  }
  EXPECT_THAT([] { best_balance(even(4), 0); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("at least 1, got 0")));
  EXPECT_THAT([] { best_balance(even(4), 5); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("4 layers for 5 partitions")));
}

// All cuts of `layers` layers into `partitions` partitions.
std::vector<std::vector<int64_t>> all_cuts(int64_t layers, int64_t partitions) {
  if (partitions == 1) return {{layers}};
  std::vector<std::vector<int64_t>> result;
  for (int64_t first = 1; first <= layers - partitions + 1; ++first) {
    for (std::vector<int64_t> rest : all_cuts(layers - first, partitions - 1)) {
      rest.insert(rest.begin(), first);
      result.push_back(rest);
    }
  }
  return result;
}

double least_step(const Profile& profile, int64_t partitions, const ExplainOptions& options) {
  double least = std::numeric_limits<double>::infinity();
  const auto layers = static_cast<int64_t>(profile.layers.size());
  for (const std::vector<int64_t>& cut : all_cuts(layers, partitions)) {
    least = std::min(least, explain(profile, cut, options).step);
  }
  return least;
}

TEST(BestBalance, EqualLayersAreCutEvenly) {
  EXPECT_THAT(best_balance(even(8), 4, plain(8)), ElementsAre(2, 2, 2, 2));
  EXPECT_THAT(best_balance(even(8), 1, plain(8)), ElementsAre(8));
}

TEST(BestBalance, APartitionThatRecomputesNothingGetsMore) {
  ExplainOptions options = plain(32);
  options.checkpoint = Checkpoint::kExceptLast;
  options.schedule = Schedule::one_f_one_b;
  // A layer takes 4 s on device 0, which recomputes, and 3 s on device 1: 6 x 4 = 8 x 3.
  EXPECT_THAT(best_balance(even(14), 2, options), ElementsAre(6, 8));
}

TEST(BestBalance, NeighborsStayTogether) {
  ExplainOptions options = plain(8);
  options.keep_together = {{3, 6}};
  // The cut before the range leaves 3 and 5 layers, the one behind it 7 and 1.
  EXPECT_THAT(best_balance(even(8), 2, options), ElementsAre(3, 5));
  options.slowness = {1, 4};
  EXPECT_THAT(best_balance(even(8), 2, options), ElementsAre(7, 1));
  options.keep_together = {{3, 8}};
  EXPECT_THROW(best_balance(even(8), 2, options), std::invalid_argument);
}

TEST(BestBalance, ASlowDeviceGetsLess) {
  ExplainOptions options = plain(32);
  options.slowness = {1, 3};
  EXPECT_THAT(best_balance(even(8), 2, options), ElementsAre(6, 2));
}

// The even cut sends a wide skip over a slow link, which partition() does not see. best_balance()
// must find a cut that does not separate the skip's layers.
TEST(BestBalance, AvoidsAWideSkip) {
  Profile profile = even(6);
  profile.skips = {{2, 4, 100000}};
  ExplainOptions options = plain(4);
  options.bandwidth = 1000;
  const std::vector<int64_t> best = best_balance(profile, 2, options);
  EXPECT_TRUE(best[0] <= 2 || best[0] >= 5) << best[0];
  EXPECT_LT(explain(profile, best, options).step, explain(profile, {3, 3}, options).step);
}

TEST(BestBalance, IsWithinAFewPercentOfTheBestOfAllCuts) {
  std::mt19937_64 random = testing::test_random();
  std::uniform_int_distribution<int> seconds(1, 20);
  for (int i = 0; i < 20; ++i) {
    Profile profile = even(9);
    for (LayerProfile& layer : profile.layers) {
      layer.forward = seconds(random);
      layer.backward = seconds(random);
      layer.output = 10 * seconds(random);
    }
    profile.skips = {{i % 4, 4 + i % 5, 400}};
    ExplainOptions options;
    options.chunks = 4;
    options.bandwidth = 20;
    options.schedule = i % 2 == 0 ? Schedule::gpipe : Schedule::one_f_one_b;
    const double found = explain(profile, best_balance(profile, 3, options), options).step;
    // The search starts from good cuts and does not try all: it may miss 10 %.
    EXPECT_LE(found, 1.1 * least_step(profile, 3, options)) << i;
  }
}

// The first worker's cells hold more than the last one's, whose parameters make it the fullest. So
// the first one's are no reason to wait.
TEST(OffloadedSchedule, NoTimeIsSpentForNoLowerMemory) {
  Profile profile = even(4);
  profile.layers.back().parameters = 1'000'000;
  ExplainOptions options = plain(8);
  const auto explained = [&](const Schedule& schedule) {
    ExplainOptions with = options;
    with.schedule = [&](int64_t, int64_t) { return schedule; };
    return explain(profile, {3, 1}, with);
  };
  const Explanation without = explained(Schedule::gpipe(2, 8));
  options.host_bandwidth = 20;
  int64_t least = without.workers[1].memory;
  double step = without.step;
  int lower = 0, same = 0;
  for (const double more_time : {0.0, 0.5, 2.0, 10.0, 1000.0}) {
    const Explanation low = explained(offloaded_schedule(profile, {3, 1}, options, more_time));
    EXPECT_LT(low.workers[0].memory, low.workers[1].memory);
    EXPECT_LE(low.workers[1].memory, least) << more_time;
    EXPECT_LE(low.step, (1 + more_time) * without.step * (1 + 1e-9));
    if (low.workers[1].memory == least) {
      EXPECT_LE(low.step, step) << more_time;
      ++same;
    } else {
      ++lower;
    }
    least = low.workers[1].memory;
    step = low.step;
  }
  EXPECT_GT(lower, 0);
  EXPECT_GT(same, 0);
}

}  // namespace
}  // namespace gpipe::balance
