// Tests step() under schedules that are neither GPipe's nor 1F1B: several stages on a worker,
// backwards split into input gradients and weight gradients, micro-batches in any order.
// transparency_test shows that all sample models give the same results under random tables.

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/schedule/random_schedule.h"
#include "gpipe/schedule/sequential.h"
#include "gpipe/testing/bitwise.h"
#include "gpipe/testing/cpu_options.h"
#include "gpipe/testing/plain_model.h"
#include "gpipe/testing/seed.h"
#include "gpipe/testing/torch_seed.h"

namespace gpipe {
namespace {

namespace nn = torch::nn;
using testing::BackwardOrder;
using testing::cpu_options;
using ::testing::ElementsAre;
using testing::EqualsBitwise;
using ::testing::HasSubstr;
using testing::PlainModel;
using testing::square_loss;
using torch::Tensor;

constexpr int64_t kWidth = 6;
constexpr int64_t kRows = 11;  // makes micro-batches of 3, 3, 3 and 2 rows

// ZB-H1 (Qi et al., "Zero Bubble Pipeline Parallelism", 2023): 1F1B in which weight gradients fill
// the time that a worker would wait. It is for four stages and four micro-batches.
Schedule zero_bubble() {
  return Schedule::from_text(R"(
stages 4
micro_batches 4
worker 0: F0.0 F0.1 F0.2 F0.3 I0.0 W0.0 I0.1 W0.1 I0.2 W0.2 I0.3 W0.3
worker 1: F1.0 F1.1 F1.2 I1.0 F1.3 I1.1 W1.0 I1.2 W1.1 I1.3 W1.2 W1.3
worker 2: F2.0 F2.1 I2.0 F2.2 I2.1 F2.3 I2.2 W2.0 I2.3 W2.1 W2.2 W2.3
worker 3: F3.0 I3.0 F3.1 I3.1 F3.2 I3.2 F3.3 I3.3 W3.0 W3.1 W3.2 W3.3
)");
}

// The interleaved schedule (Narayanan et al., 2021): two workers, each with two stages, round
// robin.
Schedule interleaved() {
  return Schedule::from_text(R"(
stages 4
micro_batches 4
worker 0: F0.0 F0.1 F2.0 F2.1 F0.2 F0.3 B2.0 B2.1 F2.2 F2.3 B0.0 B0.1 B2.2 B2.3 B0.2 B0.3
worker 1: F1.0 F1.1 F3.0 B3.0 F3.1 B3.1 F1.2 F1.3 B1.0 B1.1 F3.2 B3.2 F3.3 B3.3 B1.2 B1.3
)");
}

// A schedule with all stages on one worker, and with split backwards.
Schedule one_worker() {
  std::string actions;
  for (const char* kind : {"F", "I", "W"}) {
    for (int i = 0; i < 4; ++i) {
      for (int k = 0; k < 4; ++k) {
        const int stage = *kind == 'F' ? k : 3 - k;
        actions += " " + (kind + std::to_string(stage)) + "." + std::to_string(i);
      }
    }
  }
  return Schedule::from_text("stages 4\nmicro_batches 4\nworker 0:" + actions + "\n");
}

// A layer with a weight, which it registers only if `owns` is true. In model() the last stage uses
// the weight of the first stage, too.
struct TiedImpl : nn::Module {
  explicit TiedImpl(Tensor weight, bool owns) : weight(std::move(weight)) {
    if (owns) register_parameter("weight", this->weight);
  }
  Tensor forward(Tensor x) { return x.matmul(weight.t()).tanh() + x * weight[0]; }
  Tensor weight;
};
TORCH_MODULE(Tied);

nn::Sequential model() {
  testing::manual_seed(1);
  const Tensor weight = torch::randn({kWidth, kWidth}).requires_grad_();
  return nn::Sequential(Tied(weight, true), nn::BatchNorm1d(kWidth), nn::Linear(kWidth, kWidth),
                        nn::Dropout(0.3), nn::Tanh(), Tied(weight, false),
                        nn::Linear(nn::LinearOptions(kWidth, kWidth).bias(false)));
}

struct Batch {
  Tensor x = torch::randn({kRows, kWidth});
  Tensor y = torch::randn({kRows, kWidth});
};

class HandWritten : public ::testing::TestWithParam<std::tuple<int, Checkpoint>> {
 protected:
  Schedule schedule() const {
    const Schedule all[] = {zero_bubble(), interleaved(), one_worker(), sequential(4, 4)};
    return all[std::get<0>(GetParam())];
  }
  Checkpoint mode() const { return std::get<1>(GetParam()); }
};

TEST_P(HandWritten, IsThePlainModelBitForBit) {
  at::set_num_threads(1);
  nn::Sequential plain_module = model();
  PlainModel plain(plain_module, 4);
  GPipe pipe(model(), cpu_options({2, 1, 2, 2}).chunks(4).checkpoint(mode()));
  const Batch batch;
  // These are parameters of the loss, so no stage waits for their gradients.
  Tensor scales[] = {torch::ones({kWidth}).requires_grad_(),
                     torch::ones({kWidth}).requires_grad_()};
  for (int call = 0; call < 3; ++call) {
    Tensor inputs[2];
    StepResult results[2];
    for (int which : {0, 1}) {
      inputs[which] = batch.x.clone().requires_grad_();
      auto loss = [&](const Tensors& outputs, const Tensors& targets) {
        return square_loss({outputs[0] * scales[which]}, targets);
      };
      testing::manual_seed(5 + call);
      if (which == 0) {
        results[0] = plain.step({inputs[0]}, {batch.y}, loss, BackwardOrder::kAscending);
      } else {
        results[1] = pipe->step({inputs[1]}, {batch.y}, loss,
                                StepOptions().schedule(schedule()).keep_outputs(true));
      }
    }
    EXPECT_EQ(results[1].loss, results[0].loss);
    EXPECT_THAT(results[1].outputs[0], EqualsBitwise(results[0].outputs[0]));
    EXPECT_THAT(inputs[1].grad(), EqualsBitwise(inputs[0].grad()));
    EXPECT_THAT(scales[1].grad(), EqualsBitwise(scales[0].grad()));
    const auto have = pipe->named_parameters();
    for (const auto& want : plain_module->named_parameters()) {
      EXPECT_THAT(have[want.key()].grad(), EqualsBitwise(want.value().grad())) << want.key();
    }
    const auto buffers = pipe->named_buffers();
    for (const auto& want : plain_module->named_buffers()) {
      EXPECT_THAT(buffers[want.key()], EqualsBitwise(want.value())) << want.key();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, HandWritten,
                         ::testing::Combine(::testing::Range(0, 4),
                                            ::testing::Values(Checkpoint::kAlways,
                                                              Checkpoint::kExceptLast,
                                                              Checkpoint::kNever)));

// The gradients of a weight must be added up in the order in which the table has the B and W of its
// stage.
TEST(AnyOrder, GradientsAddUpInTheOrderOfTheTable) {
  at::set_num_threads(1);
  std::mt19937_64 random = testing::test_random();
  const std::vector<int64_t> balance = {2, 1, 2};
  auto make = [] {
    testing::manual_seed(1);
    return nn::Sequential(nn::Linear(kWidth, kWidth), nn::Tanh(), nn::Linear(kWidth, kWidth),
                          nn::Dropout(0.3), nn::Linear(kWidth, kWidth));
  };
  const std::map<std::string, int> stage_of = {{"0", 0}, {"1", 0}, {"2", 1}, {"3", 2}, {"4", 2}};
  const Batch batch;
  nn::Sequential plain_module = make();
  std::map<std::string, std::vector<Tensor>> pieces;  // [parameter][micro-batch]
  for (auto& parameter : plain_module->named_parameters()) {
    parameter.value().register_hook([&pieces, key = parameter.key()](const Tensor& gradient) {
      pieces[key].push_back(gradient.clone());
    });
  }
  testing::manual_seed(5);
  PlainModel(plain_module, 4).step({batch.x}, {batch.y}, square_loss, BackwardOrder::kAscending);
  for (int k = 0; k < 40; ++k) {
    const Schedule schedule =
        testing::random_schedule(3, 4, testing::MicroBatchOrder::kAny, random);
    SCOPED_TRACE(schedule.to_text());
    std::vector<std::vector<int>> order(3);
    for (const auto& actions : schedule.table()) {
      for (const Action& action : actions) {
        if (action.kind == ActionKind::kBackward || action.kind == ActionKind::kWeightGradient) {
          order[action.stage].push_back(action.micro_batch);
        }
      }
    }
    GPipe pipe(make(), cpu_options(balance).chunks(4));
    testing::manual_seed(5);
    pipe->step({batch.x}, {batch.y}, square_loss, StepOptions().schedule(schedule));
    for (const auto& parameter : pipe->named_parameters()) {
      const std::vector<Tensor>& terms = pieces.at(parameter.key());
      Tensor want;
      for (int i : order[stage_of.at(parameter.key().substr(0, 1))]) {
        want = want.defined() ? want + terms[i] : terms[i];
      }
      EXPECT_THAT(parameter.value().grad(), EqualsBitwise(want)) << parameter.key();
    }
  }
}

// --- kExceptLast

struct CountRecomputesImpl : nn::Module {
  Tensor forward(Tensor x) {
    if (is_recomputing()) ++count;
    return x.tanh();
  }
  std::atomic<int> count{0};
};
TORCH_MODULE(CountRecomputes);

TEST(ExceptLast, RecomputesNothingWhoseBackwardIsNextOnItsWorker) {
  std::vector<CountRecomputes> layers;
  nn::Sequential module;
  module->push_back(nn::Linear(kWidth, kWidth));
  for (int j = 0; j < 4; ++j) {
    layers.emplace_back();
    module->push_back(layers.back());
  }
  GPipe pipe(module, cpu_options({2, 1, 1, 1}).chunks(4));
  const Batch batch;
  auto recomputes = [&](const StepOptions& options) {
    for (CountRecomputes& layer : layers) layer->count = 0;
    pipe->step({batch.x}, {batch.y}, square_loss, options);
    std::vector<int> counts;
    for (CountRecomputes& layer : layers) counts.push_back(layer->count);
    return counts;
  };
  EXPECT_THAT(recomputes(StepOptions().schedule(Schedule::gpipe)), ElementsAre(3, 3, 3, 3));
  EXPECT_THAT(recomputes(StepOptions()), ElementsAre(4, 4, 4, 0)) << "1F1B";
  EXPECT_THAT(recomputes(StepOptions().schedule(zero_bubble())), ElementsAre(4, 4, 4, 0));
  for (CountRecomputes& layer : layers) layer->count = 0;
  pipe->forward(batch.x).sum().backward();
  for (CountRecomputes& layer : layers) EXPECT_EQ(layer->count, 3) << "forward()";
}

// --- user code in backward

// A layer with two hooks that draw random numbers: on an activation and on a computed weight.
struct DrawingHooksImpl : nn::Module {
  DrawingHooksImpl() { weight = register_parameter("weight", torch::eye(kWidth)); }
  Tensor forward(Tensor x) {
    auto draw = [](const Tensor& gradient) { return gradient * torch::rand_like(gradient); };
    const Tensor w = weight * 1;
    const Tensor y = x.matmul(w).tanh();
    w.register_hook(draw);
    y.register_hook(draw);
    return y * 2;
  }
  Tensor weight;
};
TORCH_MODULE(DrawingHooks);

TEST(UsersCode, DrawsTheSameUnderEveryTable) {
  std::mt19937_64 random = testing::test_random();
  const Batch batch;
  std::vector<Tensor> want;
  for (int k = 0; k < 20; ++k) {
    testing::manual_seed(1);
    DrawingHooks last;
    nn::Sequential module(nn::Linear(kWidth, kWidth), DrawingHooks(), last);
    last->weight.register_hook([](const Tensor& g) { return g + torch::rand_like(g); });
    GPipe pipe(module, cpu_options({1, 1, 1}).chunks(4));
    StepOptions options;
    if (k > 0) {
      options.schedule(
          testing::random_schedule(3, 4, testing::MicroBatchOrder::kAscending, random));
    }
    testing::manual_seed(5);
    pipe->step({batch.x}, {batch.y}, square_loss, options);
    const std::vector<Tensor> parameters = pipe->parameters();
    for (size_t p = 0; p < parameters.size(); ++p) {
      if (k == 0) {
        want.push_back(parameters[p].grad());
      } else {
        EXPECT_THAT(parameters[p].grad(), EqualsBitwise(want[p])) << p;
      }
    }
  }
}

// A hook that adds noise to the gradient that has just been accumulated.
struct NoiseAfterwards : torch::autograd::PostAccumulateGradHook {
  void operator()(const Tensor& leaf) override {
    torch::NoGradGuard no_grad;
    leaf.mutable_grad().add_(torch::randn_like(leaf), 0.1);
  }
};

// Runs a step with gradient noise on every parameter, and returns their gradients.
std::vector<Tensor> noisy_step(const std::vector<int64_t>& balance, Checkpoint mode, bool tied,
                               const std::optional<Schedule>& schedule) {
  testing::manual_seed(1);
  const Tensor weight = torch::randn({kWidth, kWidth}).requires_grad_();
  nn::Sequential module(nn::Linear(kWidth, kWidth), Tied(weight, true), nn::Linear(kWidth, kWidth));
  module->push_back(tied ? Tied(weight, false) : Tied(torch::ones({1, kWidth}), false));
  GPipe pipe(module, cpu_options(balance).chunks(4).checkpoint(mode));
  const Tensor scale = torch::ones({kWidth}).requires_grad_();  // only the loss uses this parameter
  std::vector<Tensor> leaves = pipe->parameters();
  EXPECT_EQ(leaves.size(), 5u);
  leaves.push_back(scale);
  for (const Tensor& leaf : leaves) {
    leaf.register_hook([](const Tensor& g) { return g + torch::randn_like(g); });
  }
  torch::autograd::impl::set_post_acc_grad_hooks(leaves[1], std::make_unique<NoiseAfterwards>());
  StepOptions options;
  if (schedule) options.schedule(*schedule);
  const Tensor x = torch::randn({kRows, kWidth}), y = torch::randn({kRows, kWidth});
  testing::manual_seed(5);
  pipe->step(
      {x}, {y},
      [&](const Tensors& outputs, const Tensors& targets) {
        return square_loss({outputs[0] * scale}, targets);
      },
      options);
  std::vector<Tensor> gradients;
  for (const Tensor& leaf : leaves) gradients.push_back(leaf.grad());
  return gradients;
}

TEST(UsersCode, AParametersHookDrawsTheSameForEveryBalance) {
  at::set_num_threads(1);
  std::mt19937_64 random = testing::test_random();
  for (const bool tied : {false, true}) {
    const std::vector<Tensor> want = noisy_step({4}, Checkpoint::kNever, tied, std::nullopt);
    for (const std::vector<int64_t>& balance :
         {std::vector<int64_t>{4}, {1, 3}, {3, 1}, {2, 2}, {1, 2, 1}, {1, 1, 1, 1}}) {
      for (Checkpoint mode : {Checkpoint::kAlways, Checkpoint::kExceptLast, Checkpoint::kNever}) {
        const auto stages = static_cast<int64_t>(balance.size());
        for (int k = 0; k < 3; ++k) {
          SCOPED_TRACE(::testing::PrintToString(balance) + " " + to_text(mode) +
                       (tied ? " tied " : " ") + std::to_string(k));
          std::optional<Schedule> schedule;
          if (k > 0) {
            schedule =
                testing::random_schedule(stages, 4, testing::MicroBatchOrder::kAscending, random);
          }
          EXPECT_THAT(noisy_step(balance, mode, tied, schedule), EqualsBitwise(want));
        }
      }
    }
  }
}

// No two calls of the parameters' hooks may draw the same numbers.
TEST(UsersCode, EachParametersHookDrawsNumbersOfItsOwn) {
  testing::manual_seed(1);
  nn::Sequential module(nn::Linear(kWidth, kWidth), nn::Linear(kWidth, kWidth));
  GPipe pipe(module, cpu_options({1, 1}).chunks(2));
  std::vector<Tensor> drawn;
  for (const Tensor& parameter : pipe->parameters()) {
    parameter.register_hook([&drawn](const Tensor& g) {
      static std::mutex mutex;
      const Tensor numbers = torch::rand({4});
      const std::lock_guard<std::mutex> lock(mutex);
      drawn.push_back(numbers);
      return g;
    });
  }
  pipe->step({torch::randn({4, kWidth})}, {torch::randn({4, kWidth})}, square_loss);
  ASSERT_EQ(drawn.size(), 8u);
  for (size_t a = 0; a < drawn.size(); ++a) {
    for (size_t b = 0; b < a; ++b) EXPECT_FALSE(torch::equal(drawn[a], drawn[b])) << a << " " << b;
  }
}

struct ScalesInPlace : torch::autograd::Function<ScalesInPlace> {
  static Tensor forward(torch::autograd::AutogradContext*, Tensor x) { return x.clone(); }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list gradients) {
    return {gradients[0].mul_(3)};
  }
};

struct PairImpl : nn::Module {
  Tensors forward(Tensor x) { return {ScalesInPlace::apply(x), x.tanh()}; }
};
TORCH_MODULE(Pair);

struct JoinImpl : nn::Module {
  JoinImpl() { weight = register_parameter("weight", torch::randn({kWidth, kWidth})); }
  Tensor forward(Tensors x) { return x[0] + x[1].matmul(weight); }
  Tensor weight;
};
TORCH_MODULE(Join);

// The gradient of the sum goes to an earlier stage, which changes it in place. The product needs
// that gradient later, for its weight half, and must find it unchanged.
TEST(UsersCode, OfAnEarlierStageMayChangeItsGradientInPlace) {
  at::set_num_threads(1);
  const Batch batch;
  std::vector<Tensor> results[2];
  for (int which : {0, 1}) {
    testing::manual_seed(1);
    nn::Sequential module(nn::Linear(kWidth, kWidth), Pair(), Join(), nn::Linear(kWidth, kWidth));
    if (which == 0) {
      PlainModel(module, 4).step({batch.x}, {batch.y}, square_loss, BackwardOrder::kAscending);
    } else {
      GPipe pipe(module, cpu_options({1, 1, 1, 1}).chunks(4).checkpoint(Checkpoint::kNever));
      pipe->step({batch.x}, {batch.y}, square_loss, StepOptions().schedule(one_worker()));
    }
    for (const Tensor& parameter : module->parameters()) results[which].push_back(parameter.grad());
  }
  for (size_t p = 0; p < results[0].size(); ++p) {
    EXPECT_THAT(results[1][p], EqualsBitwise(results[0][p])) << p;
  }
}

// --- failures

// A function in the gradient of a weight only. Its backward fails in the second call.
struct FailingWeight : torch::autograd::Function<FailingWeight> {
  static Tensor forward(torch::autograd::AutogradContext*, Tensor weight) { return weight.clone(); }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list gradients) {
    if (++calls == 2) throw std::runtime_error("trouble with the weight");
    return gradients;
  }
  static inline std::atomic<int> calls{0};
};

struct FailingLinearImpl : nn::Module {
  FailingLinearImpl() { weight = register_parameter("weight", torch::eye(kWidth)); }
  Tensor forward(Tensor x) { return x.matmul(FailingWeight::apply(weight)); }
  Tensor weight;
};
TORCH_MODULE(FailingLinear);

TEST(SplitBackward, AFailureInAWeightsGradientSaysWhereAndThePipelineGoesOn) {
  for (Checkpoint mode : {Checkpoint::kAlways, Checkpoint::kNever}) {
    testing::manual_seed(1);
    GPipe pipe(nn::Sequential(nn::Linear(kWidth, kWidth), nn::Tanh(), FailingLinear(), nn::Tanh()),
               cpu_options({1, 1, 1, 1}).chunks(4).checkpoint(mode));
    const Batch batch;
    const StepOptions options = StepOptions().schedule(zero_bubble());
    FailingWeight::calls = 0;
    try {
      pipe->step({batch.x}, {batch.y}, square_loss, options);
      FAIL();
    } catch (const std::runtime_error& error) {
      EXPECT_THAT(error.what(), HasSubstr("trouble with the weight"));
      EXPECT_THAT(error.what(), HasSubstr("backward (of weights) of stage 2"));
      EXPECT_THAT(error.what(), HasSubstr("layer 2"));
    }
    const std::optional<Failure> failure = pipe->last_failure();
    ASSERT_TRUE(failure.has_value());
    EXPECT_EQ(failure->stage, 2);
    EXPECT_EQ(failure->micro_batch, 1);
    EXPECT_TRUE(failure->backward);
    EXPECT_EQ(failure->layer, "layer 2 ('2')");
    std::vector<Tensor> gradients[2];
    for (int schedule : {0, 1}) {
      pipe->zero_grad();
      pipe->step({batch.x}, {batch.y}, square_loss, schedule == 0 ? options : StepOptions());
      for (const Tensor& parameter : pipe->parameters()) {
        gradients[schedule].push_back(parameter.grad().clone());
      }
    }
    for (size_t k = 0; k < gradients[0].size(); ++k) {
      EXPECT_THAT(gradients[0][k], EqualsBitwise(gradients[1][k])) << k;
    }
  }
}

}  // namespace
}  // namespace gpipe
