// Tests a stage that is out of memory. The caller must get c10::OutOfMemoryError with the place and
// the missing amount, no tensor of the step may stay in memory, and the pipeline must remain
// usable. On GPUs a layer asks for more memory than there is. On the CPU, whose allocator has no
// such error, the layer throws one.
#include <ATen/ops/empty.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/schedule/random_schedule.h"
#include "gpipe/testing/bitwise.h"
#include "gpipe/testing/device.h"
#include "gpipe/testing/seed.h"
#include "gpipe/testing/torch_seed.h"
#include "gpipe/testing/watchdog.h"

namespace gpipe {
namespace {

namespace nn = torch::nn;
using ::testing::AllOf;
using testing::EqualsBitwise;
using ::testing::HasSubstr;

constexpr int64_t kStages = 3;
constexpr int64_t kMicroBatches = 4;
constexpr int64_t kGreedyCall = 1;  // the number of the layer's call that fails, within its phase
constexpr int64_t kTooMuch = int64_t{1} << 46;  // 64 TiB

enum class Phase { kForward, kRecompute, kBackward };
enum class Way { kForward, kOneFOneB, kGPipe, kAnySchedule };

void ask_for_too_much(c10::Device device) {
  TORCH_CHECK_WITH(OutOfMemoryError, !device.is_cpu(), "the CPU was asked for too much");
  (void)at::empty({kTooMuch}, at::TensorOptions(device).dtype(at::kByte));
  throw std::logic_error("there was enough memory");
}

// The state that the layers share: which stage asks for too much memory, and the tensors that were
// alive.
struct Control {
  int64_t stage = -1;  // -1: no stage
  Phase phase = Phase::kForward;

  std::mutex mutex;
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> storages;  // guarded by mutex

  void watch(const at::Tensor& tensor) {
    const std::lock_guard<std::mutex> lock(mutex);
    storages.push_back(tensor.storage().getWeakStorageImpl());
  }
  int64_t alive() {
    const std::lock_guard<std::mutex> lock(mutex);
    return std::count_if(storages.begin(), storages.end(),
                         [](const auto& storage) { return !storage.expired(); });
  }
  // Autograd's thread of a device reports an error before it drops the graph that threw it. So this
  // waits until the tensors are gone.
  int64_t alive_in_the_end() {
    const auto begin = std::chrono::steady_clock::now();
    while (alive() > 0 && std::chrono::steady_clock::now() - begin < std::chrono::seconds(20)) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return alive();
  }
};

struct GreedyBackward : torch::autograd::Function<GreedyBackward> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            bool greedy) {
    context->saved_data["greedy"] = greedy;
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    if (context->saved_data["greedy"].toBool()) ask_for_too_much(gradients[0].device());
    return {gradients[0], at::Tensor()};
  }
};

struct GreedyImpl : nn::Module {
  GreedyImpl(std::shared_ptr<Control> control, int64_t stage)
      : control(std::move(control)), stage(stage) {}
  at::Tensor forward(const at::Tensor& x) {
    const Phase now = is_recomputing() ? Phase::kRecompute : Phase::kForward;
    int64_t& calls = is_recomputing() ? recomputes : forwards;
    const bool greedy = control->stage == stage && calls++ == kGreedyCall;
    if (greedy && control->phase == now) ask_for_too_much(x.device());
    const bool later = greedy && control->phase == Phase::kBackward;
    const at::Tensor y = GreedyBackward::apply(x.tanh(), later);
    control->watch(x);
    control->watch(y);
    return y;
  }
  std::shared_ptr<Control> control;
  int64_t stage;
  int64_t forwards = 0;
  int64_t recomputes = 0;
};
TORCH_MODULE(Greedy);

struct Subject {
  explicit Subject(Checkpoint mode) {
    testing::manual_seed(1);
    nn::Sequential model;
    for (int64_t j = 0; j < kStages; ++j) {
      layers.emplace_back(control, j);
      model->push_back("linear" + std::to_string(j), nn::Linear(4, 4));
      model->push_back("greedy" + std::to_string(j), layers.back());
    }
    pipe = GPipe(model, GPipeOptions({2, 2, 2})
                            .devices(testing::devices(kStages))
                            .chunks(kMicroBatches)
                            .checkpoint(mode));
  }

  // Runs one training step, and returns the gradients of the parameters.
  Tensors train(Way way) {
    for (Greedy& layer : layers) layer->forwards = layer->recomputes = 0;
    testing::manual_seed(2);
    const at::Tensor input = torch::randn({8, 4}).to(testing::device());
    const at::Tensor target = torch::randn({8, 4}).to(testing::device(kStages - 1));
    pipe->zero_grad();
    if (way == Way::kForward) {
      nn::functional::mse_loss(pipe->forward(input), target).backward();
    } else {
      StepOptions options;
      if (way == Way::kGPipe) options.schedule(Schedule::gpipe);
      if (way == Way::kAnySchedule) {
        std::mt19937_64 random = testing::test_random();
        options.schedule(testing::random_schedule(kStages, kMicroBatches,
                                                  testing::MicroBatchOrder::kAscending, random));
      }
      pipe->step(
          {input}, {target},
          [](const Tensors& outputs, const Tensors& targets) {
            return nn::functional::mse_loss(outputs[0], targets[0]);
          },
          options);
    }
    Tensors gradients;
    for (const at::Tensor& parameter : pipe->parameters()) {
      gradients.push_back(testing::on_host(parameter.grad()).clone());
    }
    return gradients;
  }

  std::shared_ptr<Control> control = std::make_shared<Control>();
  std::vector<Greedy> layers;
  GPipe pipe{nullptr};
};

class OutOfMemoryTest
    : public testing::DeviceTest,
      public ::testing::WithParamInterface<std::tuple<Phase, Checkpoint, Way, int64_t>> {};

TEST_P(OutOfMemoryTest, IsReportedWithItsPlaceAndThePipelineSurvives) {
  const auto [phase, mode, way, stage] = GetParam();
  const testing::Watchdog watchdog(std::chrono::minutes(5), "a stage out of memory");
  Subject subject(mode);
  const Tensors want = subject.train(way);
  // Some modes and schedules have no recompute in this stage that could fail.
  if (phase == Phase::kRecompute && subject.layers[stage]->recomputes <= kGreedyCall) return;
  subject.control->stage = stage;
  subject.control->phase = phase;

  std::string message;
  try {
    subject.train(way);
    FAIL() << "nothing thrown";
  } catch (const c10::OutOfMemoryError& error) {
    message = error.what_without_backtrace();
  }
  const std::optional<Failure> failure = subject.pipe->last_failure();
  ASSERT_TRUE(failure.has_value());
  EXPECT_EQ(failure->stage, stage);
  EXPECT_EQ(failure->backward, phase != Phase::kForward);
  EXPECT_EQ(failure->recompute, phase == Phase::kRecompute);
  const std::string layer =
      "layer " + std::to_string(2 * stage + 1) + " ('greedy" + std::to_string(stage) + "')";
  EXPECT_EQ(failure->layer, layer);
  // The message of a split backward's second half also says that it is the half of the weights, so
  // only its begin is compared.
  const std::string what = phase == Phase::kForward     ? "in the forward"
                           : phase == Phase::kRecompute ? "in the recompute"
                                                        : "in the backward";
  EXPECT_THAT(message, AllOf(HasSubstr(what),
                             HasSubstr(" of stage " + std::to_string(stage) + ", micro-batch " +
                                       std::to_string(failure->micro_batch) + ", " + layer)));
  EXPECT_EQ(failure->out_of_memory.has_value(), testing::for_gpus());
  if (const auto& memory = failure->out_of_memory) {
    EXPECT_EQ(memory->device, testing::device(stage));
    EXPECT_GE(memory->asked, kTooMuch);
    EXPECT_GT(memory->free, 0);
    EXPECT_LE(memory->free, memory->total);
    EXPECT_THAT(message, HasSubstr("; " + memory->device.str() + " was asked for 64.00 TiB ("));
    EXPECT_THAT(message, HasSubstr("(" + std::to_string(memory->total) + " bytes) were free"));
  }
  EXPECT_EQ(subject.control->alive_in_the_end(), 0);

  subject.control->stage = -1;
  const Tensors have = subject.train(way);
  ASSERT_EQ(have.size(), want.size());
  for (size_t k = 0; k < want.size(); ++k) EXPECT_THAT(have[k], EqualsBitwise(want[k])) << k;
  EXPECT_EQ(subject.control->alive_in_the_end(), 0);
}

std::string case_name(const ::testing::TestParamInfo<OutOfMemoryTest::ParamType>& info) {
  static const char* const kPhases[] = {"forward", "recompute", "backward"};
  static const char* const kModes[] = {"always", "except_last", "never"};
  static const char* const kWays[] = {"in_forward_entry", "in_1f1b", "in_gpipe", "in_any_schedule"};
  return std::string(kPhases[static_cast<int>(std::get<0>(info.param))]) + "_" +
         kModes[static_cast<int>(std::get<1>(info.param))] + "_" +
         kWays[static_cast<int>(std::get<2>(info.param))] + "_stage" +
         std::to_string(std::get<3>(info.param));
}

INSTANTIATE_TEST_SUITE_P(
    All, OutOfMemoryTest,
    ::testing::Combine(
        ::testing::Values(Phase::kForward, Phase::kRecompute, Phase::kBackward),
        ::testing::Values(Checkpoint::kAlways, Checkpoint::kExceptLast, Checkpoint::kNever),
        ::testing::Values(Way::kForward, Way::kOneFOneB, Way::kGPipe, Way::kAnySchedule),
        ::testing::Range(int64_t{0}, kStages)),
    case_name);

// A layer may handle the error, e.g. ask for less memory. Another error of the same action must not
// be mixed up with it.
struct HandlesImpl : nn::Module {
  at::Tensor forward(const at::Tensor& x) {
    try {
      ask_for_too_much(x.device());
    } catch (const c10::OutOfMemoryError&) {
    }
    if (fails) throw std::runtime_error("trouble");
    return x * 2;
  }
  bool fails = false;
};
TORCH_MODULE(Handles);

using OutOfMemory = testing::DeviceTest;

TEST_F(OutOfMemory, ThatALayerHandlesIsNotReported) {
  Handles handles;
  GPipe pipe(nn::Sequential(nn::Linear(4, 4), handles),
             GPipeOptions({1, 1}).devices(testing::devices(2)).chunks(2));
  const auto loss = [](const Tensors& outputs, const Tensors&) { return outputs[0].sum(); };
  pipe->step({torch::ones({4, 4}, testing::device())}, {}, loss);
  EXPECT_FALSE(pipe->last_failure().has_value());
  handles->fails = true;
  EXPECT_THROW(pipe->step({torch::ones({4, 4}, testing::device())}, {}, loss), std::runtime_error);
  ASSERT_TRUE(pipe->last_failure().has_value());
  EXPECT_FALSE(pipe->last_failure()->out_of_memory.has_value());
}

}  // namespace
}  // namespace gpipe
