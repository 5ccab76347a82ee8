// Tests plans of schedules with offloads against what steps take on the fake accelerator.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "balance/memory/memory_plan.h"
#include "balance/memory/memory_plan_text.h"
#include "gpipe/gpipe.h"
#include "gpipe/schedule/named_schedule.h"
#include "gpipe/schedule/offloads.h"
#include "gpipe/testing/device.h"
#include "gpipe/testing/fake_accelerator/allocator.h"
#include "gpipe/testing/fake_accelerator/backend.h"
#include "meta/meta_scope.h"

namespace gpipe::balance {
namespace {

using gpipe::testing::fake::allocator;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::ThrowsMessage;

constexpr int64_t kMicroBatches = 4;
constexpr int64_t kSide = 128;
constexpr int64_t kRows = 512;                      // of a micro-batch
constexpr int64_t kActivation = kRows * kSide * 4;  // bytes

at::Tensor mean_of_squares(const Tensors& outputs, const Tensors& /*targets*/) {
  return outputs[0].pow(2).mean();
}

// All of its sizes are powers of two, as blocks of the fake accelerator are.
torch::nn::Sequential model() {
  torch::nn::Sequential layers;
  for (int k = 0; k < 8; ++k) {
    layers->push_back(torch::nn::Linear(kSide, kSide));
    layers->push_back(torch::nn::Tanh());
  }
  return layers;
}

Schedule lowered(const Schedule& schedule) {
  SimulateOptions costs;
  costs.offload.bytes = [](const Action&) { return 1.0; };
  costs.offload.to_host = costs.offload.to_device = 2.0;
  return with_offloads(schedule, Routes::create(schedule.stages()), costs);
}

MemoryPlan planned(const Schedule& schedule, Checkpoint mode, c10::DeviceType type = c10::kCUDA,
                   int64_t rows = kRows) {
  const torch::nn::Sequential on_meta = [] {
    const MetaScope meta;
    return model();
  }();
  const at::Tensor input = torch::empty({kMicroBatches * rows, kSide}, torch::kMeta);
  return memory_plan(on_meta, {input}, {}, mean_of_squares,
                     MemoryPlanOptions({8, 8})
                         .chunks(kMicroBatches)
                         .checkpoint(mode)
                         .schedule([&](int64_t, int64_t) { return schedule; })
                         .device_type(type));
}

// [device] The most that two steps take.
std::vector<size_t> measured(const Schedule& schedule, Checkpoint mode) {
  std::vector<size_t> before;
  for (int device = 0; device < 2; ++device) before.push_back(allocator().in_use(device));
  GPipe pipe(
      model(),
      GPipeOptions({8, 8}).devices(testing::devices(2)).chunks(kMicroBatches).checkpoint(mode));
  const at::Tensor input = torch::zeros({kMicroBatches * kRows, kSide}).to(pipe->devices().front());
  for (int device = 0; device < 2; ++device) allocator().reset_peak(device);
  for (int step = 0; step < 2; ++step) {
    pipe->step({input}, {}, mean_of_squares, StepOptions().schedule(schedule));
    pipe->zero_grad();
  }
  std::vector<size_t> most;
  for (int device = 0; device < 2; ++device) {
    most.push_back(allocator().peak(device) - before[static_cast<size_t>(device)]);
  }
  return most;
}

class OffloadPlanTest : public testing::DeviceTest {};

// When a packet arrives depends on the threads, with and without offloads: one in each direction
// may be there earlier or later than in the plan.
TEST_F(OffloadPlanTest, IsWithinTwoPacketsOfWhatStepsTake) {
  for (const Checkpoint mode : {Checkpoint::kNever, Checkpoint::kAlways}) {
    for (const Schedule& plain :
         {Schedule::gpipe(2, kMicroBatches), Schedule::one_f_one_b(2, kMicroBatches),
          schedule_by_name("zb-h1", 2, kMicroBatches)}) {
      const Schedule low = lowered(plain);
      for (const Schedule& schedule : {plain, low}) {
        SCOPED_TRACE(std::string(to_text(mode)) + "\n" + schedule.to_text());
        const MemoryPlan plan = planned(schedule, mode);
        const std::vector<size_t> took = measured(schedule, mode);
        for (size_t device = 0; device < 2; ++device) {
          const auto bytes = static_cast<double>(plan.devices[device].peak.bytes);
          EXPECT_NEAR(static_cast<double>(took[device]), bytes, 0.01 * bytes + 2 * kActivation)
              << "device " << device;
        }
        EXPECT_EQ(plan.pinned.empty(), schedule == plain);
      }
    }
  }
}

TEST_F(OffloadPlanTest, SaysWhatTheOffloadsAreWorth) {
  const Schedule plain = Schedule::gpipe(2, kMicroBatches);
  const Schedule low = Schedule::from_text(
      "stages 2\nmicro_batches 4\n"
      "worker 0: F0.0 O0.0 F0.1 O0.1 F0.2 O0.2 F0.3 B0.3 L0.2 B0.2 L0.1 B0.1 L0.0 B0.0\n"
      "worker 1: F1.0 F1.1 F1.2 F1.3 B1.3 B1.2 B1.1 B1.0\n");
  const MemoryPlan with = planned(low, Checkpoint::kNever);
  const MemoryPlan without = planned(plain, Checkpoint::kNever);
  // The first step's first cell stays, and so does the output that the other stage gets. A hidden
  // layer keeps its input, which is its predecessor's output.
  EXPECT_NEAR(static_cast<double>(without.devices[0].peak.bytes - with.devices[0].peak.bytes),
              2 * 3 * kActivation, 0.01 * kActivation);
  // Four cells can be away or on their way at once, each with all but its output.
  EXPECT_THAT(with.pinned, ElementsAre(4 * 3 * kActivation, 0));
  EXPECT_THAT(without.pinned, IsEmpty());
  EXPECT_THAT(planned(low, Checkpoint::kNever, c10::kCUDA, kRows * 3 / 4).pinned,
              ElementsAre(4 * 3 * kActivation, 0))
      << "LibTorch rounds blocks up to powers of two";
  EXPECT_THAT(to_text(with), HasSubstr("of the host's pinned memory"));
  EXPECT_THAT(to_json(with), HasSubstr("\"pinned_bytes\""));
  EXPECT_THAT((std::vector{to_text(without), to_json(without)}), Each(Not(HasSubstr("pinned"))));
}

TEST_F(OffloadPlanTest, RefusesCpus) {
  const Schedule low = lowered(Schedule::gpipe(2, kMicroBatches));
  EXPECT_THAT([&] { planned(low, Checkpoint::kNever, c10::kCPU); },
              ThrowsMessage<c10::ValueError>(HasSubstr("the plan is for CPUs")));
}

}  // namespace
}  // namespace gpipe::balance
