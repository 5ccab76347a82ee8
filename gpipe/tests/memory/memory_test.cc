// Compares the peak of live memory with the memory that must be alive. Checkpointing must save
// memory.

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/utils.h>

#include <cstdint>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/testing/live_memory.h"

namespace gpipe {
namespace {

namespace nn = torch::nn;

constexpr int64_t kStages = 2;
constexpr int64_t kLayersEach = 16;
constexpr int64_t kMicroBatches = 8;
constexpr int64_t kRows = 64;  // rows of a micro-batch
constexpr int64_t kWidth = 256;
// The bytes of one activation of one micro-batch. Every layer is a tanh, which keeps its output for
// its backward.
constexpr int64_t kActivation = kRows * kWidth * static_cast<int64_t>(sizeof(float));
constexpr double kTolerance = 1.05;

nn::Sequential tanhs() {
  nn::Sequential model;
  for (int64_t k = 0; k < kStages * kLayersEach; ++k) model->push_back(nn::Tanh());
  return model;
}

LossFn mse() {
  return [](const Tensors& outputs, const Tensors& targets) {
    return nn::functional::mse_loss(outputs[0], targets[0]);
  };
}

struct Peaks {
  int64_t peak = 0;  // above the bytes that were alive before the step
  int64_t left = 0;  // bytes that are alive after it, above those before
};

Peaks step_peak(Checkpoint mode, const ScheduleGenerator& schedule) {
  GPipe pipe(tanhs(), GPipeOptions({kLayersEach, kLayersEach})
                          .devices({c10::kCPU, c10::kCPU})
                          .chunks(kMicroBatches)
                          .checkpoint(mode));
  const torch::Tensor input = torch::randn({kMicroBatches * kRows, kWidth}).requires_grad_();
  const torch::Tensor target = torch::randn({kMicroBatches * kRows, kWidth});
  auto run = [&] {
    pipe->step({input}, {target}, mse(), StepOptions().schedule(schedule));
    input.mutable_grad() = torch::Tensor();
  };
  run();  // the first step makes allocations that happen only once
  const int64_t before = testing::live_bytes();
  testing::reset_peak_bytes();
  run();
  return {testing::peak_bytes() - before, testing::live_bytes() - before};
}

class Memory : public ::testing::Test {
 protected:
  void SetUp() override {
    at::set_num_threads(1);
    testing::count_live_memory();
  }
};

TEST_F(Memory, PlainModelHoldsEveryActivation) {
  nn::Sequential model = tanhs();
  const torch::Tensor input = torch::randn({kMicroBatches * kRows, kWidth}).requires_grad_();
  const torch::Tensor target = torch::randn({kMicroBatches * kRows, kWidth});
  const int64_t before = testing::live_bytes();
  testing::reset_peak_bytes();
  nn::functional::mse_loss(model->forward(input), target).backward();
  const double batch = static_cast<double>(kMicroBatches * kActivation);
  // Alive at the peak are every layer's output, the loss's gradient, and the gradient in progress.
  const double theory = batch * static_cast<double>(kStages * kLayersEach + 2);
  EXPECT_LE(static_cast<double>(testing::peak_bytes() - before), theory * kTolerance);
  EXPECT_GE(static_cast<double>(testing::peak_bytes() - before), theory / kTolerance);
}

TEST_F(Memory, CheckpointedFillDrainHoldsInputsAndOneGraphPerStage) {
  const Peaks measured = step_peak(Checkpoint::kAlways, Schedule::gpipe);
  // All micro-batches wait between forward and backward, so each stage holds all its inputs. The
  // first stage's inputs belong to the caller.
  const int64_t inputs = (kStages - 1) * kMicroBatches;
  const int64_t outputs = kMicroBatches;  // the loss keeps them
  // Each stage holds the graph of one cell, the gradient that came in, and the two gradients of the
  // layer that is in backward. One more tensor is within the loss's own backward.
  const int64_t cells = kStages * (kLayersEach + 3) + 1;
  const int64_t theory = (inputs + outputs + cells) * kActivation;
  EXPECT_LE(static_cast<double>(measured.peak), static_cast<double>(theory) * kTolerance);
  // The plain model would hold four times the limit here, so checkpointing does save memory.
  EXPECT_LT(measured.peak, kStages * kLayersEach * kMicroBatches * kActivation / 4);
  EXPECT_EQ(measured.left, 0);
}

TEST_F(Memory, OneForwardOneBackwardHoldsFewerMicroBatches) {
  const Peaks measured = step_peak(Checkpoint::kNever, Schedule::one_f_one_b);
  // Stage j has at most p - j micro-batches in flight, so the two stages have 2 and 1 graphs. In
  // addition each stage has a cell in forward, or the gradients in backward. The input's gradients
  // are kept until the end.
  const int64_t graphs = (2 + 1) * kLayersEach;
  const int64_t passing = kStages * 3;
  // The gradients of the input are there once for every micro-batch, and once more joined.
  const int64_t theory = (graphs + passing + 2 * kMicroBatches) * kActivation;
  EXPECT_LE(static_cast<double>(measured.peak), static_cast<double>(theory) * kTolerance);
  EXPECT_EQ(measured.left, 0);
}

// A linear layer's gradient is the transpose of a product. That gradient must become the weight's
// .grad without a copy.
TEST_F(Memory, FirstGradientsAreNotCopied) {
  for (const bool hook : {false, true}) {
    const nn::Linear layer(nn::LinearOptions(kWidth, kWidth).bias(false));
    if (hook) layer->weight.register_hook([](const torch::Tensor& gradient) { return gradient; });
    GPipe pipe(nn::Sequential(layer), GPipeOptions({1}).devices({c10::kCPU}).chunks(1));
    const torch::Tensor input = torch::randn({1, kWidth});
    const torch::Tensor target = torch::randn({1, kWidth});
    int64_t before = 0;
    for (int call = 0; call < 2; ++call) {  // the first call also allocates what is made once
      pipe->zero_grad();
      before = testing::live_bytes();
      testing::reset_peak_bytes();
      pipe->step({input}, {target}, mse());
    }
    const auto weight = static_cast<double>(layer->weight.nbytes());
    EXPECT_LE(static_cast<double>(testing::peak_bytes() - before), weight * kTolerance)
        << (hook ? "with a hook" : "");
  }
}

TEST_F(Memory, NothingIsAliveAfterForwardAndBackward) {
  for (Checkpoint mode : {Checkpoint::kAlways, Checkpoint::kExceptLast, Checkpoint::kNever}) {
    GPipe pipe(tanhs(), GPipeOptions({kLayersEach, kLayersEach})
                            .devices({c10::kCPU, c10::kCPU})
                            .chunks(kMicroBatches)
                            .checkpoint(mode));
    const torch::Tensor input = torch::randn({kMicroBatches * kRows, kWidth}).requires_grad_();
    auto run = [&] {
      pipe->forward(input).mean().backward();
      input.mutable_grad() = torch::Tensor();
    };
    run();
    const int64_t before = testing::live_bytes();
    run();
    EXPECT_EQ(testing::live_bytes(), before) << to_text(mode);
    {
      // The output of this forward is dropped without a backward, which must free all that the
      // forward keeps.
      const torch::Tensor output = pipe->forward(input);
      EXPECT_GT(testing::live_bytes(), before);
    }
    EXPECT_EQ(testing::live_bytes(), before) << to_text(mode);
  }
}

}  // namespace
}  // namespace gpipe
