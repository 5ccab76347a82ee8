#include "experiments/unet_timeline/simulated.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "balance/testing/irregular_profile.h"
#include "experiments/frame/variants.h"
#include "gpipe/schedule/named_schedule.h"
#include "gpipe/timeline/time_split.h"

namespace gpipe::experiments {
namespace {

// Three partitions of one layer each: a forward takes 1 s, a backward 2 s; outputs take 0.5 s on
// the link, and a skip from the first layer to the last takes 1 s.
balance::Profile profile() {
  balance::Profile profile;
  profile.device = "made up";
  for (int k = 0; k < 3; ++k) {
    balance::LayerProfile layer;
    layer.forward = 1;
    layer.backward = 2;
    layer.output = 50;
    profile.layers.push_back(layer);
  }
  profile.skips.push_back({0, 2, 100});
  return profile;
}

AblationSettings settings() {
  AblationSettings settings;
  settings.setup.balance = {1, 1, 1};
  settings.setup.chunks = 3;
  settings.setup.checkpoint_all(Checkpoint::kExceptLast);
  settings.setup.schedule = {"gpipe", Schedule::gpipe};
  settings.machine = {.bandwidth = 100};
  return settings;
}

double seconds(const SimulatedStep& step) {
  return static_cast<double>(step.timeline.end() - step.timeline.begin()) / 1e9;
}

const AblationVariant& find_ablation(const std::string& name) {
  return find_variant(ablations(), name);
}

TEST(SimulateAblation, OneMicroBatchByHand) {
  AblationSettings one_micro_batch = settings();
  one_micro_batch.setup.chunks =
      1;  // the backward follows the forward at once, so nothing is recomputed
  const auto seconds_of = [&](const char* name) {
    return seconds(simulate_ablation(find_ablation(name), profile(), one_micro_batch));
  };
  // Three forwards take 3 s, three backwards 3 * 2 s, and the activations' way there and back 4 *
  // 0.5 s. The skip adds nothing, because it takes less time than both activations and the forward
  // between them.
  EXPECT_DOUBLE_EQ(seconds_of("dep-str-ptl"), 11);
  // Without direct skips the skip goes through the second partition. So at each cut a copy takes 1
  // s instead of 0.5 s, there and back.
  EXPECT_DOUBLE_EQ(seconds_of("dep-str-x"), 13);
  // Without copy streams the skip and the activation take 1.5 s at each of two cuts, there and
  // back, and count in the action before and in the action after the copy.
  EXPECT_DOUBLE_EQ(seconds_of("dep-x-x"), 9 + 2 * 2 * 2 * 1.5);
  EXPECT_DOUBLE_EQ(seconds_of("baseline"), seconds_of("dep-x-x"));
}

TEST(SimulateAblation, ActionsAndTransfersTakeLongerThanTheirLayersAndBytes) {
  AblationSettings one_micro_batch = settings();
  one_micro_batch.setup.chunks = 1;
  one_micro_batch.machine.latency = 0.25;
  one_micro_batch.machine.overhead = 0.5;
  EXPECT_DOUBLE_EQ(
      seconds(simulate_ablation(find_ablation("dep-str-ptl"), profile(), one_micro_batch)),
      11 + 4 * 0.25 + 6 * 0.5);
}

TEST(SimulateAblation, EarlyRecomputesAreInTheFirstBackward) {
  const SimulatedStep early = simulate_ablation(find_ablation("baseline"), profile(), settings());
  const SimulatedStep usual = simulate_ablation(find_ablation("dep-x-x"), profile(), settings());
  int64_t sum = 0;
  for (std::size_t k = 0; k < usual.timeline.workers[2].size(); ++k) {
    const TimelineAction& timed = early.timeline.workers[2][k];
    sum += usual.timeline.workers[2][k].recompute();
    if (timed.action.kind == ActionKind::kForward || timed.action.micro_batch != 2) {
      EXPECT_EQ(timed.recompute(), 0);
    } else {
      EXPECT_EQ(timed.recompute(), 2'000'000'000);  // the recomputes of micro-batches 0 and 1
    }
  }
  EXPECT_EQ(sum, 2'000'000'000);
  EXPECT_GE(seconds(early), seconds(usual));
}

TEST(SimulateAblation, EachOptimizationHelps) {
  double before = 1e9;
  for (const AblationVariant& variant : ablations()) {
    const SimulatedStep step = simulate_ablation(variant, profile(), settings());
    EXPECT_LE(seconds(step), before) << variant.name;
    before = seconds(step);
    EXPECT_GT(split_time(step.timeline, step.routes).utilization(), 0.3);
  }
}

// The steps must take exactly the time that they took before all predictions shared one model of a
// step.
TEST(SimulateAblation, StepsAreTheSameToTheNanosecond) {
  AblationSettings irregular;
  irregular.setup.balance = {2, 2, 3, 2};
  irregular.setup.checkpoint_all(Checkpoint::kExceptLast);
  irregular.setup.chunks = 5;
  irregular.machine = {.bandwidth = 16384, .latency = 1.0 / 256, .overhead = 1.0 / 128};
  struct Simulated {
    const char* name;
    int64_t fill_drain;
    int64_t one_f_one_b;
    int64_t zb_h1;
  };
  const std::vector<Simulated> steps = {
      {"baseline", 5'242'187'500, 4'730'468'750, 4'097'656'250},
      {"dep-x-x", 4'804'687'500, 4'730'468'750, 4'097'656'250},
      {"dep-str-x", 3'960'937'500, 3'953'125'000, 3'351'562'500},
      {"dep-str-ptl", 3'894'531'250, 3'886'718'750, 3'306'640'625},
  };
  for (const Simulated& step : steps) {
    const auto nanoseconds = [&](const char* schedule) {
      irregular.setup.schedule = {schedule, schedule_by_name(schedule)};
      const SimulatedStep simulated = simulate_ablation(
          find_ablation(step.name), testing::irregular_profile(/*halves=*/false), irregular);
      return simulated.timeline.end() - simulated.timeline.begin();
    };
    EXPECT_EQ(nanoseconds("gpipe"), step.fill_drain) << step.name;
    EXPECT_EQ(nanoseconds("1f1b"), step.one_f_one_b) << step.name;
    EXPECT_EQ(nanoseconds("zb-h1"), step.zb_h1) << step.name;
  }
}

TEST(SimulateAblation, RefusesAnotherNetworksBalance) {
  AblationSettings other = settings();
  other.setup.balance = {1, 1};
  EXPECT_THROW(simulate_ablation(ablations()[0], profile(), other), std::invalid_argument);
}

}  // namespace
}  // namespace gpipe::experiments
