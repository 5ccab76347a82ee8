#include "experiments/rows/memory_run.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <atomic>
#include <vector>

#include "balance/memory/optimizer_flag.h"

namespace gpipe::experiments {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::testing::ThrowsMessage;

constexpr int64_t kMiB = 1 << 20;

const RunContext kGoOn;

// A run of a U-Net with 4.9 million parameters in 109 layers.
MemoryRun unet(const std::vector<int64_t>& balance) {
  MemoryRun run;
  run.network.model = models::model_by_name("unet:2,16", 64);
  run.batch_size = 8;
  run.setup.balance = balance;
  run.devices = {c10::kCPU};
  if (!balance.empty()) run.devices.assign(balance.size(), c10::kCPU);
  run.setup.chunks = 4;
  run.setup.schedule = {"gpipe", Schedule::gpipe};
  run.optimizer = balance::parse_optimizer("sgd");
  return run;
}

TEST(MemoryRunTest, CountsParametersAndPeaks) {
  const MemoryFigures figures = run_memory(unet({}), kGoOn);
  EXPECT_EQ(figures.parameters, 4519160);
  EXPECT_EQ(figures.parameter_bytes, 4 * 4519160);
  ASSERT_THAT(figures.peaks, SizeIs(1));
  // A run holds the parameters, their gradients, and more than 1 MiB of activations.
  EXPECT_GT(figures.total(), 2 * figures.parameter_bytes + kMiB);
}

TEST(MemoryRunTest, PartitionsOnTheCpuAreOneDevice) {
  const MemoryFigures figures = run_memory(unet({50, 59}), kGoOn);
  ASSERT_THAT(figures.peaks, SizeIs(1));
  EXPECT_GT(figures.total(), 2 * figures.parameter_bytes);
}

TEST(MemoryRunTest, RecomputationTakesLess) {
  MemoryRun run = unet({109});
  run.setup.checkpoint_all(Checkpoint::kAlways);
  const int64_t always = run_memory(run, kGoOn).total();
  run.setup.checkpoint_all(Checkpoint::kNever);
  EXPECT_LT(always + kMiB, run_memory(run, kGoOn).total());
}

// RMSprop keeps a number for each parameter, and plain SGD nothing. So a run with RMSprop must take
// as much more as the parameters have bytes.
TEST(MemoryRunTest, TheOptimizersStateCounts) {
  MemoryRun run = unet({});
  const int64_t sgd = run_memory(run, kGoOn).total();
  run.optimizer = balance::parse_optimizer("rmsprop");
  const MemoryFigures rmsprop = run_memory(run, kGoOn);
  EXPECT_GE(rmsprop.total(), sgd + rmsprop.parameter_bytes);
}

// A run of a network without convolutions. For convolutions the CPU makes copies whose size depends
// on the processor.
MemoryRun linear_layers(const std::vector<int64_t>& balance) {
  MemoryRun run = unet(balance);
  run.network.model.make = [] {
    torch::nn::Sequential network;
    for (int k = 0; k < 6; ++k) {
      network->push_back(torch::nn::Linear(512, 512));
      network->push_back(torch::nn::ReLU());
    }
    return network;
  };
  run.network.model.row = {512};
  run.network.model.loss = models::Loss::kCrossEntropy;
  run.network.model.classes = 512;
  run.batch_size = 4096;
  return run;
}

// A plan's peak of tensors must be within 1 % of a run's. balance/memory/memory_plan_test compares
// more networks and schedules.
TEST(MemoryRunTest, APlanIsNearWhatARunTakes) {
  for (const auto& balance : {std::vector<int64_t>{}, std::vector<int64_t>{12}}) {
    const MemoryFigures run = run_memory(linear_layers(balance), kGoOn);
    const PlannedMemory plan = plan_memory(linear_layers(balance), 0, kGoOn);
    EXPECT_EQ(plan.figures.parameters, run.parameters);
    EXPECT_EQ(plan.figures.parameter_bytes, run.parameter_bytes);
    EXPECT_NEAR(static_cast<double>(run.total()) / static_cast<double>(plan.live), 1.0, 0.01);
    // The allocator rounds blocks up and keeps what it was given back, so it reserves more than the
    // tensors take.
    EXPECT_GT(plan.figures.total(), plan.live);
    EXPECT_LT(plan.figures.total(), 2 * plan.live);
  }
}

// The memory of convolutions in addition to their tensors is in a run and not in a plan
// (docs/design/memory_plan.md).
TEST(MemoryRunTest, ConvolutionsTakeAtLeastWhatIsPlanned) {
  for (const auto& balance : {std::vector<int64_t>{}, std::vector<int64_t>{109}}) {
    const MemoryFigures run = run_memory(unet(balance), kGoOn);
    const PlannedMemory plan = plan_memory(unet(balance), 0, kGoOn);
    EXPECT_EQ(plan.figures.parameter_bytes, run.parameter_bytes);
    EXPECT_GE(run.total(), plan.live);
  }
}

TEST(MemoryRunTest, APlanHasADeviceForEachPartition) {
  EXPECT_THAT(plan_memory(unet({50, 59}), 0, kGoOn).figures.peaks, SizeIs(2));
}

TEST(MemoryRunTest, APlanSaysWhereMemoryRunsOut) {
  const PlannedMemory free = plan_memory(unet({}), 0, kGoOn);
  EXPECT_FALSE(free.out_of_memory);
  const PlannedMemory full = plan_memory(unet({}), free.live / 2, kGoOn);
  EXPECT_TRUE(full.out_of_memory);
  EXPECT_EQ(full.figures.total(), free.figures.total());
}

// A setup may come from a diagnosis, say. What it leaves out holds beside the row's own ablation.
TEST(MemoryRunTest, ARowLeavesOutWhatItsSetupLeavesOut) {
  MemoryRun run = unet({50, 59});
  run.devices = {c10::kCPU, c10::kCPU};
  run.ablation.copy_streams = false;
  EXPECT_TRUE(run.options().ablation().direct_skips);
  run.setup.direct_skips = false;
  EXPECT_FALSE(run.options().ablation().direct_skips);
  EXPECT_FALSE(run.options().ablation().copy_streams);
  run.setup.direct_skips = true;
  run.ablation.direct_skips = false;
  EXPECT_FALSE(run.options().ablation().direct_skips);
}

// A row has one input. A plan ignored that its setup shares others, which a run refuses.
TEST(MemoryRunTest, APlanSharesTheInputsOfTheSetup) {
  MemoryRun run = linear_layers({6, 6});
  run.setup.shared_inputs = {1};
  const auto refused = ThrowsMessage<c10::ValueError>(HasSubstr("shared_inputs names number 1"));
  EXPECT_THAT([&] { (void)run_memory(run, kGoOn); }, refused);
  EXPECT_THAT([&] { (void)plan_memory(run, 0, kGoOn); }, refused);
}

TEST(MemoryRunTest, CanBeStopped) {
  for (const auto& balance : {std::vector<int64_t>{}, std::vector<int64_t>{50, 59}}) {
    std::atomic<int> calls = 0;  // several threads count
    RunContext context;
    context.interrupted = [&calls] { return ++calls == 3; };
    EXPECT_THROW(run_memory(unet(balance), context), command::Interrupted);
    calls = 0;
    EXPECT_THROW(plan_memory(unet(balance), 0, context), command::Interrupted);
  }
}

}  // namespace
}  // namespace gpipe::experiments
