// Tests that running statistics equal those of the plain model, whatever a module does with them:
// they may be shared between layers and stages, registered twice, updated twice in a forward,
// replaced, or updated by any operator.
//
// Without deferral the plain model runs micro-batch by micro-batch, and the comparison is bitwise.
// With deferral the plain model runs once over the mini-batch. Then the results of norms are not
// passed on (`behind` is false), so that the inputs of a norm do not depend on how other norms cut
// the batch.

#include <ATen/Parallel.h>
#include <ATen/ops/_batch_norm_impl_index.h>
#include <ATen/ops/_batch_norm_with_update.h>
#include <ATen/ops/_native_batch_norm_legit.h>
#include <ATen/ops/batch_norm_update_stats.h>
#include <ATen/ops/native_batch_norm.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/instancenorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/schedule/action.h"
#include "gpipe/schedule/named_schedule.h"
#include "gpipe/schedule/random_schedule.h"
#include "gpipe/testing/plain_model.h"
#include "gpipe/testing/seed.h"
#include "gpipe/testing/torch_seed.h"

namespace gpipe {
namespace {

namespace nn = torch::nn;
using testing::BackwardOrder;
using testing::PlainModel;

constexpr int64_t kChannels = 3;
constexpr int64_t kLength = 6;

using Call = std::function<torch::Tensor(const torch::Tensor&)>;
using Momentum = std::optional<double>;

nn::BatchNorm1d batch_norm(Momentum momentum) {
  return nn::BatchNorm1d(nn::BatchNormOptions(kChannels).momentum(momentum).affine(false));
}

// A linear map, then `call` one or more times with growing factors. If `behind`, the results of the
// calls are passed on. Otherwise only the result of the linear map is.
struct BlockImpl : nn::Module {
  BlockImpl(const std::vector<std::shared_ptr<nn::Module>>& owned, Call call, int calls,
            bool behind)
      : call(std::move(call)), calls(calls), behind(behind) {
    linear = register_module("linear", nn::Linear(kLength, kLength));
    for (size_t k = 0; k < owned.size(); ++k) register_module("own" + std::to_string(k), owned[k]);
  }
  torch::Tensor forward(torch::Tensor x) {
    x = linear(x) * 3 + 1;
    for (int k = 1; k <= calls; ++k) {
      torch::Tensor y = call(x * k);
      if (behind) x = y;
    }
    return x;
  }
  nn::Linear linear{nullptr};
  Call call;
  int calls;
  bool behind;
};
TORCH_MODULE(Block);

// A user's own norm, with buffers and a counter of its own. It calls `op` for its update.
struct CustomNormImpl : nn::Module {
  using Op = std::function<torch::Tensor(const torch::Tensor& x, torch::Tensor& mean,
                                         torch::Tensor& variance, bool training)>;
  explicit CustomNormImpl(Op op) : op(std::move(op)) {
    mean = register_buffer("mean", torch::zeros({kChannels}));
    variance = register_buffer("variance", torch::ones({kChannels}));
    num_batches_tracked =
        register_buffer("num_batches_tracked", torch::zeros({}, torch::dtype(torch::kLong)));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    if (is_training()) num_batches_tracked += 1;
    return op(x, mean, variance, is_training());
  }
  Op op;
  torch::Tensor mean;
  torch::Tensor variance;
  torch::Tensor num_batches_tracked;
};
TORCH_MODULE(CustomNorm);

template <typename Norm>
Block block(Norm norm, bool behind, int calls = 1) {
  return Block(
      std::vector<std::shared_ptr<nn::Module>>{norm.ptr()},
      [norm](const torch::Tensor& x) mutable { return norm->forward(x); }, calls, behind);
}

// A sample makes a model of four layers.
struct Sample {
  std::string name;
  std::function<nn::Sequential(Momentum, bool behind)> make;
};

Sample custom(const std::string& name, CustomNormImpl::Op op) {
  return {name, [op](Momentum, bool behind) {
            CustomNorm first(op);
            CustomNorm second(op);
            return nn::Sequential(block(first, behind), block(second, behind), nn::Tanh(),
                                  block(first, behind));
          }};
}

std::vector<Sample> samples() {
  std::vector<Sample> result;
  result.push_back({"SharedModule", [](Momentum momentum, bool behind) {
                      auto norm = batch_norm(momentum);
                      return nn::Sequential(block(norm, behind), nn::Tanh(), block(norm, behind),
                                            block(norm, behind, 2));
                    }});
  result.push_back({"SharedMembers", [](Momentum momentum, bool behind) {
                      auto a = batch_norm(momentum);
                      auto b = batch_norm(momentum);
                      b->running_mean = a->running_mean;
                      b->running_var = a->running_var;
                      return nn::Sequential(block(a, behind), block(b, behind), block(a, behind),
                                            block(b, behind));
                    }});
  result.push_back({"SharedStorage", [](Momentum momentum, bool behind) {
                      auto a = batch_norm(momentum);
                      auto b = batch_norm(momentum);
                      b->running_mean.set_data(a->running_mean);
                      b->running_var.set_data(a->running_var);
                      b->num_batches_tracked.set_data(a->num_batches_tracked);
                      return nn::Sequential(block(a, behind), block(b, behind), block(a, behind),
                                            block(b, behind));
                    }});
  result.push_back({"CalledTwice", [](Momentum momentum, bool behind) {
                      return nn::Sequential(block(batch_norm(momentum), behind, 2), nn::Tanh(),
                                            block(batch_norm(momentum), behind, 3), nn::Tanh());
                    }});
  result.push_back({"RegisteredTwice", [](Momentum momentum, bool behind) {
                      auto norm = batch_norm(momentum);
                      auto twice = [&] {
                        return Block(
                            std::vector<std::shared_ptr<nn::Module>>{norm.ptr(), norm.ptr()},
                            [norm](const torch::Tensor& x) mutable { return norm->forward(x); }, 1,
                            behind);
                      };
                      return nn::Sequential(twice(), nn::Tanh(), twice(), nn::Tanh());
                    }});
  return result;
}

nn::Sequential seeded_model(const Sample& sample, Momentum momentum, bool behind) {
  torch::manual_seed(3);
  return sample.make(momentum, behind);
}

enum class Entry { kForward, kStep1F1B, kStepGPipe };

LossFn square() {
  return [](const Tensors& outputs, const Tensors&) { return outputs[0].pow(2).mean(); };
}

void train(GPipe& pipe, const torch::Tensor& input, Entry entry) {
  if (entry == Entry::kForward) {
    pipe->forward(input).pow(2).mean().backward();
    return;
  }
  StepOptions options;
  if (entry == Entry::kStepGPipe) options.schedule(Schedule::gpipe);
  pipe->step({input}, {}, square(), options);
}

void expect_same_buffers(nn::Sequential& actual, nn::Sequential& expected) {
  const auto a = actual->named_buffers();
  const auto b = expected->named_buffers();
  ASSERT_EQ(a.keys(), b.keys());
  for (const auto& item : b) {
    EXPECT_TRUE(torch::equal(a[item.key()], item.value()))
        << item.key() << ": " << a[item.key()] << "\nshould be " << item.value();
  }
}

// Both models compute the same sums. The sums differ in how many rows one call of an operator gets,
// which affects the last bits of a double.
void expect_close_buffers(nn::Sequential& actual, nn::Sequential& expected) {
  const auto a = actual->named_buffers();
  const auto b = expected->named_buffers();
  ASSERT_EQ(a.keys(), b.keys());
  for (const auto& item : b) {
    EXPECT_TRUE(torch::allclose(a[item.key()], item.value(), 1e-10, 1e-10))
        << item.key() << ": " << a[item.key()] << "\nshould be " << item.value();
  }
}

// The buffers that a module's forward uses must be those that are registered (and saved).
void expect_members_registered(nn::Sequential& model, const std::vector<torch::Tensor>& before) {
  const std::vector<torch::Tensor> after = model->buffers();
  ASSERT_EQ(after.size(), before.size());
  for (size_t k = 0; k < after.size(); ++k) EXPECT_TRUE(after[k].is_same(before[k])) << k;
  for (const auto& module : model->modules()) {
    auto* norm = dynamic_cast<nn::BatchNorm1dImpl*>(module.get());
    if (norm == nullptr) continue;
    EXPECT_TRUE(norm->num_batches_tracked.is_same(norm->named_buffers()["num_batches_tracked"]));
  }
}

class RunningStatistics
    : public ::testing::TestWithParam<std::tuple<size_t, Checkpoint, Entry, bool>> {
 protected:
  Sample sample() const { return samples()[std::get<0>(GetParam())]; }
  Checkpoint mode() const { return std::get<1>(GetParam()); }
  Entry entry() const { return std::get<2>(GetParam()); }
  Momentum momentum() const { return std::get<3>(GetParam()) ? Momentum() : Momentum(0.3); }

  // Calls fn(balance, chunks) for all balances and numbers of chunks.
  void for_all_cuts(const std::function<void(std::vector<int64_t>, int64_t)>& fn) const {
    const std::vector<std::vector<int64_t>> balances{{4}, {1, 3}, {2, 2}, {1, 1, 1, 1}};
    for (const auto& balance : balances) {
      for (int64_t chunks : {1, 4}) {
        SCOPED_TRACE("partitions " + std::to_string(balance.size()) + ", chunks " +
                     std::to_string(chunks));
        fn(balance, chunks);
      }
    }
  }

  GPipe pipeline(nn::Sequential& module, const std::vector<int64_t>& balance, int64_t chunks,
                 bool deferred) const {
    return GPipe(module, GPipeOptions(balance)
                             .devices(std::vector<torch::Device>(balance.size(), torch::kCPU))
                             .chunks(chunks)
                             .checkpoint(mode())
                             .deferred_batch_norm(deferred));
  }
};

TEST_P(RunningStatistics, PlainOnesAreThoseOfThePlainModel) {
  for_all_cuts([&](const std::vector<int64_t>& balance, int64_t chunks) {
    nn::Sequential plain_module = seeded_model(sample(), momentum(), /*behind=*/true);
    nn::Sequential module = seeded_model(sample(), momentum(), /*behind=*/true);
    PlainModel plain(plain_module, chunks);
    GPipe pipe = pipeline(module, balance, chunks, /*deferred=*/false);
    const std::vector<torch::Tensor> buffers = module->buffers();
    torch::manual_seed(7);
    for (int64_t rows : {8, 7, 5}) {
      const torch::Tensor input = torch::randn({rows, kChannels, kLength});
      plain.step({input}, {}, square(), BackwardOrder::kAscending);
      train(pipe, input, entry());
      expect_same_buffers(module, plain_module);
    }
    expect_members_registered(module, buffers);
    // An evaluation must use the statistics and not change them.
    plain_module->eval();
    pipe->eval();
    const torch::Tensor probe = torch::randn({4, kChannels, kLength});
    torch::NoGradGuard no_grad;
    EXPECT_TRUE(torch::equal(pipe->forward(probe), plain.forward({probe})[0]));
    expect_same_buffers(module, plain_module);
  });
}

TEST_P(RunningStatistics, DeferredOnesAreThoseOfTheWholeBatch) {
  for_all_cuts([&](const std::vector<int64_t>& balance, int64_t chunks) {
    nn::Sequential plain_module = seeded_model(sample(), momentum(), /*behind=*/false);
    nn::Sequential module = seeded_model(sample(), momentum(), /*behind=*/false);
    plain_module->to(torch::kDouble);
    module->to(torch::kDouble);
    GPipe pipe = pipeline(module, balance, chunks, /*deferred=*/true);
    const std::vector<torch::Tensor> buffers = module->buffers();
    torch::manual_seed(7);
    for (int64_t rows : {8, 7, 5}) {
      const torch::Tensor input = torch::randn({rows, kChannels, kLength}, torch::kDouble);
      plain_module->forward(input);
      train(pipe, input, entry());
      expect_close_buffers(module, plain_module);
    }
    expect_members_registered(module, buffers);
  });
}

// In each micro-batch the norm sees a single value, whose variance would be NaN. The variance over
// all micro-batches is a number.
TEST(RunningStatisticsOfSingleValues, CountWhenDeferred) {
  auto make = [] {
    CustomNorm norm(
        [](const torch::Tensor& x, torch::Tensor& mean, torch::Tensor& variance, bool training) {
          const torch::Tensor one_value = x.narrow(1, 0, 1).narrow(2, 0, 1);
          torch::Tensor of_one = mean.narrow(0, 0, 1);
          torch::Tensor around_it = variance.narrow(0, 0, 1);
          at::batch_norm(one_value.detach(), {}, {}, of_one, around_it, training, 0.3, 1e-5, false);
          return x.clone();
        });
    return nn::Sequential(norm, nn::Linear(kLength, kLength));
  };
  nn::Sequential plain_module = make();
  nn::Sequential module = make();
  plain_module->to(torch::kDouble);
  module->to(torch::kDouble);
  GPipe pipe(
      module,
      GPipeOptions({1, 1}).devices({torch::kCPU, torch::kCPU}).chunks(8).deferred_batch_norm(true));
  torch::manual_seed(7);
  const torch::Tensor input = torch::randn({8, kChannels, kLength}, torch::kDouble);
  plain_module->forward(input);
  pipe->step({input}, {}, square());
  expect_close_buffers(module, plain_module);
}

std::string case_name(
    const ::testing::TestParamInfo<std::tuple<size_t, Checkpoint, Entry, bool>>& info) {
  const auto [sample, mode, entry, cumulative] = info.param;
  const char* entries[] = {"Forward", "Step1F1B", "StepGPipe"};
  return samples()[sample].name + "_" + to_text(mode) + "_" + entries[static_cast<int>(entry)] +
         (cumulative ? "_Cumulative" : "_Exponential");
}

INSTANTIATE_TEST_SUITE_P(
    All, RunningStatistics,
    ::testing::Combine(::testing::Range<size_t>(0, samples().size()),
                       ::testing::Values(Checkpoint::kAlways, Checkpoint::kExceptLast),
                       ::testing::Values(Entry::kForward, Entry::kStep1F1B), ::testing::Bool()),
    case_name);

// Schedules whose stages take the micro-batches in another order than the loop. Of two updates the
// last one counts more, so the order matters.
class OutOfOrder : public ::testing::TestWithParam<std::tuple<size_t, Checkpoint, bool>> {
 protected:
  static constexpr int64_t kChunks = 4;

  static Schedule descending(int64_t stages, int64_t micro_batches) {
    std::vector<Action> actions;
    for (int64_t i = micro_batches - 1; i >= 0; --i) {
      for (int64_t j = 0; j < stages; ++j) {
        actions.push_back({ActionKind::kForward, static_cast<int32_t>(j), static_cast<int32_t>(i)});
      }
    }
    for (int64_t i = 0; i < micro_batches; ++i) {
      for (int64_t j = stages - 1; j >= 0; --j) {
        actions.push_back(
            {ActionKind::kBackward, static_cast<int32_t>(j), static_cast<int32_t>(i)});
      }
    }
    return Schedule::create(stages, micro_batches, {actions});
  }

  // Calls fn(balance, generator) for several balances, each with several schedule generators.
  static void for_all(
      const std::function<void(const std::vector<int64_t>&, const ScheduleGenerator&)>& fn) {
    std::mt19937_64 random = testing::test_random();
    const std::vector<std::vector<int64_t>> balances{{4}, {1, 3}, {2, 2}, {1, 1, 1, 1}};
    for (const std::vector<int64_t>& balance : balances) {
      SCOPED_TRACE("partitions " + std::to_string(balance.size()));
      fn(balance, descending);
      for (int k = 0; k < 2; ++k) {
        fn(balance, [&random](int64_t stages, int64_t micro_batches) {
          return testing::random_schedule(stages, micro_batches, testing::MicroBatchOrder::kAny,
                                          random);
        });
      }
    }
  }

  nn::Sequential model(bool behind) const {
    const Momentum momentum = std::get<2>(GetParam()) ? Momentum() : Momentum(0.3);
    return seeded_model(samples()[std::get<0>(GetParam())], momentum, behind);
  }
  GPipe pipeline(nn::Sequential& module, const std::vector<int64_t>& balance, bool deferred) const {
    return GPipe(module, GPipeOptions(balance)
                             .devices(std::vector<torch::Device>(balance.size(), torch::kCPU))
                             .chunks(kChunks)
                             .checkpoint(std::get<1>(GetParam()))
                             .deferred_batch_norm(deferred));
  }
};

TEST_P(OutOfOrder, PlainOnesAreThoseOfTheLoop) {
  for_all([&](const std::vector<int64_t>& balance, const ScheduleGenerator& schedule) {
    nn::Sequential plain_module = model(/*behind=*/true);
    nn::Sequential module = model(/*behind=*/true);
    PlainModel plain(plain_module, kChunks);
    GPipe pipe = pipeline(module, balance, /*deferred=*/false);
    const std::vector<torch::Tensor> buffers = module->buffers();
    torch::manual_seed(7);
    for (int64_t rows : {8, 7}) {
      const torch::Tensor input = torch::randn({rows, kChannels, kLength});
      plain.step({input}, {}, square(), BackwardOrder::kAscending);
      pipe->step({input}, {}, square(), StepOptions().schedule(schedule));
      expect_same_buffers(module, plain_module);
    }
    // The next step has the default schedule. It must not use the order of an earlier step.
    const torch::Tensor input = torch::randn({8, kChannels, kLength});
    plain.step({input}, {}, square(), BackwardOrder::kAscending);
    pipe->step({input}, {}, square());
    expect_same_buffers(module, plain_module);
    expect_members_registered(module, buffers);
  });
}

TEST_P(OutOfOrder, DeferredOnesAreThoseOfAnyOtherOrder) {
  for_all([&](const std::vector<int64_t>& balance, const ScheduleGenerator& schedule) {
    nn::Sequential plain_module = model(/*behind=*/false);
    nn::Sequential ascending_module = model(/*behind=*/false);
    nn::Sequential module = model(/*behind=*/false);
    for (nn::Sequential* each : {&plain_module, &ascending_module, &module}) {
      (*each)->to(torch::kDouble);
    }
    GPipe ascending = pipeline(ascending_module, balance, /*deferred=*/true);
    GPipe pipe = pipeline(module, balance, /*deferred=*/true);
    torch::manual_seed(7);
    for (int64_t rows : {8, 7}) {
      const torch::Tensor input = torch::randn({rows, kChannels, kLength}, torch::kDouble);
      plain_module->forward(input);
      ascending->step({input}, {}, square());
      pipe->step({input}, {}, square(), StepOptions().schedule(schedule));
      expect_close_buffers(module, plain_module);
      expect_same_buffers(module, ascending_module);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(All, OutOfOrder,
                         ::testing::Combine(::testing::Range<size_t>(0, samples().size()),
                                            ::testing::Values(Checkpoint::kAlways,
                                                              Checkpoint::kExceptLast),
                                            ::testing::Bool()),
                         [](const auto& info) {
                           return samples()[std::get<0>(info.param)].name + "_" +
                                  to_text(std::get<1>(info.param)) +
                                  (std::get<2>(info.param) ? "_Cumulative" : "_Exponential");
                         });

// The order of the two updates changes the statistics by more than a rounding. They must be made in
// the order of the loop.
TEST(ForwardsOutOfOrder, OfASingleStageWithTwoForwardsExchanged) {
  const Schedule schedule =
      Schedule::from_text("stages 1\nmicro_batches 2\nworker 0: F0.1 F0.0 B0.0 B0.1\n");
  auto make = [] { return nn::Sequential(batch_norm(0.3), nn::Linear(kLength, kLength)); };
  nn::Sequential plain_module = make();
  nn::Sequential module = make();
  GPipe pipe(module, GPipeOptions({2}).devices({torch::kCPU}).chunks(2));
  const torch::Tensor input = torch::randn({8, kChannels, kLength});
  PlainModel(plain_module, 2).step({input}, {}, square(), BackwardOrder::kAscending);
  pipe->step({input}, {}, square(), StepOptions().schedule(schedule));
  expect_same_buffers(module, plain_module);
}

// A layer that also uses its norm in evaluation mode. The gradient needs the statistics as its own
// micro-batch has left them, but updates of later micro-batches come before the backward.
TEST(RunningStatisticsInEvaluationMode, AreThoseOfTheMicroBatch) {
  for (const bool evaluates_first : {false, true}) {
    const auto make = [&] {
      testing::manual_seed(4);
      nn::BatchNorm1d norm = batch_norm(0.3);
      const Call call = [norm, evaluates_first](const torch::Tensor& x) mutable {
        torch::Tensor sum = torch::zeros_like(x);
        for (const bool evaluates : {evaluates_first, !evaluates_first}) {
          norm->train(!evaluates);
          sum = sum + norm->forward(x);
        }
        norm->train();
        return sum;
      };
      return nn::Sequential(Block(std::vector<std::shared_ptr<nn::Module>>{norm.ptr()}, call, 1,
                                  /*behind=*/true),
                            nn::Tanh(), nn::Linear(kLength, kLength));
    };
    const torch::Tensor input = torch::randn({6, kChannels, kLength});
    const torch::Tensor target = torch::randn({6, kChannels, kLength});
    nn::Sequential plain = make();
    const auto inputs = input.chunk(3);
    const auto targets = target.chunk(3);
    for (size_t k = 0; k < 3; ++k) {
      torch::mse_loss(plain->forward(inputs[k]), targets[k]).backward(torch::tensor(1.0F / 3));
    }
    for (const char* schedule : {"1f1b", "fill-drain", "sequential"}) {
      SCOPED_TRACE(std::string(schedule) + (evaluates_first ? ", evaluates first" : ""));
      nn::Sequential module = make();
      GPipe pipe(module, GPipeOptions({2, 1})
                             .devices(std::vector<torch::Device>(2, torch::kCPU))
                             .chunks(3)
                             .checkpoint(Checkpoint::kNever));
      const LossFn loss = [](const Tensors& outputs, const Tensors& goals) {
        return torch::mse_loss(outputs.at(0), goals.at(0));
      };
      pipe->step({input}, {target}, loss, StepOptions().schedule(schedule_by_name(schedule)));
      expect_same_buffers(module, plain);
      const auto gradients = module->parameters();
      const auto expected = plain->parameters();
      for (size_t k = 0; k < expected.size(); ++k) {
        EXPECT_TRUE(gradients[k].grad().equal(expected[k].grad()))
            << (gradients[k].grad() - expected[k].grad()).abs().max().item<float>();
      }
    }
  }
}

// A layer whose norm can be replaced.
struct ChangeableImpl : nn::Module {
  ChangeableImpl() {
    linear = register_module("linear", nn::Linear(kLength, kLength));
    norm = register_module("norm", batch_norm({}));
  }
  void change() { norm = replace_module("norm", batch_norm({})); }
  torch::Tensor forward(const torch::Tensor& x) { return norm(linear(x)); }
  nn::Linear linear{nullptr};
  nn::BatchNorm1d norm{nullptr};
};
TORCH_MODULE(Changeable);

class Setting : public ::testing::TestWithParam<std::tuple<Checkpoint, bool>> {
 protected:
  GPipe pipeline(nn::Sequential& module, int64_t chunks) const {
    return GPipe(module, GPipeOptions({1, 1})
                             .devices({torch::kCPU, torch::kCPU})
                             .chunks(chunks)
                             .checkpoint(std::get<0>(GetParam()))
                             .deferred_batch_norm(deferred()));
  }
  bool deferred() const { return std::get<1>(GetParam()); }
};

// The first stage would update the statistics at once, without the updates that the second stage
// makes in between. So the first call in which the second stage updates them throws. From then on
// the pipeline knows that both stages use the norm.
TEST(RunningStatisticsByHandle, OfANormOfAnotherStageAreAnErrorOnce) {
  for (const bool from_the_start : {true, false}) {
    SCOPED_TRACE(from_the_start);
    auto used = std::make_shared<nn::BatchNorm1d>(nullptr);
    const Call call = [used](const torch::Tensor& x) { return *used ? (*used)->forward(x) : x; };
    nn::BatchNorm1d norm = batch_norm(0.3);
    nn::Sequential module(block(norm, true),
                          Block(std::vector<std::shared_ptr<nn::Module>>{}, call, 1, true));
    GPipe pipe(module, GPipeOptions({1, 1})
                           .devices(std::vector<torch::Device>(2, torch::kCPU))
                           .chunks(4)
                           .checkpoint(Checkpoint::kNever));
    const torch::Tensor input = torch::randn({8, kChannels, kLength});
    for (int k = 0; k < 2 && !from_the_start; ++k) pipe->step({input}, {}, square());
    *used = norm;
    try {
      pipe->step({input}, {}, square());
      ADD_FAILURE() << "not noticed";
    } catch (const c10::Error& error) {
      EXPECT_NE(
          std::string(error.what())
              .find("stage 1 updates running statistics of a norm that stage 0 has registered"),
          std::string::npos)
          << error.what();
    }
    // The next step works, because the pipeline knows now that both stages use the norm.
    const int64_t before = norm->num_batches_tracked.item<int64_t>();
    pipe->step({input}, {}, square());
    EXPECT_EQ(norm->num_batches_tracked.item<int64_t>(), before + 8);
  }
}

TEST_P(Setting, ANormReplacedLaterIsSeen) {
  torch::manual_seed(3);
  Changeable plain_layer;
  torch::manual_seed(3);
  Changeable layer;
  nn::Sequential plain_module(plain_layer, nn::Tanh());
  nn::Sequential module(layer, nn::Tanh());
  const int64_t chunks = 4;
  PlainModel plain(plain_module, chunks);
  GPipe pipe = pipeline(module, chunks);
  const torch::Tensor input = torch::randn({8, kChannels, kLength});
  auto compare = [&] {
    if (deferred()) {
      torch::NoGradGuard no_grad;
      plain_module->forward(input);
      EXPECT_TRUE(torch::allclose(layer->norm->running_mean, plain_layer->norm->running_mean));
      EXPECT_TRUE(torch::allclose(layer->norm->running_var, plain_layer->norm->running_var));
      EXPECT_TRUE(
          torch::equal(layer->norm->num_batches_tracked, plain_layer->norm->num_batches_tracked));
    } else {
      plain.step({input}, {}, square(), BackwardOrder::kAscending);
      expect_same_buffers(module, plain_module);
    }
  };
  train(pipe, input, Entry::kForward);
  compare();
  // The norm may also be replaced between a forward and its backward, unless a recompute would see
  // the new norm, which throws.
  torch::Tensor output = pipe->forward(input);
  compare();
  layer->change();
  plain_layer->change();
  const torch::Tensor loss = output.pow(2).mean();
  if (std::get<0>(GetParam()) == Checkpoint::kNever) {
    loss.backward();
  } else {
    EXPECT_THROW(loss.backward(), c10::Error);
  }
  expect_same_buffers(module, plain_module);
  train(pipe, input, Entry::kStep1F1B);
  compare();
}

TEST_P(Setting, TrainingGoesOnAfterAForwardInInferenceMode) {
  const Sample sample = samples()[0];
  nn::Sequential plain_module = seeded_model(sample, {}, /*behind=*/false);
  nn::Sequential module = seeded_model(sample, {}, /*behind=*/false);
  plain_module->to(torch::kDouble);
  module->to(torch::kDouble);
  const int64_t chunks = 4;
  GPipe pipe(module, GPipeOptions({2, 2})
                         .devices({torch::kCPU, torch::kCPU})
                         .chunks(chunks)
                         .checkpoint(std::get<0>(GetParam()))
                         .deferred_batch_norm(deferred()));
  const torch::Tensor input = torch::randn({8, kChannels, kLength}, torch::kDouble);
  PlainModel plain(plain_module, chunks);
  auto plain_forward = [&] {
    torch::NoGradGuard no_grad;
    if (deferred()) {
      plain_module->forward(input);
    } else {
      plain.forward({input});
    }
  };
  for (int k = 0; k < 2; ++k) {
    {
      c10::InferenceMode inference;
      pipe->forward(input);
    }
    plain_forward();
    expect_close_buffers(module, plain_module);
    train(pipe, input, k == 0 ? Entry::kForward : Entry::kStep1F1B);
    plain_forward();
    expect_close_buffers(module, plain_module);
  }
}

TEST_P(Setting, AFailureLeavesSharedStatisticsAsTheyWere) {
  nn::Sequential module = seeded_model(samples()[0], {}, /*behind=*/true);
  GPipe pipe(module, GPipeOptions({2, 2})
                         .devices({torch::kCPU, torch::kCPU})
                         .chunks(4)
                         .checkpoint(std::get<0>(GetParam()))
                         .deferred_batch_norm(deferred()));
  const torch::Tensor input = torch::randn({8, kChannels, kLength});
  train(pipe, input, Entry::kStep1F1B);
  std::vector<torch::Tensor> before;
  for (const torch::Tensor& buffer : module->buffers()) before.push_back(buffer.clone());
  int calls = 0;
  LossFn failing = [&](const Tensors& outputs, const Tensors&) {
    if (++calls == 3) throw std::runtime_error("third");
    return outputs[0].mean();
  };
  EXPECT_THROW(pipe->step({input}, {}, failing), std::runtime_error);
  const std::vector<torch::Tensor> after = module->buffers();
  for (size_t k = 0; k < before.size(); ++k) EXPECT_TRUE(torch::equal(after[k], before[k])) << k;
  // The rows differ from those before (`input + 1`), because the same rows would change the
  // statistics by rounding only.
  train(pipe, input + 1, Entry::kStep1F1B);
  EXPECT_FALSE(torch::equal(module->buffers()[0], before[0]));
}

// LibTorch sums a channels-last input by threads, so the number of threads decides about last bits.
// The statistics of a shared norm are updated at the end of a call, on the caller's thread. It must
// use the stage's number of threads there.
TEST(RunningStatisticsOfAChannelsLastInput, AreThoseOfTheStagesThreads) {
  struct Normed : nn::Module {
    explicit Normed(nn::BatchNorm2d norm) : norm(register_module("norm", std::move(norm))) {}
    torch::Tensor forward(torch::Tensor x) { return norm(x); }
    nn::BatchNorm2d norm;
  };
  const auto make = [] {
    testing::manual_seed(1);
    const nn::BatchNorm2d norm(8);
    nn::Sequential model;
    model->push_back(std::make_shared<Normed>(norm));
    model->push_back(nn::Conv2d(nn::Conv2dOptions(8, 8, 1)));
    model->push_back(std::make_shared<Normed>(norm));
    return model;
  };
  testing::manual_seed(2);
  const torch::Tensor x = torch::randn({8, 8, 24, 24}).contiguous(at::MemoryFormat::ChannelsLast);
  const LossFn loss = [](const Tensors& outputs, const Tensors&) { return outputs[0].mean(); };
  const int threads = at::get_num_threads();
  for (const int callers : {1, 2, 4}) {
    SCOPED_TRACE(callers);
    nn::Sequential plain = make();
    nn::Sequential module = make();
    at::set_num_threads(callers);
    GPipe pipe(module, GPipeOptions({1, 2}).chunks(2).cpu_threads_per_stage(1));
    pipe->step({x}, {}, loss);
    EXPECT_EQ(at::get_num_threads(), callers);
    at::set_num_threads(1);
    PlainModel(plain, 2).step({x}, {}, loss, BackwardOrder::kAscending);
    at::set_num_threads(threads);
    const std::vector<torch::Tensor> have = module->buffers();
    const std::vector<torch::Tensor> want = plain->buffers();
    for (size_t k = 0; k < want.size(); ++k) EXPECT_TRUE(torch::equal(have[k], want[k])) << k;
  }
}

INSTANTIATE_TEST_SUITE_P(All, Setting,
                         ::testing::Combine(::testing::Values(Checkpoint::kAlways,
                                                              Checkpoint::kExceptLast,
                                                              Checkpoint::kNever),
                                            ::testing::Bool()));

}  // namespace
}  // namespace gpipe
