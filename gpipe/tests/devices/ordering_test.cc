// Tests that stages wait for values that arrive late. One stage after another is slow on its
// device, in forward or in backward, so a stage that reads its results too early computes wrong
// values.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/testing/bitwise.h"
#include "gpipe/testing/device.h"
#include "gpipe/testing/torch_seed.h"
#include "skip/testing.h"

namespace gpipe {
namespace {

namespace nn = torch::nn;
using testing::device;
using testing::EqualsBitwise;
using testing::on_host;

using Ordering = testing::DeviceTest;

constexpr int64_t kStages = 3;
constexpr int64_t kChunks = 2;

enum class Way { kForward, kOneFOneB, kGPipe };

// Which stage is slow, and in which part of the step.
struct Slow {
  int64_t stage = -1;
  bool in_backward = false;
};

struct SlowBackward : torch::autograd::Function<SlowBackward> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) {
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list gradients) {
    testing::slow_work(gradients[0].device());
    return {gradients[0] * 2};
  }
};

struct MaySlowImpl : nn::Module {
  MaySlowImpl(std::shared_ptr<Slow> slow, int64_t stage) : slow(std::move(slow)), stage(stage) {}
  at::Tensor forward(const at::Tensor& x) {
    const bool now = slow->stage == stage;
    if (now && !slow->in_backward) testing::slow_work(x.device());
    const at::Tensor y = x.tanh();
    if (now && slow->in_backward) return SlowBackward::apply(y);
    // Computes the same function as the slow branch, without its delay.
    return y * 2 - y.detach();
  }
  std::shared_ptr<Slow> slow;
  int64_t stage;
};
TORCH_MODULE(MaySlow);

Tensors train(const Slow& slow, Checkpoint mode, Way way, bool one_device) {
  testing::manual_seed(1);
  const auto control = std::make_shared<Slow>(slow);
  nn::Sequential model(nn::Linear(8, 8), skip::testing::stash_layer({"skip"}), MaySlow(control, 0),
                       nn::Linear(8, 8), MaySlow(control, 1), nn::Linear(8, 8),
                       skip::testing::pop_layer({"skip"}), MaySlow(control, 2));
  GPipe pipe(model, GPipeOptions({3, 2, 3})
                        .devices(one_device ? std::vector<c10::Device>(kStages, device())
                                            : testing::devices(kStages))
                        .chunks(kChunks)
                        .checkpoint(mode));
  // If devices differ, other streams than the default ones make it more likely that an early read
  // is detected.
  std::optional<testing::OtherStreamsScope> streams;
  if (!one_device) streams.emplace();
  const at::Tensor x = testing::copy_on(device(), torch::randn({2 * kChunks, 8})).requires_grad_();
  const auto loss = [](const Tensors& outputs, const Tensors&) { return outputs[0].pow(2).mean(); };
  if (way == Way::kForward) {
    loss({pipe->forward(x)}, {}).backward();
  } else {
    StepOptions options;
    if (way == Way::kGPipe) options.schedule(Schedule::gpipe);
    pipe->step({x}, {}, loss, options);
  }
  Tensors results = {on_host(x.grad())};
  for (const at::Tensor& parameter : pipe->parameters())
    results.push_back(on_host(parameter.grad()));
  return results;
}

TEST_F(Ordering, ASlowStageIsWaitedFor) {
  for (const bool one_device : {false, true}) {
    for (const Way way : {Way::kForward, Way::kOneFOneB, Way::kGPipe}) {
      const Checkpoint mode = way == Way::kForward ? Checkpoint::kAlways : Checkpoint::kExceptLast;
      const Tensors want = train({}, mode, way, one_device);
      for (int64_t stage = 0; stage < kStages; ++stage) {
        for (const bool in_backward : {false, true}) {
          SCOPED_TRACE("way " + std::to_string(static_cast<int>(way)) + ", stage " +
                       std::to_string(stage) + (in_backward ? ", backward" : ", forward") +
                       (one_device ? ", one device" : ""));
          const Tensors have = train({stage, in_backward}, mode, way, one_device);
          ASSERT_EQ(have.size(), want.size());
          for (size_t k = 0; k < want.size(); ++k) {
            EXPECT_THAT(have[k], EqualsBitwise(want[k])) << k;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace gpipe
