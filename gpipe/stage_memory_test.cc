#include "gpipe/stage_memory.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <cstdint>
#include <stdexcept>
#include <vector>

#include "gpipe/testing/device.h"

namespace gpipe {
namespace {

namespace nn = torch::nn;
using testing::device;

constexpr int64_t kChunks = 4;
constexpr int64_t kRows = 16;  // per micro-batch
constexpr int64_t kWidth = 128;
// One activation of one micro-batch, a multiple of the blocks of CUDA's allocator.
constexpr int64_t kActivation = kRows * kWidth * static_cast<int64_t>(sizeof(float));

class StageMemoryTest : public testing::DeviceTest {
 protected:
  // A pipeline with layers[j] tanhs in stage j; each tanh keeps its output. Stages share a device.
  static GPipe tanhs(const std::vector<int64_t>& layers, Checkpoint mode) {
    nn::Sequential model;
    for (const int64_t count : layers) {
      for (int64_t k = 0; k < count; ++k) model->push_back(nn::Tanh());
    }
    return GPipe(model, GPipeOptions(layers)
                            .devices(std::vector<c10::Device>(layers.size(), device()))
                            .chunks(kChunks)
                            .checkpoint(mode));
  }
  static void step(GPipe& pipe) {
    const at::Tensor x = torch::rand({kChunks * kRows, kWidth}, device()).requires_grad_();
    pipe->step(
        {x}, {}, [](const Tensors& outputs, const Tensors&) { return outputs[0].sum(); },
        StepOptions().schedule(Schedule::gpipe));
  }
};

TEST_F(StageMemoryTest, StagesOnOneDeviceAreToldApart) {
  GPipe pipe = tanhs({5, 2, 1}, Checkpoint::kNever);
  step(pipe);  // allocates what is made only once
  const StageMemory memory(pipe);
  step(pipe);
  const std::vector<StagePeak> peaks = memory.stages();
  ASSERT_EQ(peaks.size(), 3u);
  const int64_t layers[] = {5, 2, 1};
  for (int64_t j = 0; j < 3; ++j) {
    EXPECT_EQ(peaks[j].stage, j);
    EXPECT_EQ(peaks[j].device, device());
    EXPECT_EQ(peaks[j].model, 0);
    // A stage holds every activation of every micro-batch. In backward it also holds the gradient
    // in progress, the next gradient and, in the first stage, the gradients of the input of all
    // micro-batches; by then some activations are freed.
    EXPECT_GE(peaks[j].taken, layers[j] * kChunks * kActivation);
    EXPECT_LE(peaks[j].taken, (layers[j] * kChunks + 4) * kActivation);
  }
  const std::vector<DevicePeak> devices = memory.devices();
  ASSERT_EQ(devices.size(), 1u);
  EXPECT_EQ(devices[0].device, device());
  EXPECT_GE(devices[0].allocated, (5 + 2 + 1) * kChunks * kActivation);
  EXPECT_EQ(devices[0].reserved.has_value(), testing::for_gpus());
  EXPECT_GE(devices[0].reserved.value_or(devices[0].allocated), devices[0].allocated);
}

TEST_F(StageMemoryTest, CheckpointedStagesTakeLess) {
  GPipe pipe = tanhs({6, 6}, Checkpoint::kAlways);
  step(pipe);
  const StageMemory memory(pipe);
  step(pipe);
  // A stage holds the outputs that the next stage keeps, the 6 activations of one graph, and
  // gradients.
  const std::vector<StagePeak> peaks = memory.stages();
  EXPECT_GE(peaks[0].taken, kChunks * kActivation);
  for (const StagePeak& peak : peaks) EXPECT_LE(peak.taken, (kChunks + 6 + 4) * kActivation);
}

TEST_F(StageMemoryTest, AResetBeginsAnew) {
  GPipe pipe = tanhs({3, 3}, Checkpoint::kNever);
  StageMemory memory(pipe);
  step(pipe);
  EXPECT_GT(memory.stages()[1].taken, 0);
  memory.reset();
  for (const StagePeak& peak : memory.stages()) EXPECT_EQ(peak.taken, 0) << peak.stage;
  step(pipe);
  EXPECT_GT(memory.stages()[1].taken, 0);
}

TEST_F(StageMemoryTest, GradientsOfParametersAreTheirStagesUntilTheyAreFreed) {
  GPipe pipe(nn::Sequential(nn::Linear(nn::LinearOptions(64, 64).bias(false)), nn::Tanh()),
             GPipeOptions({1, 1}).devices({device(), device()}));
  const at::Tensor x = torch::rand({1, 64}, device());
  const auto step = [&] {
    pipe->step({x}, {}, [](const Tensors& outputs, const Tensors&) { return outputs[0].sum(); });
  };
  step();  // allocates what is made only once: cuBLAS's work space
  pipe->zero_grad();
  StageMemory memory(pipe);
  step();
  constexpr int64_t kWeight = 64 * 64 * 4;
  EXPECT_EQ(memory.stages()[0].model, kWeight);
  EXPECT_EQ(memory.stages()[1].model, 0);
  memory.reset();
  EXPECT_EQ(memory.stages()[0].taken, kWeight) << "stage 0 takes only the weight's gradient";
  pipe->zero_grad();
  memory.reset();
  EXPECT_EQ(memory.stages()[0].taken, 0);
}

// Two pipelines may be made of the same layers. A StageMemory counts only the steps of its own.
TEST_F(StageMemoryTest, AnotherPipelineOfTheSameLayersIsNotCounted) {
  const nn::Tanh first, second;
  const auto make = [&] {
    return GPipe(nn::Sequential(first, second), GPipeOptions({1, 1})
                                                    .devices({device(), device()})
                                                    .chunks(kChunks)
                                                    .checkpoint(Checkpoint::kNever));
  };
  GPipe pipe = make();
  GPipe other = make();
  const StageMemory memory(pipe);
  step(other);
  for (const StagePeak& peak : memory.stages()) EXPECT_EQ(peak.taken, 0) << peak.stage;
  step(pipe);
  for (const StagePeak& peak : memory.stages()) EXPECT_GE(peak.taken, kChunks * kActivation);
}

TEST_F(StageMemoryTest, OnlyOneCountsAtATime) {
  GPipe pipe = tanhs({1, 1}, Checkpoint::kNever);
  const StageMemory memory(pipe);
  EXPECT_THROW(StageMemory{pipe}, std::logic_error);
  GPipe elsewhere(nn::Sequential(nn::Tanh()), GPipeOptions({1}).devices({c10::kMeta}));
  EXPECT_THROW(StageMemory{elsewhere}, c10::ValueError);
}

}  // namespace
}  // namespace gpipe
