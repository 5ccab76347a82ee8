// Tests a thousand failures at random places. The caller must get each of them, nothing may hang or
// stay alive, and the next step must be as if nothing had happened.

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <atomic>
#include <chrono>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/testing/bitwise.h"
#include "gpipe/testing/live_memory.h"
#include "gpipe/testing/seed.h"
#include "gpipe/testing/torch_seed.h"
#include "gpipe/testing/watchdog.h"

namespace gpipe {
namespace {

namespace nn = torch::nn;
using testing::EqualsBitwise;

enum class Phase { kForward, kRecompute, kBackward };

// A plan says which call must fail: call number `call` of this stage in this phase.
struct Plan {
  int stage = -1;
  Phase phase = Phase::kForward;
  int call = 0;
};
Plan plan;
std::atomic<int> calls[4][3];

void arm(const Plan& next) {
  plan = next;
  for (auto& row : calls) {
    for (auto& count : row) count = 0;
  }
}

void maybe_fail(int stage, Phase phase) {
  const int call = calls[stage][static_cast<int>(phase)]++;
  if (stage == plan.stage && phase == plan.phase && call == plan.call) {
    throw std::runtime_error("injected");
  }
}

struct FailingFunction : torch::autograd::Function<FailingFunction> {
  static torch::Tensor forward(torch::autograd::AutogradContext* context, torch::Tensor x,
                               int64_t stage) {
    context->saved_data["stage"] = stage;
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    maybe_fail(static_cast<int>(context->saved_data["stage"].toInt()), Phase::kBackward);
    return {gradients[0], torch::Tensor()};
  }
};

struct FailingImpl : nn::Module {
  explicit FailingImpl(int stage) : stage(stage) {}
  torch::Tensor forward(torch::Tensor x) {
    maybe_fail(stage, is_recomputing() ? Phase::kRecompute : Phase::kForward);
    return FailingFunction::apply(x, stage);
  }
  int stage;
};
TORCH_MODULE(Failing);

TEST(Stress, AThousandInjectedFailures) {
  constexpr int kStages = 4;
  constexpr int kMicroBatches = 4;
  constexpr int kFailures = 1000;
  at::set_num_threads(1);
  testing::count_live_memory();
  testing::manual_seed(1);
  nn::Sequential model;
  for (int j = 0; j < kStages; ++j) {
    model->push_back(nn::Linear(4, 4));
    model->push_back(Failing(j));
    model->push_back(nn::Dropout(0.3));
  }
  GPipe pipe(model, GPipeOptions(std::vector<int64_t>(kStages, 3))
                        .devices(std::vector<c10::Device>(kStages, c10::kCPU))
                        .chunks(kMicroBatches)
                        .checkpoint(Checkpoint::kAlways));
  const torch::Tensor input = torch::randn({8, 4});
  const torch::Tensor target = torch::randn({8, 4});
  LossFn loss_fn = [](const Tensors& outputs, const Tensors& targets) {
    return nn::functional::mse_loss(outputs[0], targets[0]);
  };
  auto train = [&](int entry) {
    testing::manual_seed(7);
    if (entry == 0) {
      torch::Tensor loss = loss_fn({pipe->forward(input)}, {target});
      loss.backward();
      return loss.item<double>();
    }
    StepOptions options;
    if (entry == 1) options.schedule(Schedule::gpipe);
    return pipe->step({input}, {target}, loss_fn, options).loss;
  };
  auto gradients = [&] {
    std::vector<torch::Tensor> result;
    for (const auto& p : pipe->parameters()) result.push_back(p.grad().clone());
    return result;
  };

  arm({});
  double want_loss[3];
  std::vector<torch::Tensor> want[3];
  for (int entry = 0; entry < 3; ++entry) {
    pipe->zero_grad();
    want_loss[entry] = train(entry);
    want[entry] = gradients();
  }
  pipe->zero_grad();
  const int64_t live = testing::live_bytes();

  std::mt19937_64 random = testing::test_random();
  int failures = 0;
  testing::Watchdog watchdog(std::chrono::minutes(4), "a thousand injected failures");
  for (int k = 0; k < kFailures; ++k) {
    const int entry = static_cast<int>(random() % 3);
    const Plan next{static_cast<int>(random() % kStages), static_cast<Phase>(random() % 3),
                    static_cast<int>(random() % kMicroBatches)};
    SCOPED_TRACE("failure " + std::to_string(k) + ": entry " + std::to_string(entry) + ", stage " +
                 std::to_string(next.stage) + ", phase " +
                 std::to_string(static_cast<int>(next.phase)) + ", call " +
                 std::to_string(next.call));
    arm(next);
    try {
      train(entry);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const std::runtime_error& e) {
      EXPECT_NE(std::string(e.what()).find("injected"), std::string::npos);
      ++failures;
    }
    EXPECT_EQ(pipe->last_failure()->stage, next.stage);
    pipe->zero_grad();
    ASSERT_EQ(testing::live_bytes(), live) << "something of the failed step is still alive";
    if (k % 10 == 0) {
      arm({});
      EXPECT_EQ(train(entry), want_loss[entry]);
      const std::vector<torch::Tensor> have = gradients();
      for (size_t n = 0; n < have.size(); ++n) EXPECT_THAT(have[n], EqualsBitwise(want[entry][n]));
      pipe->zero_grad();
    }
    if (::testing::Test::HasFailure()) break;
  }
  EXPECT_EQ(failures, kFailures);
}

}  // namespace
}  // namespace gpipe
