// Makes each allocation of a step fail in turn. The caller must get c10::OutOfMemoryError, no
// tensor of the step may stay in memory, and the next step must be right. The test needs the fake
// accelerator, whose allocations can be made to fail.
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/types.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/schedule/random_schedule.h"
#include "gpipe/testing/bitwise.h"
#include "gpipe/testing/device.h"
#include "gpipe/testing/fake_accelerator/allocator.h"
#include "gpipe/testing/fake_accelerator/backend.h"
#include "gpipe/testing/sample_models.h"
#include "gpipe/testing/seed.h"
#include "gpipe/testing/torch_seed.h"
#include "gpipe/testing/watchdog.h"

namespace gpipe {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kStages = 3;
constexpr int64_t kMicroBatches = 2;  // with kExceptLast the first one is checkpointed

enum class Way { kForward, kOneFOneB, kGPipe, kAnySchedule };
using InUse = std::array<size_t, testing::fake::kDevices>;

InUse in_use() {
  InUse bytes;
  for (int k = 0; k < testing::fake::kDevices; ++k) {
    bytes[k] = testing::fake::allocator().in_use(k);
  }
  return bytes;
}

// Autograd's threads may hold the caller's graph a moment longer than the call that failed, so this
// waits for them.
InUse in_use_soon(const InUse& expected) {
  for (int k = 0; k < 1000 && in_use() != expected; ++k) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return in_use();
}

struct Subject {
  Subject(Checkpoint mode, Way way, bool one_device)
      : way(way),
        pipe(model(),
             GPipeOptions({1, 1, 1})
                 .devices(one_device ? std::vector<c10::Device>(kStages, testing::device(1))
                                     : testing::devices(kStages))
                 .chunks(kMicroBatches)
                 .checkpoint(mode)) {
    testing::manual_seed(2);
    input = torch::randn({kMicroBatches, 2, 8, 8}).to(pipe->devices().front());
  }

  static torch::nn::Sequential model() {
    testing::manual_seed(1);
    return testing::convolutions_with_a_skip();
  }

  void train() {
    const auto loss = [](const Tensors& outputs, const Tensors&) {
      return outputs[0].pow(2).mean();
    };
    if (way == Way::kForward) {
      loss({pipe->forward(input)}, {}).backward();
      return;
    }
    StepOptions options;
    if (way == Way::kGPipe) options.schedule(Schedule::gpipe);
    if (way == Way::kAnySchedule) {
      std::mt19937_64 random = testing::test_random();
      options.schedule(testing::random_schedule(kStages, kMicroBatches,
                                                testing::MicroBatchOrder::kAscending, random));
    }
    pipe->step({input}, {}, loss, options);
  }

  // Returns the gradients and removes them from the parameters.
  Tensors take_gradients() {
    Tensors gradients;
    for (const at::Tensor& parameter : pipe->parameters()) {
      gradients.push_back(testing::on_host(parameter.grad()));
    }
    pipe->zero_grad();
    return gradients;
  }

  Way way;
  GPipe pipe;
  at::Tensor input;
};

class AnyAllocationTest : public ::testing::TestWithParam<std::tuple<Checkpoint, Way, bool>> {};

TEST_P(AnyAllocationTest, MayFailAndThePipelineSurvives) {
  const auto [mode, way, one_device] = GetParam();
  const testing::Watchdog watchdog(std::chrono::minutes(10), "a failing allocation");
  Subject subject(mode, way, one_device);
  subject.train();
  const Tensors want = subject.take_gradients();
  const InUse before = in_use();
  testing::fake::Allocator& allocator = testing::fake::allocator();
  int64_t in_stages = 0;
  for (int device = one_device ? 1 : 0; device < (one_device ? 2 : kStages); ++device) {
    for (int64_t allocation = 0;; ++allocation) {
      SCOPED_TRACE("allocation " + std::to_string(allocation) + " on device " +
                   std::to_string(device));
      const int64_t failures = allocator.failures();
      allocator.fail(device, allocation);
      std::string message;
      try {
        subject.train();
      } catch (const c10::OutOfMemoryError& error) {
        message = error.what_without_backtrace();
      }
      allocator.fail(device, -1);
      ASSERT_EQ(message.empty(), allocator.failures() == failures)
          << "an allocation failed, and the call threw nothing";
      subject.pipe->zero_grad();
      EXPECT_EQ(in_use_soon(before), before);
      if (message.empty()) {  // the step has no more allocations
        EXPECT_GT(allocation, kMicroBatches);
        break;
      }
      // Allocations of the calling thread, before, between and after the stages' actions, are in no
      // stage, so there is no Failure.
      if (const std::optional<Failure> failure = subject.pipe->last_failure()) {
        ++in_stages;
        ASSERT_TRUE(failure->out_of_memory.has_value());
        EXPECT_EQ(failure->out_of_memory->device, testing::device(device));
        EXPECT_THAT(message, HasSubstr(" of stage " + std::to_string(failure->stage) + ", "));
        EXPECT_THAT(message, HasSubstr("; fake:" + std::to_string(device) + " was asked for "));
      }
      subject.train();
      const Tensors have = subject.take_gradients();
      for (size_t k = 0; k < want.size(); ++k) {
        ASSERT_THAT(have[k], testing::EqualsBitwise(want[k])) << k;
      }
    }
  }
  EXPECT_GT(in_stages, kStages * kMicroBatches);
}

std::string case_name(const ::testing::TestParamInfo<AnyAllocationTest::ParamType>& info) {
  static const char* const kModes[] = {"always", "except_last", "never"};
  static const char* const kWays[] = {"forward", "one_f_one_b", "gpipe", "any_schedule"};
  return std::string(kModes[static_cast<int>(std::get<0>(info.param))]) + "_" +
         kWays[static_cast<int>(std::get<1>(info.param))] +
         (std::get<2>(info.param) ? "_on_one_device" : "");
}

INSTANTIATE_TEST_SUITE_P(All, AnyAllocationTest,
                         ::testing::Combine(::testing::Values(Checkpoint::kExceptLast,
                                                              Checkpoint::kNever),
                                            ::testing::Values(Way::kForward, Way::kOneFOneB,
                                                              Way::kGPipe, Way::kAnySchedule),
                                            ::testing::Bool()),
                         case_name);

}  // namespace
}  // namespace gpipe
