// Tests the pipeline as a part of a larger autograd graph: it must support everything that autograd
// offers a plain module. Its results must be bitwise those of the plain model, run micro-batch by
// micro-batch.

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim.h>
#include <torch/serialize.h>
#include <torch/utils.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/placement.h"
#include "gpipe/testing/bitwise.h"
#include "gpipe/testing/function_layer.h"
#include "gpipe/testing/plain_model.h"
#include "gpipe/testing/tied_product.h"
#include "gpipe/testing/torch_seed.h"

namespace gpipe {
namespace {

namespace nn = torch::nn;
using testing::EqualsBitwise;
using ::testing::HasSubstr;
using testing::PlainModel;
using testing::TiedProduct;

nn::Sequential chain() {
  testing::manual_seed(1);
  return nn::Sequential(nn::Linear(4, 6), nn::Tanh(), nn::Linear(6, 6), nn::Tanh(),
                        nn::Linear(6, 2));
}

constexpr int64_t kChunks = 3;

// If there is one worker, it runs on the caller's thread, so its backward runs inside the caller's
// backward.
struct Setting {
  Checkpoint mode = Checkpoint::kNever;
  bool one_worker = false;
};

GPipeOptions options_for(const std::vector<int64_t>& balance, const Setting& setting) {
  GPipeOptions options(balance);
  options.devices(std::vector<c10::Device>(balance.size(), c10::kCPU))
      .chunks(kChunks)
      .checkpoint(setting.mode);
  if (setting.one_worker) options.placement(Placement::of(std::vector<int64_t>(balance.size(), 0)));
  return options;
}

GPipe piped(nn::Sequential model, const Setting& setting) {
  return GPipe(model, options_for({2, 2, 1}, setting));
}

torch::Tensor batch() {
  testing::manual_seed(2);
  return torch::randn({6, 4});
}

class Autograd : public ::testing::TestWithParam<Setting> {};

TEST_P(Autograd, GradTowardsInputsLeavesParametersAlone) {
  nn::Sequential plain = chain();
  GPipe pipe = piped(chain(), GetParam());
  const torch::Tensor x = batch().requires_grad_();
  const torch::Tensor y = batch().requires_grad_();
  const Tensors output = PlainModel(plain, kChunks).forward({x * 2});
  const auto want = torch::autograd::grad({output[0].pow(2).sum()}, {x});
  const auto have = torch::autograd::grad({pipe->forward(y * 2).pow(2).sum()}, {y});
  EXPECT_THAT(have, EqualsBitwise(want));
  for (const auto& p : pipe->parameters()) EXPECT_FALSE(p.grad().defined());
  EXPECT_FALSE(y.grad().defined());
}

TEST_P(Autograd, GradTowardsParametersEqualsThePlainModels) {
  nn::Sequential plain = chain();
  GPipe pipe = piped(chain(), GetParam());
  const torch::Tensor x = batch().requires_grad_();
  // Gradients are asked for the input, and for parameters of the first and the last partition.
  const auto inputs_of = [&](const auto& model) {
    const auto p = model->named_parameters();
    return std::vector<torch::Tensor>{p["0.weight"], x, p["4.bias"], p["0.bias"]};
  };
  const Tensors output = PlainModel(plain, kChunks).forward({x});
  const auto want = torch::autograd::grad({output[0].pow(2).sum()}, inputs_of(plain));
  const auto have = torch::autograd::grad({pipe->forward(x).pow(2).sum()}, inputs_of(pipe));
  EXPECT_THAT(have, EqualsBitwise(want));
  for (const auto& p : pipe->parameters()) EXPECT_FALSE(p.grad().defined());
  EXPECT_FALSE(x.grad().defined());
  // The next backward() must accumulate as usual.
  pipe->forward(x).pow(2).sum().backward();
  for (const auto& p : pipe->parameters()) EXPECT_TRUE(p.grad().defined());
  EXPECT_THAT(pipe->named_parameters()["0.weight"].grad(), EqualsBitwise(want[0]));
}

TEST_P(Autograd, GradTowardsASharedParameterAddsUpItsStages) {
  auto make = [] {
    testing::manual_seed(1);
    nn::Linear first(4, 4);
    return nn::Sequential(first, nn::Tanh(), TiedProduct(first->weight));
  };
  nn::Sequential plain = make();
  GPipe pipe(make(), options_for({2, 1}, GetParam()));
  const Tensors output = PlainModel(plain, kChunks).forward({batch()});
  const auto want =
      torch::autograd::grad({output[0].pow(2).sum()}, {plain->named_parameters()["0.weight"]});
  const auto have = torch::autograd::grad({pipe->forward(batch()).pow(2).sum()},
                                          {pipe->named_parameters()["0.weight"]});
  // Six gradients of two stages are added in another order than the plain model's. The gradients
  // are near one, so each of the five sums may round by about 1e-7.
  EXPECT_TRUE(torch::allclose(want[0], have[0], /*rtol=*/1e-5, /*atol=*/1e-6));
}

TEST_P(Autograd, BackwardWithAListOfInputsFillsTheirGradientsOnly) {
  nn::Sequential plain = chain();
  GPipe pipe = piped(chain(), GetParam());
  PlainModel(plain, kChunks).forward({batch()})[0].pow(2).sum().backward();
  const auto parameters = pipe->named_parameters();
  torch::autograd::backward({pipe->forward(batch()).pow(2).sum()}, {}, c10::nullopt, false,
                            {parameters["2.weight"]});
  for (const auto& p : parameters) EXPECT_EQ(p.value().grad().defined(), p.key() == "2.weight");
  EXPECT_THAT(parameters["2.weight"].grad(),
              EqualsBitwise(plain->named_parameters()["2.weight"].grad()));
}

// LibTorch would give both .grad the same memory, because the gradients of `a` and `b` share it.
// The pipeline gives each gradient memory of its own.
TEST_P(Autograd, BackwardWithAListOfInputsGivesEachGradientMemoryOfItsOwn) {
  const torch::Tensor a = torch::ones({4}).requires_grad_();
  const torch::Tensor b = torch::ones({4}).requires_grad_();
  const std::function<torch::Tensor(torch::Tensor)> add = [a, b](torch::Tensor x) {
    return x + torch::stack({a, b}).sum(0);
  };
  auto first = testing::layer(add);
  first->register_parameter("a", a);
  first->register_parameter("b", b);
  GPipe pipe(nn::Sequential(first, nn::Tanh()), options_for({1, 1}, GetParam()).chunks(1));
  const auto run = [&] {
    torch::autograd::backward({pipe->forward(batch()).sum()}, {}, c10::nullopt, false, {a, b});
  };
  run();
  const torch::Tensor once = a.grad().clone();
  run();
  EXPECT_THAT(a.grad(), EqualsBitwise(once * 2));
  EXPECT_THAT(b.grad(), EqualsBitwise(once * 2));
}

// A function whose backward trains another model, like a function that fits a model to the
// gradient.
struct TrainsInBackward : torch::autograd::Function<TrainsInBackward> {
  static torch::Tensor forward(torch::autograd::AutogradContext* context, torch::Tensor x,
                               const std::function<void()>& train) {
    context->saved_data["train"] = reinterpret_cast<int64_t>(&train);
    return x * 2;
  }
  static Tensors backward(torch::autograd::AutogradContext* context, Tensors gradients) {
    const at::AutoGradMode recorded(true);
    (*reinterpret_cast<const std::function<void()>*>(context->saved_data["train"].toInt()))();
    return {gradients[0] * 2, torch::Tensor()};
  }
};

TEST_P(Autograd, AStepInsideAnotherBackwardHasAllItsGradients) {
  GPipe alone = piped(chain(), GetParam());
  GPipe pipe = piped(chain(), GetParam());
  const LossFn loss = [](const Tensors& outputs, const Tensors&) {
    return outputs[0].pow(2).mean();
  };
  alone->step({batch()}, {}, loss);
  const std::function<void()> train = [&] { pipe->step({batch()}, {}, loss); };
  const torch::Tensor x = batch().requires_grad_();
  // The outer backward has a list of inputs, which does not name the pipeline's parameters. Still
  // the step inside gets all its gradients.
  torch::autograd::grad({TrainsInBackward::apply(x, train).sum()}, {x});
  for (const auto& parameter : alone->named_parameters()) {
    const torch::Tensor gradient = pipe->named_parameters()[parameter.key()].grad();
    ASSERT_TRUE(gradient.defined()) << parameter.key();
    EXPECT_THAT(gradient, EqualsBitwise(parameter.value().grad())) << parameter.key();
  }
}

TEST_P(Autograd, AHookRegisteredBetweenForwardAndBackwardIsAnErrorThatNamesIt) {
  GPipe pipe = piped(chain(), GetParam());
  const torch::Tensor loss = pipe->forward(batch()).sum();
  int calls = 0;
  pipe->named_parameters()["2.weight"].register_hook([&](const torch::Tensor&) { ++calls; });
  try {
    loss.backward();
    FAIL();
  } catch (const c10::Error& e) {
    EXPECT_THAT(e.what(), HasSubstr("'2.weight'"));
    EXPECT_THAT(e.what(), HasSubstr("before forward"));
  }
  EXPECT_EQ(calls, 0);
  pipe->forward(batch()).sum().backward();
  EXPECT_EQ(calls, 3);
}

TEST_P(Autograd, RetainGraphAllowsASecondBackward) {
  GPipe pipe = piped(chain(), GetParam());
  const torch::Tensor x = batch().requires_grad_();
  const torch::Tensor loss = pipe->forward(x).pow(2).sum();
  loss.backward({}, /*retain_graph=*/true);
  std::vector<torch::Tensor> once;
  for (const auto& p : pipe->parameters()) once.push_back(p.grad().clone());
  const torch::Tensor x_once = x.grad().clone();
  loss.backward();
  // The second backward adds its micro-batches one by one to the sum of the first, so the sum is
  // rounded differently from twice the first.
  size_t k = 0;
  for (const auto& p : pipe->parameters()) {
    EXPECT_TRUE(torch::allclose(p.grad(), 2 * once[k++], /*rtol=*/1e-5, /*atol=*/1e-6));
  }
  EXPECT_THAT(x.grad(), EqualsBitwise(2 * x_once));
  EXPECT_THROW(loss.backward(), c10::Error);
}

TEST_P(Autograd, SecondBackwardWithoutRetainGraphIsAnError) {
  GPipe pipe = piped(chain(), GetParam());
  const torch::Tensor output = pipe->forward(batch());
  output.sum().backward();
  try {
    (output * 2).sum().backward();
    FAIL();
  } catch (const c10::Error& e) {
    EXPECT_THAT(e.what(), HasSubstr("retain_graph"));
  }
}

TEST_P(Autograd, CreateGraphIsAnError) {
  GPipe pipe = piped(chain(), GetParam());
  const torch::Tensor loss = pipe->forward(batch().requires_grad_()).pow(2).sum();
  try {
    loss.backward({}, /*retain_graph=*/true, /*create_graph=*/true);
    FAIL();
  } catch (const c10::Error& e) {
    EXPECT_THAT(e.what(), HasSubstr("create_graph"));
  }
}

TEST_P(Autograd, ForwardTwiceBeforeBackward) {
  nn::Sequential plain = chain();
  GPipe pipe = piped(chain(), GetParam());
  const torch::Tensor a = batch();
  const torch::Tensor b = batch() * 3;
  PlainModel micro_batched(plain, kChunks);
  const torch::Tensor plain_first = micro_batched.forward({a})[0];
  const torch::Tensor plain_second = micro_batched.forward({b})[0];
  (plain_first.sum() + plain_second.pow(2).sum()).backward();
  const torch::Tensor first = pipe->forward(a);
  const torch::Tensor second = pipe->forward(b);
  (first.sum() + second.pow(2).sum()).backward();
  const auto have = pipe->named_parameters();
  for (const auto& p : plain->named_parameters()) {
    EXPECT_THAT(have[p.key()].grad(), EqualsBitwise(p.value().grad())) << p.key();
  }
}

TEST_P(Autograd, BackwardAfterThePipelineIsGoneIsAnError) {
  std::optional<GPipe> pipe = piped(chain(), GetParam());
  const torch::Tensor loss = (*pipe)->forward(batch()).sum();
  pipe.reset();
  try {
    loss.backward();
    FAIL();
  } catch (const c10::Error& e) {
    EXPECT_THAT(e.what(), HasSubstr("destroyed"));
  }
}

TEST_P(Autograd, HooksOnParametersAndOutputsRun) {
  GPipe pipe = piped(chain(), GetParam());
  int parameter_hooks = 0;
  int output_hooks = 0;
  pipe->parameters()[0].register_hook([&](const torch::Tensor& g) {
    ++parameter_hooks;
    return torch::zeros_like(g);
  });
  torch::Tensor output = pipe->forward(batch());
  output.register_hook([&](const torch::Tensor&) { ++output_hooks; });
  output.sum().backward();
  EXPECT_EQ(parameter_hooks, 3) << "once per micro-batch, as in a loop over micro-batches";
  EXPECT_EQ(output_hooks, 1);
  EXPECT_THAT(pipe->parameters()[0].grad(), EqualsBitwise(torch::zeros({6, 4})));
}

TEST_P(Autograd, OptimizersAndClippingTrainLikeThePlainModel) {
  const torch::Tensor x = batch();
  auto check = [&](auto make_optimizer) {
    nn::Sequential plain = chain();
    GPipe pipe = piped(chain(), GetParam());
    auto plain_optimizer = make_optimizer(plain->parameters());
    auto pipe_optimizer = make_optimizer(pipe->parameters());
    PlainModel micro_batched(plain, kChunks);
    auto mean_square = [](const Tensors& outputs, const Tensors&) {
      return outputs[0].pow(2).mean();
    };
    for (int step = 0; step < 4; ++step) {
      plain_optimizer->zero_grad();
      pipe_optimizer->zero_grad();
      for (int part = 0; part < 2; ++part) {  // gradients accumulate over two calls
        micro_batched.forward_backward({x + part}, {}, mean_square);
        mean_square({pipe->forward(x + part)}, {}).backward();
      }
      nn::utils::clip_grad_norm_(plain->parameters(), 0.1);
      nn::utils::clip_grad_norm_(pipe->parameters(), 0.1);
      plain_optimizer->step();
      pipe_optimizer->step();
    }
    const auto have = pipe->named_parameters();
    for (const auto& p : plain->named_parameters()) {
      EXPECT_THAT(have[p.key()], EqualsBitwise(p.value())) << p.key();
    }
  };
  using Parameters = std::vector<torch::Tensor>;
  using Optimizer = std::shared_ptr<torch::optim::Optimizer>;
  check([](const Parameters& p) -> Optimizer {
    return std::make_shared<torch::optim::SGD>(p, torch::optim::SGDOptions(0.1).momentum(0.9));
  });
  check(
      [](const Parameters& p) -> Optimizer { return std::make_shared<torch::optim::Adagrad>(p); });
  check(
      [](const Parameters& p) -> Optimizer { return std::make_shared<torch::optim::RMSprop>(p); });
  check([](const Parameters& p) -> Optimizer {
    return std::make_shared<torch::optim::Adam>(p, torch::optim::AdamOptions(1e-2).eps(1e-2));
  });
  check([](const Parameters& p) -> Optimizer {
    return std::make_shared<torch::optim::AdamW>(p, torch::optim::AdamWOptions(1e-2).eps(1e-2));
  });
}

// L-BFGS is an optimizer that runs forward and backward itself, several times a step.
TEST_P(Autograd, LbfgsTrainsLikeThePlainModel) {
  const torch::Tensor x = batch();
  auto train = [](const std::vector<torch::Tensor>& parameters, auto forward) {
    torch::optim::LBFGS optimizer(parameters, torch::optim::LBFGSOptions(0.1).max_iter(5));
    double loss = 0;
    for (int step = 0; step < 3; ++step) {
      optimizer.step([&] {
        optimizer.zero_grad();
        const torch::Tensor value = (forward() - 1).pow(2).mean();
        value.backward();
        loss = value.item<double>();
        return value;
      });
    }
    return loss;
  };
  nn::Sequential plain = chain();
  GPipe pipe = piped(chain(), GetParam());
  PlainModel micro_batched(plain, kChunks);
  EXPECT_EQ(train(plain->parameters(), [&] { return micro_batched.forward({x})[0]; }),
            train(pipe->parameters(), [&] { return pipe->forward(x); }));
  const auto have = pipe->named_parameters();
  for (const auto& p : plain->named_parameters()) {
    EXPECT_THAT(have[p.key()], EqualsBitwise(p.value())) << p.key();
  }
}

// A function whose backward uses autograd's engine. It runs a backward of its own, and queues a
// callback for the end.
struct DemandingFunction : torch::autograd::Function<DemandingFunction> {
  static torch::Tensor forward(torch::autograd::AutogradContext* context, const torch::Tensor& x,
                               std::atomic<int64_t>* callbacks) {
    context->save_for_backward({x});
    context->saved_data["callbacks"] = reinterpret_cast<int64_t>(callbacks);
    return x.sin();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    auto* callbacks =
        reinterpret_cast<std::atomic<int64_t>*>(context->saved_data["callbacks"].toInt());
    torch::autograd::Engine::get_default_engine().queue_callback([callbacks] { ++*callbacks; });
    const torch::AutoGradMode grad_mode(true);
    const torch::Tensor x = context->get_saved_variables()[0].detach().requires_grad_();
    return {torch::autograd::grad({x.sin()}, {x}, {gradients[0]})[0], torch::Tensor()};
  }
};

struct DemandingImpl : nn::Module {
  torch::Tensor forward(torch::Tensor x) { return DemandingFunction::apply(x, &callbacks); }
  std::atomic<int64_t> callbacks{0};
};
TORCH_MODULE(Demanding);

TEST_P(Autograd, ACustomFunctionMayUseTheEngine) {
  Demanding demanding;
  testing::manual_seed(1);
  nn::Linear first(4, 4), last(4, 2);
  nn::Sequential model(first, nn::Tanh(), demanding, nn::Tanh(), last);
  GPipe pipe = piped(model, GetParam());
  const torch::Tensor x = batch().requires_grad_();
  const torch::Tensor y = batch().requires_grad_();
  pipe->forward(x).sum().backward();
  EXPECT_EQ(demanding->callbacks, 3) << "once per micro-batch";
  const Tensors output = PlainModel(model, kChunks).forward({y});
  EXPECT_THAT(x.grad(), EqualsBitwise(torch::autograd::grad({output[0].sum()}, {y})[0]));
}

TEST_P(Autograd, AnomalyModeWorks) {
  torch::autograd::DetectAnomalyGuard anomaly;
  GPipe pipe = piped(chain(), GetParam());
  pipe->forward(batch()).sum().backward();
  EXPECT_TRUE(pipe->parameters()[0].grad().defined());
}

INSTANTIATE_TEST_SUITE_P(Modes, Autograd,
                         ::testing::Values(Setting{Checkpoint::kAlways},
                                           Setting{Checkpoint::kExceptLast},
                                           Setting{Checkpoint::kNever},
                                           Setting{Checkpoint::kAlways, /*one_worker=*/true},
                                           Setting{Checkpoint::kNever, /*one_worker=*/true}),
                         [](const auto& info) {
                           return std::string(to_text(info.param.mode)) +
                                  (info.param.one_worker ? "_one_worker" : "");
                         });

// A layer without parameters that counts its calls.
struct CountImpl : nn::Module {
  torch::Tensor forward(torch::Tensor x) {
    ++calls;
    return x * 2;
  }
  int calls = 0;
};
TORCH_MODULE(Count);

// --- Gradients that are asked for by name equal those that backward() accumulates.

// Like a lambda, this layer uses a parameter of another layer, and a tensor that no layer has
// registered.
struct BorrowerImpl : nn::Module {
  BorrowerImpl(torch::Tensor borrowed, torch::Tensor own)
      : borrowed(std::move(borrowed)), own(std::move(own)) {}
  torch::Tensor forward(torch::Tensor x) { return x.matmul(borrowed).tanh() * own; }
  torch::Tensor borrowed;
  torch::Tensor own;
};
TORCH_MODULE(Borrower);

TEST_P(Autograd, GradTowardsABorrowedParameterHasAllItsTerms) {
  testing::manual_seed(4);
  nn::Linear first(4, 4);
  const torch::Tensor own = torch::randn({4}).requires_grad_();
  nn::Sequential model(first, Borrower(first->weight, own), nn::Linear(4, 4),
                       Borrower(first->weight, own), nn::Tanh());
  GPipe pipe = piped(model, GetParam());
  auto loss = [&] { return pipe->forward(batch()).pow(2).sum(); };
  loss().backward();
  const torch::Tensor want = first->weight.grad().clone();
  pipe->zero_grad();
  EXPECT_THAT(torch::autograd::grad({loss()}, {first->weight})[0], EqualsBitwise(want));
  EXPECT_FALSE(first->weight.grad().defined());
  // No edge leads out of the pipeline to a tensor that no layer has registered, so its gradient
  // cannot be asked for.
  try {
    torch::autograd::grad({loss() + own.sum()}, {first->weight, own});
    FAIL();
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("no layer has registered"));
  }
}

TEST_P(Autograd, GradTowardsAParameterWithHooksIsAnErrorThatNamesIt) {
  nn::Sequential model = chain();
  int calls = 0;
  model->parameters()[2].register_hook([&calls](const torch::Tensor&) { ++calls; });
  GPipe pipe = piped(model, GetParam());
  const torch::Tensor hooked = pipe->parameters()[2];
  try {
    torch::autograd::grad({pipe->forward(batch()).sum() + hooked.pow(2).sum()},
                          {pipe->parameters()[0], hooked});
    FAIL();
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("'2.weight'"));
    EXPECT_THAT(error.what(), HasSubstr("hooks"));
  }
  EXPECT_EQ(calls, 0);
}

// --- Graphs that were made outside of the pipeline.

TEST_P(Autograd, AGraphFromOutsideThatTwoStagesUseIsAnError) {
  for (bool hooked : {false, true}) {
    const torch::Tensor w = torch::ones({4}).requires_grad_();
    const torch::Tensor scale = w * 0.3;
    if (hooked) scale.register_hook([](const torch::Tensor&) {});
    const torch::Tensor matrix = torch::ones({4, 4});
    nn::Sequential model(nn::Linear(4, 4), Borrower(matrix, scale), nn::Linear(4, 4),
                         Borrower(matrix, scale), nn::Tanh());
    GPipe pipe = piped(model, GetParam());
    for (int run = 0; run < 5; ++run) {
      try {
        pipe->forward(batch()).sum().backward();
        FAIL();
      } catch (const c10::Error& error) {
        EXPECT_THAT(error.what(), HasSubstr("computed outside the pipeline"));
      }
    }
  }
}

TEST_P(Autograd, AGraphFromOutsideThatOneStageUsesIsExact) {
  at::set_num_threads(1);
  std::vector<torch::Tensor> results;
  for (bool pipeline : {false, true}) {
    testing::manual_seed(5);
    const torch::Tensor w = torch::randn({4}).requires_grad_();
    torch::Tensor scale;
    // The graph is made by another thread, whose nodes have sequence numbers of their own. So
    // numbers do not tell which nodes belong to the stage.
    std::thread([&] {
      torch::Tensor other = w;
      for (int k = 0; k < 500; ++k) other = other * 1.001;
      scale = other;
    }).join();
    const torch::Tensor matrix = torch::randn({4, 4});
    nn::Sequential model(nn::Linear(4, 4), nn::Tanh(), Borrower(matrix, scale),
                         Borrower(matrix, scale), nn::Tanh());
    auto loss = [](const Tensors& outputs, const Tensors&) { return outputs.at(0).pow(2).sum(); };
    if (pipeline) {
      piped(model, GetParam())->step({batch()}, {}, loss);
    } else {
      PlainModel(model, kChunks).step({batch()}, {}, loss, testing::BackwardOrder::kAscending);
    }
    results.push_back(w.grad());
  }
  EXPECT_THAT(results[1], EqualsBitwise(results[0]));
}

// Two threads run backward through one output. Each backward must use its own output gradients, and
// they run one after the other.
TEST_P(Autograd, TwoThreadsRunBackwardThroughOneOutput) {
  for (int run = 0; run < 20; ++run) {
    nn::Sequential module = chain();
    GPipe pipe = piped(module, GetParam());
    const torch::Tensor x = batch().requires_grad_();
    const torch::Tensor output = pipe->forward(x);
    std::vector<torch::Tensor> factors = {torch::full({6, 2}, 1.0), torch::full({6, 2}, 256.0)};
    std::vector<torch::Tensor> gradients(2);
    auto backward = [&](int k) {
      gradients[k] = torch::autograd::grad({output}, {x}, {factors[k]}, /*retain_graph=*/true)[0];
      output.backward(factors[k], /*retain_graph=*/true);
    };
    std::thread other([&] { backward(1); });
    backward(0);
    other.join();
    // The factor is a power of two, so the product is exact.
    EXPECT_THAT(gradients[1], EqualsBitwise(gradients[0] * 256));
    EXPECT_TRUE(torch::allclose(x.grad(), gradients[0] * 257, /*rtol=*/1e-5, /*atol=*/1e-5))
        << "two sums of two terms: rounded";
  }
}

TEST_P(Autograd, AfterAFailedBackwardTheMessageSaysSo) {
  nn::Sequential module = chain();
  GPipe pipe = piped(module, GetParam());
  bool fails = true;
  module->parameters()[0].register_hook([&fails](const torch::Tensor&) {
    if (fails) throw std::runtime_error("no gradient today");
  });
  const torch::Tensor output = pipe->forward(batch());
  EXPECT_THROW(output.sum().backward({}, /*retain_graph=*/true), std::exception);
  fails = false;
  try {
    output.sum().backward();
    FAIL();
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("earlier backward failed"));
    EXPECT_THAT(error.what(), ::testing::Not(HasSubstr("retain_graph")));
  }
}

// The graph is a chain of 20,000 outputs. It must be destroyed without recursion, which would
// overflow the stack.
TEST(LongChain, OfAPipelinesOwnOutputsCanBeDropped) {
  GPipe pipe(nn::Sequential(nn::Tanh()),
             GPipeOptions({1}).devices({c10::Device(c10::kCPU)}).checkpoint(Checkpoint::kNever));
  torch::Tensor y = torch::ones({1}).requires_grad_();
  for (int k = 0; k < 20000; ++k) y = pipe->forward(y);
  EXPECT_TRUE(y.requires_grad());
  y = torch::Tensor();
}

// The node of `kept` outlives the call, because the layer keeps its result. The pipeline must leave
// no hooks on that node.
TEST(LastingHistory, OfALayersResultGathersNothing) {
  struct ConstantImpl : nn::Module {
    ConstantImpl() : base(torch::ones({4}).requires_grad_()), kept(base.exp()) {}
    torch::Tensor forward(torch::Tensor) { return kept; }
    torch::Tensor base;
    torch::Tensor kept;
  };
  auto constant = std::make_shared<ConstantImpl>();
  nn::Sequential module;
  module->push_back(constant);
  module->push_back(nn::Linear(4, 4));
  GPipe pipe(module,
             GPipeOptions({1, 1}).devices({c10::kCPU, c10::kCPU}).checkpoint(Checkpoint::kNever));
  for (int k = 0; k < 5; ++k) {
    const torch::Tensor output = pipe->forward(torch::ones({4}));
    output.sum().backward({}, /*retain_graph=*/true);
  }
  EXPECT_TRUE(constant->kept.grad_fn()->pre_hooks().empty());
  EXPECT_TRUE(constant->kept.grad_fn()->post_hooks().empty());
  EXPECT_TRUE(constant->base.grad().defined());
}

TEST(Frozen, APrefixIsNeitherRecomputedNorBackPropagated) {
  Count count;
  nn::Sequential model(nn::Linear(4, 4), count, nn::Linear(4, 2));
  for (auto& p : model->ptr(0)->parameters()) p.requires_grad_(false);
  GPipe pipe(model, GPipeOptions({2, 1})
                        .devices({c10::kCPU, c10::kCPU})
                        .chunks(4)
                        .checkpoint(Checkpoint::kAlways));
  pipe->forward(torch::randn({8, 4})).sum().backward();
  EXPECT_EQ(count->calls, 4);
  EXPECT_FALSE(pipe->named_parameters()["0.weight"].grad().defined());
  EXPECT_TRUE(pipe->named_parameters()["2.weight"].grad().defined());
}

TEST(TwoPipelines, AtOnceOnTwoThreads) {
  auto run = [](const torch::Tensor& x, std::vector<torch::Tensor>* gradients) {
    GPipe pipe = piped(chain(), {Checkpoint::kExceptLast});
    for (int i = 0; i < 20; ++i) pipe->forward(x).sum().backward();
    for (const auto& p : pipe->parameters()) gradients->push_back(p.grad());
  };
  const torch::Tensor x = batch();
  std::vector<torch::Tensor> alone;
  run(x, &alone);
  // The pipelines are made one after another, because chain() seeds the process's generator.
  std::vector<torch::Tensor> gradients[2];
  GPipe pipes[2] = {piped(chain(), {Checkpoint::kExceptLast}),
                    piped(chain(), {Checkpoint::kExceptLast})};
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 20; ++i) pipes[t]->forward(x).sum().backward();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (auto& pipe : pipes) {
    size_t k = 0;
    for (const auto& p : pipe->parameters()) EXPECT_THAT(p.grad(), EqualsBitwise(alone[k++]));
  }
}

TEST(OnePipeline, FromTwoThreadsRunsOneCallAfterTheOther) {
  GPipe pipe = piped(chain(), {Checkpoint::kExceptLast});
  const torch::Tensor x = batch();
  torch::Tensor expected;
  {
    torch::NoGradGuard no_grad;
    expected = pipe->forward(x);
  }
  std::vector<std::thread> threads;
  std::atomic<int> same{0};
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&] {
      torch::NoGradGuard no_grad;
      for (int i = 0; i < 50; ++i) same += torch::equal(pipe->forward(x), expected) ? 1 : 0;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(same, 100);
}

// Clipping must not change gradients while a step adds to them. With this limit the scale is 1, so
// clipping leaves gradients as they are.
TEST(OnePipeline, ClipsInOneThreadWhileAnotherTrains) {
  const LossFn loss = [](const Tensors& outputs, const Tensors&) { return outputs[0].sum(); };
  namespace nn = torch::nn;
  testing::manual_seed(1);
  const torch::Tensor x = torch::randn({32, 64});
  const auto train = [&](bool clips) {
    testing::manual_seed(2);
    GPipe pipe(nn::Sequential(nn::Linear(64, 64), nn::Tanh(), nn::Linear(64, 64), nn::Tanh(),
                              nn::Linear(64, 64)),
               GPipeOptions({1, 2, 2}).chunks(4));
    std::atomic<bool> over{false};
    std::thread other([&] {
      while (clips && !over) pipe->clip_grad_norm_(1e30);
    });
    for (int i = 0; i < 150; ++i) pipe->step({x}, {}, loss);
    over = true;
    other.join();
    std::vector<torch::Tensor> gradients;
    for (const auto& p : pipe->parameters()) gradients.push_back(p.grad());
    return gradients;
  };
  const std::vector<torch::Tensor> want = train(false);
  const std::vector<torch::Tensor> have = train(true);
  for (size_t k = 0; k < want.size(); ++k) EXPECT_THAT(have[k], EqualsBitwise(want[k])) << k;
}

// A call that saves, loads or materializes waits for the run, so that it does not read or write
// what a run in another thread uses.
TEST(OnePipeline, IsSavedLoadedAndMaterializedBetweenRuns) {
  std::atomic<bool> waits{false};  // whether the layer waits for the other thread's call
  std::atomic<bool> is_running{false};
  std::atomic<bool> has_returned{false};
  bool was_interrupted = false;
  const auto wait = [&](torch::Tensor x) {
    if (!waits) return x;
    is_running = true;
    for (int k = 0; k < 200 && !has_returned; ++k) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    was_interrupted = has_returned;
    return x;
  };
  GPipe pipe(nn::Sequential(nn::Linear(4, 4), testing::layer<torch::Tensor, torch::Tensor>(wait)),
             GPipeOptions({1, 1}).devices({c10::kCPU, c10::kCPU}));
  std::stringstream saved;
  torch::save(pipe, saved);
  std::stringstream other;
  const std::vector<std::pair<std::string, std::function<void()>>> calls = {
      {"save", [&] { torch::save(pipe, other); }},
      {"load", [&] { torch::load(pipe, saved); }},
      {"materialize", [&] { pipe->materialize([](auto&, auto&, auto) {}); }}};
  for (const auto& [name, call] : calls) {
    waits = true;
    is_running = has_returned = was_interrupted = false;
    std::thread thread([&, &call = call] {
      while (!is_running) std::this_thread::yield();
      call();
      has_returned = true;
    });
    {
      const torch::NoGradGuard no_grad;
      pipe->forward(torch::ones({2, 4}));
    }
    thread.join();
    EXPECT_FALSE(was_interrupted) << name;
    waits = false;
  }
}

}  // namespace
}  // namespace gpipe
