// Tests on a GPU that a forward and its backward, or a step until it reads its loss, make no call
// that is known to LibTorch as one that waits for the device: LibTorch can make such calls an
// error. host_waits_test is the same test for machines without a GPU.
#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/testing/device.h"
#include "gpipe/testing/function_layer.h"
#include "gpipe/testing/sample_models.h"

#if GPIPE_TORCH_HAS_CUDA
#include <c10/cuda/CUDAFunctions.h>
#endif

namespace gpipe {
namespace {

#if GPIPE_TORCH_HAS_CUDA
using NoSynchronization = testing::DeviceTest;

// While a WaitsForbidden lives, waiting for a GPU is an error.
class WaitsForbidden {
 public:
  WaitsForbidden() {
    c10::cuda::warning_state().set_sync_debug_mode(c10::cuda::SyncDebugMode::L_ERROR);
  }
  ~WaitsForbidden() {
    c10::cuda::warning_state().set_sync_debug_mode(c10::cuda::SyncDebugMode::L_DISABLED);
  }
  WaitsForbidden(const WaitsForbidden&) = delete;
  WaitsForbidden& operator=(const WaitsForbidden&) = delete;
};

GPipe pipe_of(const testing::SampleModel& sample, int64_t stages, Checkpoint mode) {
  std::vector<int64_t> balance(stages, 1);
  balance.back() += sample.layers - stages;
  return GPipe(sample.make(),
               GPipeOptions(balance).devices(testing::devices(stages)).chunks(3).checkpoint(mode));
}

TEST_F(NoSynchronization, InForwardAndBackward) {
  for (const testing::SampleModel& sample : testing::sample_models()) {
    for (Checkpoint mode : {Checkpoint::kAlways, Checkpoint::kExceptLast, Checkpoint::kNever}) {
      for (const int64_t stages : {1, 3}) {
        SCOPED_TRACE(sample.name + ", " + to_text(mode));
        GPipe pipe = pipe_of(sample, stages, mode);
        const Tensors inputs = testing::on(pipe->devices().front(), sample.inputs(8));
        const Tensors targets = testing::on(pipe->devices().back(), sample.targets(8));
        for (int step = 0; step < 2; ++step) {
          const WaitsForbidden nobody_waits;
          EXPECT_NO_THROW(sample.loss(pipe->forward(inputs), targets).backward());
        }
      }
    }
  }
}

// Reading the loss waits, so step() throws. All of the step's actions come before that, so no stage
// may have failed.
TEST_F(NoSynchronization, InAStepUntilItReadsItsLoss) {
  for (const testing::SampleModel& sample : testing::sample_models()) {
    GPipe pipe = pipe_of(sample, 3, Checkpoint::kExceptLast);
    const Tensors inputs = testing::on(pipe->devices().front(), sample.inputs(8));
    const Tensors targets = testing::on(pipe->devices().back(), sample.targets(8));
    for (const ScheduleGenerator& schedule :
         {ScheduleGenerator(Schedule::gpipe), ScheduleGenerator(Schedule::one_f_one_b)}) {
      SCOPED_TRACE(sample.name);
      pipe->step(inputs, targets, sample.loss, StepOptions().schedule(schedule));
      const WaitsForbidden nobody_waits;
      EXPECT_THROW(pipe->step(inputs, targets, sample.loss, StepOptions().schedule(schedule)),
                   c10::Error)
          << "reading the loss waits";
      EXPECT_FALSE(pipe->last_failure().has_value()) << "a stage waited";
    }
  }
}

TEST_F(NoSynchronization, IsNoticedInALayer) {
  const auto asks = testing::layer<at::Tensor, at::Tensor>(
      [](const at::Tensor& x) { return x * x.abs().max().item<double>(); });
  GPipe pipe(torch::nn::Sequential(asks), GPipeOptions({1}).devices({testing::device()}));
  const at::Tensor x = torch::ones({4, 4}, testing::device());
  const WaitsForbidden nobody_waits;
  EXPECT_THAT([&] { pipe->forward(x); },
              ::testing::ThrowsMessage<c10::Error>(::testing::HasSubstr("layer 0")));
}
#endif

}  // namespace
}  // namespace gpipe
