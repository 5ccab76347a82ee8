// Tests GPipeOptions::groups. Gradients must be added up group by group, and the groups in a fixed
// tree.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/schedule/named_schedule.h"
#include "gpipe/testing/bitwise.h"
#include "gpipe/testing/sample_models.h"

namespace gpipe {
namespace {

namespace nn = torch::nn;
using testing::bitwise_difference;
using ::testing::HasSubstr;
using torch::Tensor;

constexpr int64_t kChunks = 12;
constexpr int64_t kRows =
    30;  // makes ten micro-batches of three rows, so the last groups have fewer, or none

nn::Sequential model() {
  torch::manual_seed(1);
  return nn::Sequential(nn::Linear(8, 8), nn::Tanh(), nn::Linear(8, 8), nn::Tanh(),
                        nn::Linear(8, 4));
}

Tensor loss_fn(Tensor output, Tensor target) { return torch::mse_loss(output, target); }

Tensor sum_of(const std::vector<Tensor>& groups, int64_t first, int level) {
  if (first >= static_cast<int64_t>(groups.size())) return {};
  if (level == 0) return groups[static_cast<size_t>(first)];
  const Tensor left = sum_of(groups, first, level - 1);
  const Tensor right = sum_of(groups, first + (int64_t{1} << (level - 1)), level - 1);
  if (!left.defined() || !right.defined()) return left.defined() ? left : right;
  return left + right;
}

// Computes the gradients of the mean loss by hand, by parameter.
std::vector<Tensor> gradients_by_hand(nn::Sequential& plain, const Tensor& x, const Tensor& y,
                                      int64_t groups) {
  constexpr int64_t kSize = (kRows + kChunks - 1) / kChunks;
  const int64_t group_size = kChunks / groups;
  const size_t count = plain->parameters().size();
  std::vector<std::vector<Tensor>> of_group(count, std::vector<Tensor>(groups));
  for (int64_t i = 0; i * kSize < kRows; ++i) {
    plain->zero_grad();
    const Tensor loss =
        loss_fn(plain->forward(x.narrow(0, i * kSize, kSize)), y.narrow(0, i * kSize, kSize));
    loss.backward(torch::full({}, kSize / double{kRows}));
    for (size_t k = 0; k < count; ++k) {
      const Tensor gradient = plain->parameters()[k].grad().clone();
      Tensor& sum = of_group[k][i / group_size];
      sum = sum.defined() ? sum + gradient : gradient;
    }
  }
  std::vector<Tensor> gradients;
  for (const auto& all : of_group) gradients.push_back(sum_of(all, 0, 4));
  return gradients;
}

GPipeOptions options_of(std::vector<int64_t> balance, int64_t groups) {
  return GPipeOptions(std::move(balance)).chunks(kChunks).groups(groups).cpu_threads_per_stage(1);
}

TEST(Groups, GradientsAreThoseOfTheDefinition) {
  at::set_num_threads(1);
  torch::manual_seed(2);
  const Tensor x = torch::randn({kRows, 8}), y = torch::randn({kRows, 4});
  std::vector<Tensor> of_counts;
  for (const int64_t groups : {1, 2, 3, 4, 6, 12}) {
    nn::Sequential plain = model();
    const std::vector<Tensor> expected = gradients_by_hand(plain, x, y, groups);
    for (const char* schedule : {"1f1b", "fill-drain", "zb-h1", "zb-h2"}) {
      for (const Checkpoint mode : {Checkpoint::kAlways, Checkpoint::kNever}) {
        GPipe pipe(model(), options_of({1, 2, 2}, groups).checkpoint(mode));
        pipe->step({x}, {y}, loss_fn, StepOptions().schedule(schedule_by_name(schedule)));
        for (size_t k = 0; k < expected.size(); ++k) {
          EXPECT_EQ(bitwise_difference(expected[k], pipe->parameters()[k].grad()), "")
              << groups << " groups, " << schedule << ", parameter " << k;
        }
      }
    }
    of_counts.push_back(expected[0]);
  }
  // The sums of one group and of four must differ. Otherwise the test would not show their order.
  EXPECT_NE(bitwise_difference(of_counts[0], of_counts[3]), "");
}

TEST(Groups, TheSumIsAddedToWhatIsThere) {
  at::set_num_threads(1);
  const Tensor x = torch::randn({kRows, 8}), y = torch::randn({kRows, 4});
  GPipe pipe(model(), options_of({3, 2}, 4));
  pipe->step({x}, {y}, loss_fn);
  std::vector<Tensor> once;
  for (const Tensor& parameter : pipe->parameters()) once.push_back(parameter.grad().clone());
  const std::vector<Tensor> parameters = pipe->parameters();
  for (const Tensor& parameter : parameters) parameter.mutable_grad().fill_(0.1);
  const Tensor kept = parameters[0].grad();
  pipe->step({x}, {y}, loss_fn);
  for (size_t k = 0; k < once.size(); ++k) {
    EXPECT_EQ(bitwise_difference(torch::full_like(once[k], 0.1) + once[k], parameters[k].grad()),
              "");
  }
  EXPECT_TRUE(kept.is_same(parameters[0].grad()));
}

// A model with tied weights, skips, dropout and batch norms must have the same bits with every cut
// and schedule.
TEST(Groups, BitsDependOnNoCutAndNoSchedule) {
  at::set_num_threads(1);
  for (const testing::SampleModel& sample : testing::sample_models()) {
    std::vector<Tensor> expected;
    for (int64_t stages = 1; stages <= std::min<int64_t>(sample.layers, 3); ++stages) {
      for (const char* schedule : {"1f1b", "fill-drain", "zb-h1"}) {
        GPipe pipe(sample.make(),
                   options_of(testing::all_balances(sample.layers, stages).back(), 4));
        torch::optim::Adam optimizer(pipe->parameters(), 0.01);
        torch::manual_seed(3);
        for (int step = 0; step < 3; ++step) {
          optimizer.zero_grad();
          pipe->step(sample.inputs(kRows), sample.targets(kRows), sample.loss,
                     StepOptions().schedule(schedule_by_name(schedule)));
          optimizer.step();
        }
        if (expected.empty()) {
          for (const Tensor& parameter : pipe->parameters()) expected.push_back(parameter.clone());
        }
        for (size_t k = 0; k < expected.size(); ++k) {
          EXPECT_EQ(bitwise_difference(expected[k], pipe->parameters()[k]), "")
              << sample.name << ", " << stages << " stages, " << schedule;
        }
      }
    }
  }
}

struct CountedHook : public torch::autograd::PostAccumulateGradHook {
  explicit CountedHook(int& count) : count(count) {}
  void operator()(const Tensor& leaf) override {
    ++count;
    EXPECT_TRUE(leaf.grad().defined());
  }
  int& count;
};

TEST(Groups, HooksSeeMicroBatchesAndPostAccumulateHooksTheSum) {
  const Tensor x = torch::randn({kRows, 8}), y = torch::randn({kRows, 4});
  GPipe pipe(model(), options_of({3, 2}, 4));
  const Tensor weight = pipe->parameters()[0];
  int gradients = 0;
  int sums = 0;
  weight.register_hook([&](const Tensor& gradient) {
    ++gradients;
    return gradient;
  });
  torch::autograd::impl::set_post_acc_grad_hooks(weight, std::make_unique<CountedHook>(sums));
  pipe->step({x}, {y}, loss_fn);
  EXPECT_EQ(gradients, 10);
  EXPECT_EQ(sums, 1);
}

TEST(Groups, AStepThatFailsAddsNothing) {
  const Tensor x = torch::randn({kRows, 8}), y = torch::randn({kRows, 4});
  GPipe pipe(model(), options_of({3, 2}, 4));
  pipe->parameters()[0].mutable_grad() = torch::full({8, 8}, 2.0F);
  int calls = 0;
  const auto failing = [&](const Tensors& outputs, const Tensors& targets) {
    if (++calls == 9) throw std::runtime_error("enough");
    return loss_fn(outputs[0], targets[0]);
  };
  EXPECT_THROW(pipe->step({x}, {y}, failing), std::runtime_error);
  EXPECT_EQ(bitwise_difference(torch::full({8, 8}, 2.0F), pipe->parameters()[0].grad()), "");
  for (size_t k = 1; k < pipe->parameters().size(); ++k) {
    EXPECT_FALSE(pipe->parameters()[k].grad().defined());
  }
  calls = 100;
  pipe->step({x}, {y}, failing);
  EXPECT_TRUE(pipe->parameters()[1].grad().defined());
}

std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const c10::ValueError& error) {
    return error.what_without_backtrace();
  }
  return "nothing was thrown";
}

TEST(Groups, WrongOnesAreRefused) {
  EXPECT_THAT(refusal([] {
                GPipe(model(), options_of({3, 2}, 5));
              }),
              HasSubstr("groups(5) must divide chunks(12)"));
  EXPECT_THAT(refusal([] { GPipe(model(), options_of({3, 2}, -1)); }), HasSubstr("got -1"));
  GPipe pipe(model(), options_of({3, 2}, 4));
  const Tensor x = torch::randn({kRows, 8}), y = torch::randn({kRows, 4});
  EXPECT_THAT(
      refusal([&] { pipe->step({x}, {y}, loss_fn, StepOptions().schedule(Schedule::gpipe)); }),
      HasSubstr("\"fill-drain\""));
}

}  // namespace
}  // namespace gpipe
