#include "diagnose/step_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <stdexcept>
#include <utility>
#include <vector>

#include "balance/testing/irregular_profile.h"
#include "gpipe/schedule/named_schedule.h"

namespace gpipe::diagnosis {
namespace {

using ::testing::ElementsAre;

// Costs of layers that take 1 second for a row's forward and 2 for its backward, times `factors`.
Costs costs(const std::vector<double>& factors) {
  balance::Profile profile;
  profile.batch_rows = 1;
  profile.input = 1;
  for (const double factor : factors) {
    balance::LayerProfile layer;
    layer.forward = factor;
    layer.backward = 2 * factor;
    layer.kept = 10;
    layer.output = 100;
    profile.layers.push_back(layer);
  }
  Costs result;
  result.profiles = {profile};
  return result;
}

PipelineSetup setup(std::vector<int64_t> balance, int64_t chunks, Checkpoint mode,
                    const ScheduleChoice& schedule = {"gpipe", Schedule::gpipe}) {
  const size_t partitions = balance.size();
  return {std::move(balance), chunks, std::vector<Checkpoint>(partitions, mode), schedule};
}

TEST(ModelStep, FillDrain) {
  const ModeledStep step =
      model_step(costs({1, 1}), 4, setup({1, 1}, 4, Checkpoint::kNever), Machine());
  EXPECT_DOUBLE_EQ(step.step, (4 + 2 - 1) * 3);
  EXPECT_DOUBLE_EQ(step.work, 2 * 4 * 3);
  EXPECT_DOUBLE_EQ(step.busiest, 4 * 3);
  EXPECT_DOUBLE_EQ(step.busy, 2 * 4 * 3);
  ASSERT_EQ(step.partitions.size(), 2u);
  EXPECT_EQ(step.partitions[1].layers.first, 1);
  EXPECT_DOUBLE_EQ(step.partitions[1].work, 12);
  EXPECT_EQ(step.partitions[1].recompute, 0);
}

TEST(ModelStep, PartitionsHaveCheckpointModesOfTheirOwn) {
  PipelineSetup mixed = setup({1, 1}, 4, Checkpoint::kNever);
  mixed.checkpoints = {Checkpoint::kAlways, Checkpoint::kNever};
  const ModeledStep step = model_step(costs({1, 1}), 4, mixed, Machine());
  EXPECT_DOUBLE_EQ(step.partitions[0].recompute, 4);
  EXPECT_DOUBLE_EQ(step.partitions[1].recompute, 0);
  EXPECT_DOUBLE_EQ(model_step(costs({1, 1}), 4, mixed, Machine(), {false, true, true}).step, 15);
  EXPECT_GT(step.step, 15);
}

TEST(ModelStep, ExceptLastUnderOneForwardOneBackwardSparesTheLastPartition) {
  const ModeledStep step = model_step(
      costs({1, 1}), 4, setup({1, 1}, 4, Checkpoint::kExceptLast, {"1f1b", Schedule::one_f_one_b}),
      Machine());
  EXPECT_DOUBLE_EQ(step.partitions[0].recompute, 4);
  EXPECT_DOUBLE_EQ(step.partitions[1].recompute, 0);
}

TEST(ModelStep, AShortLastMicroBatchTakesLess) {
  const ModeledStep step = model_step(costs({1}), 5, setup({1}, 2, Checkpoint::kNever), Machine());
  EXPECT_DOUBLE_EQ(step.step, 5 * 3);  // a micro-batch of 3 rows and one of 2
}

TEST(ModelStep, TheLossIsInTheLastPartition) {
  Costs with_loss = costs({1, 1});
  with_loss.loss_forward = 5;
  with_loss.loss_backward = 7;
  const ModeledStep step =
      model_step(with_loss, 4, setup({1, 1}, 2, Checkpoint::kNever), Machine());
  EXPECT_DOUBLE_EQ(step.partitions[0].work, 12);
  EXPECT_DOUBLE_EQ(step.partitions[1].work, 12 + 4 * 12);
}

TEST(ModelStep, CoresAndContention) {
  const PipelineSetup two = setup({1, 1}, 4, Checkpoint::kNever);
  Machine machine;
  machine.cores = 1;
  EXPECT_DOUBLE_EQ(model_step(costs({1, 1}), 4, two, machine).step, 2 * 4 * 3);
  machine.cores = 2;
  machine.contention = 1.5;
  // In the 15 seconds of a step without contention, both workers are busy from 1 to 4 and from 7 to
  // 13. These 9 seconds take 1.5 times as long.
  EXPECT_DOUBLE_EQ(model_step(costs({1, 1}), 4, two, machine).step, 6 + 9 * 1.5);
  EXPECT_DOUBLE_EQ(model_step(costs({1, 1}), 4, two, machine, {true, true, false}).step, 15);
}

TEST(ModelStep, TransfersTakeLatencyAndBytesOverBandwidth) {
  const PipelineSetup two = setup({1, 1}, 1, Checkpoint::kNever);
  Machine machine;
  machine.latency = 0.25;
  machine.bandwidth = 50;
  // The activation's 100 bytes go over the link, and so do the 100 bytes of its gradient: 0.25 s
  // and 2 s each time.
  EXPECT_DOUBLE_EQ(model_step(costs({1, 1}), 1, two, machine).step, 6 + 2 * (0.25 + 2));
  EXPECT_DOUBLE_EQ(model_step(costs({1, 1}), 1, two, machine, {true, false, true}).step, 6);
}

TEST(ModelStep, MemoryIsTouchedAnewWhereManyMicroBatchesAreHeld) {
  Costs fresh = costs({1, 1});
  fresh.fresh_memory = 0.1;  // with 10 bytes a cell's memory takes one second
  const auto busy = [&](Checkpoint mode, const ScheduleChoice& schedule) {
    return model_step(fresh, 4, setup({1, 1}, 4, mode, schedule), Machine()).busy;
  };
  const ScheduleChoice fill_drain = {"gpipe", Schedule::gpipe};
  const ScheduleChoice in_turns = {"1f1b", Schedule::one_f_one_b};
  EXPECT_DOUBLE_EQ(busy(Checkpoint::kNever, fill_drain), 24 + 8);
  // Under 1F1B less memory is touched anew: the first stage holds two of the four micro-batches,
  // and the second holds one.
  EXPECT_NEAR(busy(Checkpoint::kNever, in_turns), 24 + 4.0 / 3, 1e-9);
  // Only the 8 recomputes are added.
  EXPECT_DOUBLE_EQ(busy(Checkpoint::kAlways, fill_drain), 24 + 8);
}

TEST(ModelStep, ASkipTravelsBesideTheActivation) {
  Costs skips = costs({1, 1, 1});
  skips.profiles[0].skips = {{0, 2, 1000}};
  Machine machine;
  machine.bandwidth = 100;
  // The activations arrive at the last stage after two transfers of 1 s and a forward of 1 s. The
  // skip takes 10 s after the first forward, so it decides; the same holds for the backwards.
  EXPECT_DOUBLE_EQ(model_step(skips, 1, setup({1, 1, 1}, 1, Checkpoint::kNever), machine).step,
                   (1 + 10 + 1) + (2 + 10 + 2));
}

TEST(ModelStep, WithoutDirectSkipsTheyGoFromStageToStage) {
  Costs skips = costs({1, 1, 1, 1});
  skips.profiles[0].skips = {{0, 3, 1000}, {1, 2, 200}};
  Machine machine;
  machine.bandwidth = 100;
  PipelineSetup hops = setup({1, 1, 1, 1}, 1, Checkpoint::kNever);
  hops.direct_skips = false;
  // Each of the three hops takes 10 s for the skip, during which nothing else can be done.
  EXPECT_DOUBLE_EQ(model_step(skips, 1, hops, machine).step, (4 + 3 * 10) + (8 + 3 * 10));
  // Without direct skips the second and the third stage also hold the skip of 1000 bytes among
  // their inputs.
  const std::vector<int64_t> held = model_memory(skips, 1, hops, 2).partitions;
  hops.direct_skips = true;
  const std::vector<int64_t> direct = model_memory(skips, 1, hops, 2).partitions;
  EXPECT_THAT((std::vector<int64_t>{held[0] - direct[0], held[1] - direct[1], held[2] - direct[2],
                                    held[3] - direct[3]}),
              ElementsAre(0, 1000, 1000, 0));
  // With one partition the skips stay inside it, and take no time.
  PipelineSetup one_partition = setup({4}, 1, Checkpoint::kNever);
  one_partition.direct_skips = false;
  EXPECT_DOUBLE_EQ(model_step(skips, 1, one_partition, machine).step, 12);
}

// Predictions are the same to the last bit as those from before all predictions used one model of a
// step.
TEST(ModelStep, PredictionsAreTheSameToTheLastBit) {
  Costs irregular;
  balance::Profile profile = testing::irregular_profile(/*halves=*/false);
  irregular.profiles = {profile};
  profile.batch_rows = 8;
  profile.input *= 2;
  for (balance::LayerProfile& layer : profile.layers) {
    layer.forward *= 1.5;
    layer.backward *= 1.75;
    layer.kept *= 2;
    layer.output *= 2;
  }
  for (balance::SkipProfile& skip : profile.skips) skip.bytes *= 2;
  irregular.profiles.push_back(profile);
  irregular.loss_forward = 1.0 / 256;
  irregular.loss_backward = 1.0 / 128;
  irregular.fresh_memory = 1.0 / 65536;
  Machine machine;
  machine.cores = 2;
  machine.contention = 1.25;
  machine.bandwidth = 16384;
  machine.latency = 1.0 / 256;
  struct Prediction {
    const char* schedule;
    bool direct_skips;
    double step;
    double busy;
    std::vector<int64_t> memory;
  };
  const std::vector<Prediction> predictions = {
      {"1f1b", true, 7.336151123046875, 18.14959716796875, {8922, 1867, 3128, 2114}},
      {"gpipe", true, 7.352996826171875, 17.111236572265625, {10922, 2251, 5720, 6194}},
      {"zb-h1", true, 7.1805715560913086, 21.874680519104004, {8922, 2559, 4856, 5174}},
      {"1f1b", false, 7.413787841796875, 17.93914794921875, {8922, 4171, 4152, 2114}},
      {"gpipe", false, 7.423797607421875, 16.908599853515625, {10922, 6091, 8280, 6194}},
      {"zb-h1", false, 7.1893606185913086, 21.186753273010254, {8922, 5631, 6904, 5174}},
  };
  for (const Prediction& prediction : predictions) {
    PipelineSetup each = setup({2, 2, 3, 2}, 5, Checkpoint::kNever,
                               {prediction.schedule, schedule_by_name(prediction.schedule)});
    each.checkpoints[0] = Checkpoint::kAlways;
    each.checkpoints[1] = Checkpoint::kExceptLast;
    each.direct_skips = prediction.direct_skips;
    const ModeledStep step = model_step(irregular, 36, each, machine);
    EXPECT_EQ(step.step, prediction.step) << prediction.schedule;
    EXPECT_EQ(step.busy, prediction.busy) << prediction.schedule;
    EXPECT_EQ(step.busiest, 3.5);
    EXPECT_EQ(step.work, 9.890625);
    EXPECT_EQ(model_memory(irregular, 36, each, 3).partitions, prediction.memory)
        << prediction.schedule;
  }
}

TEST(ModelStep, RefusesWhatDoesNotFit) {
  EXPECT_THROW(model_step(costs({1, 1}), 4, setup({1, 2}, 4, Checkpoint::kNever), Machine()),
               std::invalid_argument);
  const ScheduleChoice other = {"other",
                                [](int64_t stages, int64_t) { return Schedule::gpipe(stages, 3); }};
  EXPECT_THROW(model_step(costs({1, 1}), 4, setup({1, 1}, 4, Checkpoint::kNever, other), Machine()),
               std::invalid_argument);
}

TEST(ModelMemory, EachPartitionByItsOwnMode) {
  Costs both = costs({1, 1});
  both.profiles[0].layers[0].parameters = 1000;
  PipelineSetup mixed = setup({1, 1}, 4, Checkpoint::kNever);
  mixed.checkpoints = {Checkpoint::kNever, Checkpoint::kAlways};
  // A stage that never recomputes holds the input and the kept bytes (1 + 10) of four
  // micro-batches. A stage that always recomputes holds four inputs (100 each) and what one
  // recompute keeps (10).
  EXPECT_THAT(model_memory(both, 4, mixed, 2).partitions,
              ElementsAre(2000 + 4 * (1 + 10), 4 * 100 + 10));
  EXPECT_THAT(model_memory(both, 4, mixed, 3).partitions,
              ElementsAre(3000 + 4 * (1 + 10), 4 * 100 + 10));
  EXPECT_THAT(model_memory(both, 4, mixed, 3).workers,
              ElementsAre(3000 + 4 * (1 + 10), 4 * 100 + 10));
}

TEST(ModelMemory, AWorkerHoldsWhatItsPartitionsHoldTogether) {
  const ScheduleChoice v = {"v", [](int64_t, int64_t) {
                              return Schedule::from_text(
                                  "stages 3\nmicro_batches 1\nworker 0: F0.0 F2.0 B2.0 B0.0\n"
                                  "worker 1: F1.0 B1.0\n");
                            }};
  const ModeledMemory memory =
      model_memory(costs({1, 1, 1}), 1, setup({1, 1, 1}, 1, Checkpoint::kNever, v), 2);
  EXPECT_THAT(memory.partitions, ElementsAre(1 + 10, 100 + 10, 100 + 10));
  EXPECT_THAT(memory.workers, ElementsAre(1 + 10 + 100 + 10, 100 + 10));
}

}  // namespace
}  // namespace gpipe::diagnosis
