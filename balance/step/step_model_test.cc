#include "balance/step/step_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <stdexcept>
#include <utility>
#include <vector>

#include "balance/step/recomputed_cells.h"
#include "gpipe/checkpoint.h"

namespace gpipe::balance {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// Layers that take 1 s forward and 2 s backward, keep 10 bytes and send 100.
Profile profile(int64_t layers) {
  Profile profile;
  profile.input = 1;
  for (int64_t k = 0; k < layers; ++k) {
    LayerProfile layer;
    layer.forward = 1;
    layer.backward = 2;
    layer.parameters = 1000;
    layer.buffers = 3;
    layer.kept = 10;
    layer.workspace = 7;
    layer.output = 100;
    profile.layers.push_back(layer);
  }
  return profile;
}

// A model of a step with one layer in each stage.
StepModel model(const Schedule& schedule, Checkpoint mode = Checkpoint::kNever) {
  const std::vector<int64_t> balance(static_cast<size_t>(schedule.stages()), 1);
  const std::vector<Checkpoint> modes(balance.size(), mode);
  StepModel result{schedule,
                   recomputed_cells(schedule, modes),
                   {cut_costs(profile(schedule.stages()), balance)}};
  result.micro_batches.resize(static_cast<size_t>(schedule.micro_batches()));
  return result;
}

double step(const StepModel& model) { return model.run().makespan; }

// Two stages on one worker, and one on another.
Schedule v_shape() {
  return Schedule::from_text(
      "stages 3\nmicro_batches 1\nworker 0: F0.0 F2.0 B2.0 B0.0\nworker 1: F1.0 B1.0\n");
}

TEST(StepModel, RunsItsActionsAsTheScheduleHasThem) {
  const StepModel plain = model(Schedule::gpipe(2, 4));
  EXPECT_EQ(step(plain), (4 + 2 - 1) * 3);
  EXPECT_THAT(plain.run().busy, ElementsAre(12, 12));
  EXPECT_EQ(plain.simulate().workers[1][4].start, 5) << "B1.3, after the forwards";
}

TEST(StepModel, RecomputesArePartOfBackwards) {
  const StepModel except_last = model(Schedule::gpipe(2, 4), Checkpoint::kExceptLast);
  EXPECT_THAT(except_last.run().busy, ElementsAre(12 + 3, 12 + 3));
  EXPECT_EQ(except_last.recompute_seconds({ActionKind::kBackward, 0, 2}), 1);
  EXPECT_EQ(except_last.recompute_seconds({ActionKind::kInputGradient, 0, 2}), 1);
  EXPECT_EQ(except_last.recompute_seconds({ActionKind::kWeightGradient, 0, 2}), 0);
  EXPECT_EQ(except_last.recompute_seconds({ActionKind::kForward, 0, 2}), 0);
  EXPECT_EQ(except_last.recompute_seconds({ActionKind::kBackward, 0, 3}), 0);
}

TEST(StepModel, EarlyRecomputesAreAllInTheLastStagesFirstBackward) {
  StepModel early = model(Schedule::gpipe(2, 4), Checkpoint::kAlways);
  early.early_recomputes = true;
  EXPECT_EQ(early.recompute_seconds({ActionKind::kBackward, 1, 3}), 4);
  EXPECT_EQ(early.recompute_seconds({ActionKind::kBackward, 1, 2}), 0);
  EXPECT_EQ(early.recompute_seconds({ActionKind::kBackward, 0, 2}), 1);
  early.micro_batches[0].size = 2.5;
  EXPECT_EQ(early.recompute_seconds({ActionKind::kBackward, 1, 3}), 5.5)
      << "the recompute grows with the size of the micro-batch";
}

TEST(StepModel, MicroBatchesHaveTheirCostsAndSizes) {
  StepModel uneven = model(Schedule::gpipe(1, 3), Checkpoint::kAlways);
  uneven.costs.push_back(uneven.costs.front());
  uneven.costs[1].stages[0].forward = uneven.costs[1].stages[0].recompute = 8;
  uneven.micro_batches = {{0, 1}, {0, 0.5}, {1, 1}};
  EXPECT_EQ(step(uneven), 1.5 * (1 + 1 + 2) + (8 + 8 + 2));
  uneven.machine.overhead = 0.25;
  EXPECT_EQ(step(uneven), 1.5 * (1 + 1 + 2) + (8 + 8 + 2) + 6 * 0.25)
      << "each of the 6 actions has the overhead";
}

TEST(StepModel, TheLossIsNotRecomputed) {
  StepModel with_loss = model(Schedule::gpipe(1, 2), Checkpoint::kAlways);
  with_loss.costs[0].stages[0].loss_forward = 16;
  with_loss.costs[0].stages[0].loss_backward = 32;
  EXPECT_EQ(step(with_loss), 2 * (1 + 1 + 2 + 16 + 32));
}

TEST(StepModel, TransfersTakeLatencyAndBytesOverBandwidth) {
  StepModel links = model(Schedule::gpipe(2, 1));
  links.machine.latency = 0.25;
  EXPECT_EQ(step(links), 6 + 2 * 0.25);
  links.machine.bandwidth = 50;
  EXPECT_EQ(step(links), 6 + 2 * (0.25 + 2));
  links.micro_batches[0].size = 2;
  EXPECT_EQ(step(links), 2 * 6 + 2 * (0.25 + 4));
}

TEST(StepModel, WithoutCopyStreamsACopyIsPartOfBothActions) {
  StepModel copies = model(Schedule::gpipe(2, 1));
  copies.machine.bandwidth = 50;
  copies.copy_streams = false;
  EXPECT_EQ(step(copies), 6 + 4 * 2);
  // The weight half of a backward sends nothing, so no copy is part of it.
  copies = model(Schedule::from_text(
      "stages 2\nmicro_batches 1\nworker 0: F0.0 I0.0 W0.0\nworker 1: F1.0 I1.0 W1.0\n"));
  copies.machine.bandwidth = 50;
  copies.copy_streams = false;
  EXPECT_THAT(copies.run().busy, ElementsAre(3 + 2 * 2, 3 + 2 * 2));
  // Nothing is copied between stages of one worker.
  copies = model(Schedule::from_text("stages 2\nmicro_batches 1\nworker 0: F0.0 F1.0 B1.0 B0.0\n"));
  copies.machine.bandwidth = 50;
  copies.copy_streams = false;
  EXPECT_EQ(step(copies), 6);
}

TEST(StepModel, CoresAndContention) {
  StepModel shared = model(Schedule::gpipe(2, 4));
  shared.machine.cores = 1;
  EXPECT_EQ(step(shared), 2 * 4 * 3);
  shared.machine.cores = 2;
  shared.machine.contention = 1.5;
  // Without contention the step takes 15 s. Both workers are busy from 1 s to 4 s and from 7 s to
  // 13 s, so 9 s are stretched.
  EXPECT_EQ(step(shared), 6 + 9 * 1.5);
  EXPECT_EQ(shared.simulate().makespan, 15);
}

TEST(StepModel, MemoryIsTouchedAnewWhereManyMicroBatchesAreHeld) {
  const auto busy = [](const Schedule& schedule, Checkpoint mode) {
    StepModel fresh = model(schedule, mode);
    fresh.fresh_memory = 0.125;  // 1.25 s for what a cell keeps
    return fresh.run().busy;
  };
  EXPECT_THAT(busy(Schedule::gpipe(2, 4), Checkpoint::kNever), ElementsAre(17, 17));
  EXPECT_THAT(busy(Schedule::gpipe(2, 4), Checkpoint::kAlways), ElementsAre(16, 16))
      << "the recomputes";
  // The first stage holds three of five micro-batches, the last stage one, for which no memory is
  // new.
  EXPECT_THAT(busy(Schedule::one_f_one_b(3, 5), Checkpoint::kNever),
              ElementsAre(18.125, 16.5625, 15));
}

TEST(StepModel, MemoryIsThatOfAllStagesOfAWorkerAtOnce) {
  const StepModel v = model(v_shape());
  const StepMemory stage = v.stage_memory(2, 2);
  EXPECT_EQ(stage.parameters, 2000);
  EXPECT_EQ(stage.buffers, 3);
  EXPECT_EQ(stage.held, 100 + 10);
  EXPECT_EQ(stage.workspace, 7);
  EXPECT_EQ(stage.bytes("a stage"), 2000 + 3 + 110 + 7);
  EXPECT_EQ(v.stage_memory(0, 3).bytes("a stage"), 3000 + 3 + 11 + 7);
  EXPECT_EQ(v.worker_memory(0, 2).bytes("a worker"), 2 * (2000 + 3) + 110 + 11 + 7);
  EXPECT_EQ(v.worker_memory(1, 2).bytes("a worker"), 2000 + 3 + 110 + 7);
}

TEST(StepModel, ARecomputedMicroBatchIsHeldDuringItsBackwardOnly) {
  EXPECT_EQ(model(Schedule::gpipe(1, 4), Checkpoint::kNever).stage_memory(0, 1).held, 4 * 11);
  EXPECT_EQ(model(Schedule::gpipe(1, 4), Checkpoint::kAlways).stage_memory(0, 1).held, 4 * 1 + 10);
  StepModel sizes = model(Schedule::gpipe(1, 2), Checkpoint::kAlways);
  sizes.micro_batches[0].size = 3;
  EXPECT_EQ(sizes.stage_memory(0, 1).held, 3 * 1 + 3 * 10)
      << "micro-batch 1 had its backward before, so only micro-batch 0 is still held";
  EXPECT_EQ(sizes.stage_memory(0, 1).workspace, 3 * 7);
}

TEST(StepModel, BetweenTheHalvesOfABackwardOnlyWhatWaitsIsHeld) {
  StepModel split = model(
      Schedule::from_text("stages 1\nmicro_batches 2\nworker 0: F0.0 I0.0 F0.1 I0.1 W0.0 W0.1\n"));
  EXPECT_EQ(split.stage_memory(0, 1).held, 2 * 11);
  split.costs[0].stages[0].waiting = 4;
  EXPECT_EQ(split.stage_memory(0, 1).held, 11 + 4);
  split.costs[0].stages[0].waiting = 40;
  EXPECT_EQ(split.stage_memory(0, 1).held, 2 * 40)
      << "what waits for W may be more than the activations";
}

// A cell keeps 10 bytes and 1 of its input, which stays.
TEST(StepModel, WhatIsOnTheHostIsNotHeldAndItsCopiesTakeTime) {
  StepModel offloads =
      model(Schedule::from_text("stages 1\nmicro_batches 3\n"
                                "worker 0: F0.0 F0.1 O0.0 F0.2 B0.2 L0.0 B0.1 B0.0\n"));
  EXPECT_EQ(offloads.stage_memory(0, 1).held, 3 * 11) << "the output is the caller's";
  offloads.costs[0].stages[0].returned = 4;
  EXPECT_EQ(offloads.stage_memory(0, 1).held, 3 * 11 - 6);
  offloads.costs[0].stages[0].returned = 0;
  EXPECT_EQ(offloads.stage_memory(0, 1).held, 3 * 11 - 10);
  EXPECT_EQ(step(offloads), 9);
  offloads.machine.host_bandwidth = 10;  // a copy takes 1 s
  EXPECT_EQ(step(offloads), 9);
  EXPECT_THAT(offloads.simulate().reload_waits, ElementsAre(0));
  offloads.machine.host_bandwidth = 2.5;
  EXPECT_EQ(step(offloads), 14) << "O0.0 waits from 2 s to 5 s, B0.0 from 10 s to 12 s";
  EXPECT_THAT(offloads.simulate().reload_waits, ElementsAre(2));
  offloads.micro_batches[0].size = 2;
  EXPECT_EQ(offloads.offloaded({ActionKind::kForward, 0, 0}), 20);
  EXPECT_EQ(offloads.stage_memory(0, 1).held, 2 * 11 + 11) << "before it goes";
}

TEST(StepModel, BytesThatOverflowAreRefused) {
  StepModel large = model(Schedule::gpipe(1, 1));
  large.costs[0].stages[0].parameters = int64_t{1} << 50;
  const StepMemory memory = large.stage_memory(0, 1e6);
  EXPECT_THAT([&] { (void)memory.bytes("stage 0"); },
              ThrowsMessage<std::invalid_argument>(
                  HasSubstr("stage 0 takes 1.1259e+21 bytes, more than a number holds; give a "
                            "smaller param_scale, got 1e+06")));
}

}  // namespace
}  // namespace gpipe::balance
