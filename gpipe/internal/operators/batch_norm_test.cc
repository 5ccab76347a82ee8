#include "gpipe/internal/operators/batch_norm.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/instancenorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "gpipe/testing/bitwise.h"
#include "interception/interception.h"

namespace gpipe::internal {
namespace {

namespace nn = torch::nn;
using testing::EqualsBitwise;

constexpr auto kUpdate = RunningStatistics::kUpdate;
constexpr auto kKeep = RunningStatistics::kKeep;
constexpr auto kDefer = RunningStatistics::kDefer;

// The norm has one channel. A momentum of 1/2 keeps the arithmetic of these tests exact.
nn::BatchNorm1d batch_norm(std::optional<double> momentum = 0.5) {
  return nn::BatchNorm1d(nn::BatchNormOptions(1).momentum(momentum));
}

at::Tensor column(const std::vector<float>& values) { return torch::tensor(values).view({-1, 1}); }

std::vector<at::Tensor> copies(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> result;
  for (const at::Tensor& tensor : tensors) result.push_back(tensor.clone());
  return result;
}

// The buffers of a batch norm with one channel.
std::vector<at::Tensor> buffers(float mean, float var, int64_t count) {
  return {torch::tensor({mean}), torch::tensor({var}), torch::tensor(count)};
}
std::vector<at::Tensor> buffers_of(const nn::BatchNorm1d& norm) {
  return {norm->running_mean, norm->running_var, norm->num_batches_tracked};
}

// A model of `stages` stages, each with a log.
struct Model {
  explicit Model(int64_t stages) : tracked(stages), logs(stages) {}

  template <typename Norm>
  at::Tensor run(RunningStatistics policy, int64_t stage, int64_t micro_batch, int64_t layer,
                 Norm& norm, const at::Tensor& x, bool any_order = false) {
    const InterceptionScope interception;
    const RunningStatisticsScope scope(policy, tracked, &logs[stage], micro_batch, any_order);
    RunningStatisticsScope::enter_layer(layer);
    return norm(x);
  }
  void commit() { StatisticsLog::commit(logs); }

  TrackedStatistics tracked;
  std::vector<StatisticsLog> logs;
};

struct WithCounterImpl : nn::Module {
  WithCounterImpl() {
    own = register_buffer("num_batches_tracked", torch::tensor(int64_t{0}));
    other = register_buffer("number", torch::tensor(int64_t{0}));
    register_buffer("mean", torch::zeros({1}));
    inner = register_module("inner", batch_norm(std::nullopt));
  }
  at::Tensor own, other;
  nn::BatchNorm1d inner{nullptr};
};
TORCH_MODULE(WithCounter);

TEST(TrackedStatistics, KnowsCountersByNameAndByModule) {
  TrackedStatistics tracked(1);
  WithCounter module;
  nn::BatchNorm1d norm = batch_norm();
  tracked.add(0, *module);
  tracked.add(0, *norm);
  ASSERT_NE(tracked.counter(module->own), nullptr);
  EXPECT_FALSE(tracked.counter(module->own)->cumulative);
  ASSERT_NE(tracked.counter(module->inner->num_batches_tracked), nullptr);
  EXPECT_TRUE(tracked.counter(module->inner->num_batches_tracked)->cumulative);
  ASSERT_NE(tracked.counter(norm->num_batches_tracked), nullptr);
  EXPECT_FALSE(tracked.counter(norm->num_batches_tracked)->cumulative);
  EXPECT_EQ(tracked.counter(module->other), nullptr);
  EXPECT_EQ(tracked.counter(norm->running_mean), nullptr);
  EXPECT_EQ(tracked.counter(at::Tensor()), nullptr);
}

// If a buffer named "num_batches_tracked" has no running statistics beside it, it is not tracked,
// because it may count anything.
TEST(TrackedStatistics, ACounterWithoutStatisticsBesideItIsNone) {
  nn::Module module;
  const at::Tensor own = module.register_buffer("num_batches_tracked", torch::tensor(int64_t{0}));
  TrackedStatistics tracked(1);
  tracked.add(0, module);
  EXPECT_EQ(tracked.counter(own), nullptr);
}

TEST(TrackedStatistics, TakesWhatABatchNormHoldsEvenIfItIsNotABuffer) {
  nn::BatchNorm2d norm(1);
  norm->num_batches_tracked = torch::tensor(int64_t{0});
  TrackedStatistics tracked(1);
  tracked.add(0, *norm);
  EXPECT_NE(tracked.counter(norm->num_batches_tracked), nullptr);
}

TEST(TrackedStatistics, NormsWithoutStatisticsAndEmptyModulesHaveNone) {
  nn::BatchNorm3d norm(nn::BatchNormOptions(1).track_running_stats(false));
  nn::Linear linear(1, 1);
  TrackedStatistics tracked(2);
  tracked.add(0, *norm);
  tracked.add(1, *linear);
  EXPECT_FALSE(tracked.is_shared(linear->weight));
  EXPECT_FALSE(tracked.is_shared(at::Tensor()));
}

TEST(TrackedStatistics, OnlyWhatSeveralStagesHaveIsShared) {
  nn::BatchNorm1d shared = batch_norm(), twice = batch_norm(), alone = batch_norm();
  nn::BatchNorm1d view = batch_norm();
  view->running_mean = alone->running_mean.view({1});
  TrackedStatistics tracked(3);
  tracked.add(0, *shared);
  tracked.add(0, *twice);
  tracked.add(0, *twice);
  tracked.add(1, *alone);
  EXPECT_FALSE(tracked.is_shared(shared->running_mean));
  tracked.add(2, *shared);
  for (const at::Tensor& tensor : buffers_of(shared)) EXPECT_TRUE(tracked.is_shared(tensor));
  EXPECT_TRUE(tracked.is_shared(shared->running_var.detach())) << "the same memory";
  tracked.add(2, *shared);
  EXPECT_TRUE(tracked.is_shared(shared->running_mean));
  for (const at::Tensor& tensor : buffers_of(twice)) EXPECT_FALSE(tracked.is_shared(tensor));
  for (const at::Tensor& tensor : buffers_of(alone)) EXPECT_FALSE(tracked.is_shared(tensor));
  tracked.add(0, *view);
  EXPECT_TRUE(tracked.is_shared(alone->running_mean));
  EXPECT_FALSE(tracked.is_shared(alone->running_var));
  EXPECT_FALSE(tracked.is_shared(torch::zeros({1})));
}

TEST(TrackedStatistics, KeepsItsTensorsAlive) {
  nn::BatchNorm1d norm = batch_norm();
  std::vector<c10::weak_intrusive_ptr<c10::TensorImpl>> weak;
  for (const at::Tensor& tensor : buffers_of(norm)) weak.emplace_back(tensor.getIntrusivePtr());
  {
    TrackedStatistics tracked(1);
    tracked.add(0, *norm);
    norm = nullptr;
    for (const auto& tensor : weak) EXPECT_FALSE(tensor.expired());
  }
  for (const auto& tensor : weak) EXPECT_TRUE(tensor.expired());
}

TEST(RunningStatisticsScope, NestsAndEndsWithItsBlock) {
  const InterceptionScope interception;
  const TrackedStatistics tracked(1);
  RunningStatisticsScope::enter_layer(3);  // no scope, no effect
  EXPECT_EQ(RunningStatisticsScope::current(), nullptr);
  {
    const RunningStatisticsScope outer(kKeep, tracked, nullptr, 0);
    {
      const RunningStatisticsScope inner(kKeep, tracked, nullptr, 0);
      EXPECT_EQ(RunningStatisticsScope::current(), &inner);
    }
    EXPECT_EQ(RunningStatisticsScope::current(), &outer);
    EXPECT_EQ(outer.policy(), kKeep);
  }
  EXPECT_EQ(RunningStatisticsScope::current(), nullptr);
}

TEST(RunningStatisticsScope, UpdateIsWhatTheModuleDoesOnItsOwn) {
  for (const std::optional<double> momentum :
       {std::optional<double>(0.3), std::optional<double>()}) {
    nn::BatchNorm1d plain = batch_norm(momentum), norm = batch_norm(momentum);
    Model model(2);
    model.tracked.add(0, *norm);
    for (int64_t i = 0; i < 3; ++i) {
      const at::Tensor x = torch::randn({5, 1});
      EXPECT_THAT(model.run(kUpdate, 0, i, 0, norm, x), EqualsBitwise(plain(x)));
      EXPECT_THAT(buffers_of(norm), EqualsBitwise(buffers_of(plain)));
    }
    model.commit();
    EXPECT_THAT(buffers_of(norm), EqualsBitwise(buffers_of(plain))) << "nothing was logged";
  }
}

TEST(RunningStatisticsScope, KeepChangesNothingAndNeedsNoLog) {
  nn::BatchNorm1d plain = batch_norm(), norm = batch_norm();
  TrackedStatistics tracked(1);
  tracked.add(0, *norm);
  const std::vector<at::Tensor> before = copies(buffers_of(norm));
  const at::Tensor x = torch::randn({5, 1});
  const InterceptionScope interception;
  const RunningStatisticsScope scope(kKeep, tracked, nullptr, 0);
  RunningStatisticsScope::enter_layer(0);
  const at::Tensor y = norm(x);
  EXPECT_THAT(buffers_of(norm), EqualsBitwise(before));
  const InterceptionPause pause;
  EXPECT_THAT(y, EqualsBitwise(plain(x)));
}

TEST(RunningStatisticsScope, InEvaluationNothingIsUpdated) {
  nn::BatchNorm1d norm = batch_norm();
  (void)norm(torch::randn({5, 1}));
  norm->eval();
  const std::vector<at::Tensor> before = copies(buffers_of(norm));
  const at::Tensor x = torch::randn({5, 1});
  const at::Tensor expected = norm(x);
  for (const auto policy : {kUpdate, kKeep, kDefer}) {
    Model model(1);
    model.tracked.add(0, *norm);
    EXPECT_THAT(model.run(policy, 0, 0, 0, norm, x), EqualsBitwise(expected));
    model.commit();
    EXPECT_THAT(buffers_of(norm), EqualsBitwise(before));
  }
}

// The backward needs the statistics as the forward has left them. Autograd does not notice that a
// later forward updates them.
TEST(RunningStatisticsScope, ANormInEvaluationSavesWhatItsOwnForwardLeaves) {
  const at::Tensor x = column({1, 2, 4});
  const at::Tensor weights = column({1, -3, 2});
  for (const bool evaluates_first : {false, true}) {
    const auto gradient_of = [&](Model* model, nn::BatchNorm1d& norm) {
      const at::Tensor leaf = x.clone().set_requires_grad(true);
      const auto both = [&](const at::Tensor& input) {
        at::Tensor sum = at::zeros_like(input);
        for (const bool evaluates : {evaluates_first, !evaluates_first}) {
          norm->train(!evaluates);
          sum = sum + norm(input);
        }
        norm->train();
        return sum;
      };
      at::Tensor sum;
      if (model == nullptr) {
        sum = both(leaf);
      } else {
        sum = model->run(RunningStatistics::kUpdate, 0, 0, 0, both, leaf);
        model->run(RunningStatistics::kUpdate, 0, 1, 0, norm, x * 5);
      }
      (sum * sum * weights).sum().backward();
      return leaf.grad();
    };
    nn::BatchNorm1d plain = batch_norm();
    nn::BatchNorm1d norm = batch_norm();
    Model model(1);
    model.tracked.add(0, *norm);
    const at::Tensor expected = gradient_of(nullptr, plain);
    EXPECT_THAT(gradient_of(&model, norm), testing::EqualsBitwise(expected)) << evaluates_first;
  }
}

// The gradient is also right if the statistics are given through another tensor over their memory.
TEST(RunningStatisticsScope, AnAliasInEvaluationIsSavedAsItsOwnForwardLeavesIt) {
  using Alias = at::Tensor (*)(const at::Tensor&);
  const Alias aliases[] = {[](const at::Tensor& x) { return x.detach(); },
                           [](const at::Tensor& x) { return x.slice(0, 0, 1); }};
  const at::Tensor x = column({1, 2, 4});
  const at::Tensor weights = column({1, -3, 2});
  for (size_t kind = 0; kind < std::size(aliases); ++kind) {
    for (const bool evaluates_first : {false, true}) {
      for (const bool is_registered : {true, false}) {
        if (!is_registered && evaluates_first) continue;  // nothing tells of the later update
        const auto gradient_of = [&](Model* model, nn::BatchNorm1d& norm) {
          const at::Tensor leaf = x.clone().set_requires_grad(true);
          const auto both = [&](const at::Tensor& input) {
            at::Tensor sum = at::zeros_like(input);
            for (const bool evaluates : {evaluates_first, !evaluates_first}) {
              sum = sum + (evaluates
                               ? torch::batch_norm(input, {}, {}, aliases[kind](norm->running_mean),
                                                   aliases[kind](norm->running_var), false, 0.1,
                                                   1e-5, false)
                               : norm(input));
            }
            return sum;
          };
          at::Tensor sum;
          if (model == nullptr) {
            sum = both(leaf);
          } else {
            sum = model->run(RunningStatistics::kUpdate, 0, 0, 0, both, leaf);
            model->run(RunningStatistics::kUpdate, 0, 1, 0, norm, x * 5);
          }
          (sum * sum * weights).sum().backward();
          return leaf.grad();
        };
        nn::BatchNorm1d plain = batch_norm();
        nn::BatchNorm1d norm = batch_norm();
        Model model(1);
        if (is_registered) model.tracked.add(0, *norm);
        const at::Tensor expected = gradient_of(nullptr, plain);
        EXPECT_THAT(gradient_of(&model, norm), testing::EqualsBitwise(expected))
            << kind << " " << evaluates_first << " " << is_registered;
      }
    }
  }
}

TEST(RunningStatisticsScope, OtherTensorsAreCountedUpAtOnce) {
  const InterceptionScope interception;
  const TrackedStatistics tracked(1);
  const RunningStatisticsScope scope(kKeep, tracked, nullptr, 0);
  at::Tensor number = torch::tensor(int64_t{3});
  number += 1;
  EXPECT_EQ(number.item<int64_t>(), 4);
}

// Two stages have the norm. They run at the same time, so they log in any order. The updates must
// be made in the order of a loop over the micro-batches: (0, stage 0), (0, stage 1), (1, stage 0),
// (1, stage 1).
TEST(RunningStatisticsScope, SharedStatisticsAreUpdatedAfterTheRunInTheLoopsOrder) {
  for (const std::optional<double> momentum :
       {std::optional<double>(0.3), std::optional<double>()}) {
    nn::BatchNorm1d plain = batch_norm(momentum), norm = batch_norm(momentum);
    Model model(2);
    model.tracked.add(0, *norm);
    model.tracked.add(1, *norm);
    const std::vector<at::Tensor> before = copies(buffers_of(norm));
    std::vector<at::Tensor> inputs, outputs;
    for (int k = 0; k < 4; ++k) {
      inputs.push_back(torch::randn({4 + k, 1}) * (k + 1));
      outputs.push_back(plain(inputs.back()));
    }
    for (const int k : {2, 0, 3, 1}) {
      at::Tensor x = inputs[k].clone();
      EXPECT_THAT(model.run(kUpdate, k % 2, k / 2, k % 2, norm, x), EqualsBitwise(outputs[k]));
      x.zero_();  // a later layer may change the norm's input
    }
    EXPECT_THAT(buffers_of(norm), EqualsBitwise(before));
    model.commit();
    EXPECT_THAT(buffers_of(norm), EqualsBitwise(buffers_of(plain)));
    model.commit();
    EXPECT_THAT(buffers_of(norm), EqualsBitwise(buffers_of(plain))) << "the logs are empty now";
  }
}

// The order in which the operator adds up, and so the last bit, depends on the strides of its
// input. So a logged input must keep its strides.
TEST(RunningStatisticsScope, SharedStatisticsAreThoseOfInputsWithTheseStrides) {
  const at::Tensor x = torch::randn({8, 3, 6});
  const std::pair<const char*, at::Tensor> inputs[] = {
      {"contiguous", x},
      {"every second row", torch::randn({16, 3, 6}).slice(0, 0, 16, 2)},
      {"transposed", torch::randn({6, 3, 8}).transpose(0, 2)},
      {"channels last", torch::randn({8, 6, 3}).transpose(1, 2)},
      {"one row expanded", torch::randn({1, 3, 6}).expand({8, 3, 6})},
      {"one column expanded", torch::randn({8, 3, 1}).expand({8, 3, 6})},
      {"transposed and expanded", torch::randn({3, 6, 1}).transpose(0, 1).expand({6, 3, 5})},
      {"one value", torch::randn({1, 3, 1}).expand({8, 3, 6})},
      {"windows", torch::randn({64}).as_strided({8, 3, 6}, {3, 12, 1})},
  };
  for (const auto& [name, input] : inputs) {
    const auto make = [] { return nn::BatchNorm1d(nn::BatchNorm1dOptions(3).momentum(0.3)); };
    nn::BatchNorm1d plain = make(), norm = make();
    Model model(2);
    model.tracked.add(0, *norm);
    model.tracked.add(1, *norm);
    for (int repeat = 0; repeat < 3; ++repeat) {
      const at::Tensor want = plain(input);
      EXPECT_THAT(model.run(kUpdate, 0, repeat, 0, norm, input), EqualsBitwise(want)) << name;
    }
    model.commit();
    EXPECT_THAT(buffers_of(norm), EqualsBitwise(buffers_of(plain))) << name;
  }
}

TEST(RunningStatisticsScope, SharedStatisticsOfAnInstanceNorm) {
  const auto options = nn::InstanceNorm1dOptions(1).track_running_stats(true).momentum(0.3);
  nn::InstanceNorm1d plain(options), norm(options);
  Model model(2);
  model.tracked.add(0, *norm);
  model.tracked.add(1, *norm);
  const at::Tensor first = torch::randn({3, 1, 4}), second = torch::randn({2, 1, 4});
  const at::Tensor y = plain(first), z = plain(second);
  EXPECT_THAT(model.run(kUpdate, 1, 1, 1, norm, second), EqualsBitwise(z));
  EXPECT_THAT(model.run(kUpdate, 0, 0, 0, norm, first), EqualsBitwise(y));
  EXPECT_THAT(norm->running_mean, EqualsBitwise(torch::zeros({1})));
  model.commit();
  EXPECT_THAT(norm->running_mean, EqualsBitwise(plain->running_mean));
  EXPECT_THAT(norm->running_var, EqualsBitwise(plain->running_var));
}

// The mini-batch 0, 0, 9, 7, 9 has mean 5 and unbiased variance 86 / 4, however it is cut.
TEST(RunningStatisticsScope, DeferredStatisticsAreThoseOfTheWholeMiniBatch) {
  nn::BatchNorm1d plain = batch_norm(), norm = batch_norm();
  Model model(1);
  model.tracked.add(0, *norm);
  for (const int64_t order : {0, 1}) {
    const at::Tensor pieces[] = {column({0, 0, 9}), column({7, 9})};
    for (int64_t n = 0; n < 2; ++n) {
      const int64_t i = order == 0 ? n : 1 - n;
      EXPECT_THAT(model.run(kDefer, 0, i, 0, norm, pieces[i]), EqualsBitwise(plain(pieces[i])))
          << "normalized by its own statistics";
    }
    EXPECT_EQ(norm->num_batches_tracked.item<int64_t>(), order)
        << "num_batches_tracked must not change before the commit";
    model.commit();
    EXPECT_THAT(buffers_of(norm),
                EqualsBitwise(order == 0 ? buffers(2.5, 11.25, 1) : buffers(3.75, 16.375, 2)));
  }
  model.commit();
  EXPECT_THAT(buffers_of(norm), EqualsBitwise(buffers(3.75, 16.375, 2))) << "the log is empty";
}

// With a sum of squares the variance would be a difference of two large numbers, for which float
// has too few digits.
TEST(RunningStatisticsScope, DeferredStatisticsDoNotSufferFromALargeMean) {
  nn::BatchNorm1d norm = batch_norm(1.0);
  Model model(1);
  model.tracked.add(0, *norm);
  (void)model.run(kDefer, 0, 0, 0, norm, column({8388608, 8388609}));
  (void)model.run(kDefer, 0, 1, 0, norm, column({8388610, 8388611, 8388612}));
  model.commit();
  EXPECT_THAT(buffers_of(norm), EqualsBitwise(buffers(8388610, 2.5, 1)));
}

// Without a momentum the running statistics are the mean over all mini-batches.
TEST(RunningStatisticsScope, DeferredCumulativeStatisticsCountMiniBatches) {
  nn::BatchNorm1d norm = batch_norm(std::nullopt);
  Model model(1);
  model.tracked.add(0, *norm);
  (void)model.run(kDefer, 0, 0, 0, norm, column({1, 3}));
  (void)model.run(kDefer, 0, 1, 0, norm, column({2, 2, 7}));
  model.commit();
  EXPECT_THAT(buffers_of(norm), EqualsBitwise(buffers(3, 5.5, 1)));
  (void)model.run(kDefer, 0, 0, 0, norm, column({1, 1}));
  (void)model.run(kDefer, 0, 1, 0, norm, column({1, 1, 1}));
  model.commit();
  EXPECT_THAT(buffers_of(norm), EqualsBitwise(buffers(2, 2.75, 2)));
}

// In a mini-batch, a norm gets one update for each of its calls: two from a layer that calls it
// twice, and one from another layer.
TEST(RunningStatisticsScope, EachCallInALayersForwardIsOneDeferredUpdate) {
  nn::BatchNorm1d norm = batch_norm();
  Model model(2);
  model.tracked.add(0, *norm);
  model.tracked.add(1, *norm);
  for (int64_t i = 0; i < 2; ++i) {
    const InterceptionScope interception;
    // The second stage's log is the last one, so its update comes last, although the stage runs
    // first.
    {
      const RunningStatisticsScope scope(kDefer, model.tracked, &model.logs[1], i);
      RunningStatisticsScope::enter_layer(1);
      (void)norm(column({16, 16}));
    }
    const RunningStatisticsScope scope(kDefer, model.tracked, &model.logs[0], i);
    RunningStatisticsScope::enter_layer(0);
    (void)norm(column({4, 4}));
    (void)norm(column({8, 8}));
  }
  model.commit();
  // The running mean goes from 0 half of the way to 4, then to 8, and then to 16.
  EXPECT_THAT(buffers_of(norm), EqualsBitwise(buffers(10.5, 0.125, 3)));
}

// Instances have means 3, 1, 4, 0 (together 2) and unbiased variances 9, 0, 4, 0 (together 3.25). A
// momentum of 1/2 moves the statistics half of the way there.
TEST(RunningStatisticsScope, DeferredStatisticsOfAnInstanceNormAreOverAllInstances) {
  nn::InstanceNorm1d norm(nn::InstanceNorm1dOptions(1).track_running_stats(true).momentum(0.5));
  Model model(1);
  model.tracked.add(0, *norm);
  const at::Tensor x =
      torch::tensor({0.f, 3.f, 6.f, 1.f, 1.f, 1.f, 2.f, 4.f, 6.f, 0.f, 0.f, 0.f}).view({4, 1, 3});
  (void)model.run(kDefer, 0, 0, 0, norm, x.narrow(0, 0, 3));
  (void)model.run(kDefer, 0, 1, 0, norm, x.narrow(0, 3, 1));
  EXPECT_THAT(norm->running_mean, EqualsBitwise(torch::zeros({1})));
  model.commit();
  EXPECT_THAT(norm->running_mean, EqualsBitwise(torch::tensor({1.f})));
  EXPECT_THAT(norm->running_var, EqualsBitwise(torch::tensor({2.125f})));
}

// The forwards of the stage do not ascend, but the updates are made as if they did.
TEST(RunningStatisticsScope, ForwardsOutOfOrderAreUpdatedAfterTheRunInTheLoopsOrder) {
  for (const std::optional<double> momentum :
       {std::optional<double>(0.3), std::optional<double>()}) {
    nn::BatchNorm1d plain = batch_norm(momentum), norm = batch_norm(momentum);
    Model model(1);
    model.tracked.add(0, *norm);
    const std::vector<at::Tensor> before = copies(buffers_of(norm));
    std::vector<at::Tensor> inputs;
    for (int k = 0; k < 3; ++k) {
      inputs.push_back(torch::randn({4 + k, 1}) * (k + 1));
      (void)plain(inputs.back());
    }
    for (const int64_t i : {2, 0, 1}) {
      (void)model.run(kUpdate, 0, i, 0, norm, inputs[i], /*any_order=*/true);
    }
    EXPECT_THAT(buffers_of(norm), EqualsBitwise(before));
    model.commit();
    EXPECT_THAT(buffers_of(norm), EqualsBitwise(buffers_of(plain)));
  }
}

TEST(RunningStatisticsScope, DeferredStatisticsDoNotDependOnTheOrder) {
  std::vector<at::Tensor> inputs;
  for (int k = 0; k < 4; ++k) inputs.push_back(torch::randn({4 + k, 1}) * (k + 1));
  const auto statistics = [&](const std::vector<int64_t>& order, bool any_order) {
    nn::BatchNorm1d norm = batch_norm(0.3);
    Model model(1);
    model.tracked.add(0, *norm);
    for (const int64_t i : order) {
      // The layer calls the norm twice, so a mini-batch makes two updates.
      const InterceptionScope interception;
      const RunningStatisticsScope scope(kDefer, model.tracked, &model.logs[0], i, any_order);
      RunningStatisticsScope::enter_layer(0);
      (void)norm(inputs[i]);
      (void)norm(inputs[i] * 2);
    }
    model.commit();
    EXPECT_EQ(norm->num_batches_tracked.item<int64_t>(), 2);
    return buffers_of(norm);
  };
  const std::vector<at::Tensor> want = statistics({0, 1, 2, 3}, false);
  EXPECT_THAT(statistics({0, 1, 2, 3}, true), EqualsBitwise(want));
  EXPECT_THAT(statistics({2, 0, 3, 1}, true), EqualsBitwise(want));
  EXPECT_THAT(statistics({3, 2, 1, 0}, true), EqualsBitwise(want));
}

StatisticsLog::Statistics one_update(const at::Tensor& mean, const at::Tensor& var) {
  StatisticsLog::Statistics statistics;
  statistics.running_mean = mean;
  statistics.running_var = var;
  statistics.momentum = 0.5;
  statistics.input = column({1, 3});
  return statistics;
}

TEST(StatisticsLog, ACountBelongsToTheUpdateThatFollowsAtItsPlace) {
  std::vector<StatisticsLog> logs(1);
  const at::Tensor counter = torch::tensor(int64_t{0});
  const StatisticsLog::Place here{2, 3, false};
  EXPECT_FALSE(logs[0].counts(here));
  logs[0].count(here, counter, /*cumulative=*/false, 1);
  EXPECT_TRUE(logs[0].counts(here));
  EXPECT_FALSE(logs[0].counts({1, 3, false}));
  EXPECT_FALSE(logs[0].counts({2, 4, false}));
  logs[0].update(here, one_update(torch::zeros({1}), torch::zeros({1})));
  EXPECT_FALSE(logs[0].counts(here));
  EXPECT_EQ(counter.item<int64_t>(), 0);
  StatisticsLog::commit(logs);
  EXPECT_EQ(counter.item<int64_t>(), 1);
}

TEST(StatisticsLog, ACountAloneIsMadeToo) {
  std::vector<StatisticsLog> logs(2);
  const at::Tensor counter = torch::tensor(int64_t{0});
  logs[0].count({0, 0, false}, counter, false, 2);
  logs[0].count({1, 0, false}, counter, false, 3);
  logs[1].count({0, 1, false}, counter, false, 10);
  StatisticsLog::commit(logs);
  EXPECT_EQ(counter.item<int64_t>(), 15);
  EXPECT_FALSE(logs[0].counts({1, 0, false}));
  StatisticsLog::commit(logs);
  EXPECT_EQ(counter.item<int64_t>(), 15);
}

TEST(StatisticsLog, AnUndefinedStatisticIsNotUpdated) {
  std::vector<StatisticsLog> logs(1);
  const at::Tensor mean = torch::zeros({1}), var = torch::zeros({1});
  StatisticsLog::Statistics deferred;
  deferred.running_var = var;
  deferred.momentum = 0.5;
  deferred.mean = torch::full({1}, 2, at::kDouble);
  deferred.spread = torch::full({1}, 4, at::kDouble);
  deferred.elements = 3;
  logs[0].update({0, 0, true}, deferred);
  deferred.running_mean = mean;
  deferred.running_var = at::Tensor();
  logs[0].update({0, 1, true}, deferred);
  StatisticsLog::commit(logs);
  EXPECT_THAT(var, EqualsBitwise(torch::ones({1})));
  EXPECT_THAT(mean, EqualsBitwise(torch::ones({1})));
}

}  // namespace
}  // namespace gpipe::internal
