// Tests changes between a recording and a replay: layouts, buffers, hooks, outputs that share
// memory, generators. With graphs all results must be as without graphs, and so must errors.
#include <ATen/Context.h>
#include <ATen/ops/_scaled_dot_product_fused_attention_overrideable.h>
#include <ATen/ops/mse_loss.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/Stream.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/testing/cpu_options.h"
#include "gpipe/testing/device.h"
#include "gpipe/testing/fake_accelerator/allocator.h"
#include "gpipe/testing/fake_accelerator/backend.h"
#include "gpipe/testing/function_layer.h"
#include "gpipe/testing/graph_training.h"
#include "gpipe/testing/sample_models.h"
#include "gpipe/testing/torch_seed.h"

namespace gpipe {
namespace {

namespace nn = torch::nn;
using testing::add_state;
using testing::device;
using testing::expect_same;
using testing::expect_same_training;
using testing::graphs_of;
using testing::GraphTraining;
using testing::on_host;
using testing::options_for;
using testing::SampleModel;
using testing::square_loss;
using testing::tensor_layer;
using testing::Trace;

constexpr Checkpoint kModes[] = {Checkpoint::kAlways, Checkpoint::kExceptLast, Checkpoint::kNever};

// The expected uses of graphs in the two stages (testing::graphs_of).
const auto kReplayed = ::testing::ElementsAre("replayed", "replayed");
auto first_left_alone(const char* reason) {
  return ::testing::ElementsAre(::testing::StrEq(std::string("left alone: ") + reason), "replayed");
}
auto last_left_alone(const char* reason) {
  return ::testing::ElementsAre("replayed", ::testing::StrEq(std::string("left alone: ") + reason));
}

class GraphChanges : public testing::DeviceTest {};

GraphTraining simple(nn::Sequential model, std::vector<int64_t> balance, int64_t chunks,
                     Checkpoint mode = Checkpoint::kNever, int64_t width = 6) {
  testing::manual_seed(2);
  return {std::move(model),
          options_for(std::move(balance), chunks, mode),
          {torch::randn({8, width})},
          {torch::randn({8, width})}};
}

// The parameter's strides change, but its memory does not. The stage must record its graphs again.
TEST_F(GraphChanges, ATransposedParameter) {
  EXPECT_THAT(graphs_of(expect_same_training([] {
                testing::manual_seed(1);
                GraphTraining t = simple(
                    nn::Sequential(nn::Linear(6, 6), nn::Tanh(), nn::Linear(6, 6)), {2, 1}, 4);
                t.steps = 6;
                t.before_step = [](GPipe& pipe, int64_t step) {
                  if (step == 3) {
                    at::Tensor weight = pipe->parameters()[0];
                    weight.set_data(weight.detach().t());
                  }
                };
                return t;
              })),
              kReplayed);
}

// A layer with a buffer, which the test transposes in place.
struct WithBuffer : nn::Module {
  WithBuffer() {
    mask = register_buffer("mask", torch::arange(36, at::kFloat).reshape({6, 6}) / 36);
  }
  at::Tensor forward(const at::Tensor& x) { return x.matmul(buffers()[0]); }
  at::Tensor mask;
};

TEST_F(GraphChanges, ATransposedBuffer) {
  EXPECT_THAT(graphs_of(expect_same_training([] {
                testing::manual_seed(1);
                nn::Sequential model(nn::Linear(6, 6));
                model->push_back(WithBuffer());
                model->push_back(nn::Linear(6, 6));
                GraphTraining t = simple(model, {2, 1}, 4);
                t.steps = 6;
                t.before_step = [](GPipe& pipe, int64_t step) {
                  if (step == 3) {
                    torch::NoGradGuard no_grad;
                    pipe->buffers()[0].t_();
                  }
                };
                return t;
              })),
              kReplayed);
}

// A layer with a parameter. The test casts the parameter twice, after which it may lie in the same
// memory as before.
struct Scale : nn::Module {
  Scale() { w = register_parameter("w", torch::linspace(0.5, 1.5, 6)); }
  at::Tensor forward(const at::Tensor& x) { return x * parameters()[0]; }
  at::Tensor w;
};

TEST_F(GraphChanges, AParameterCastThereAndBackElsewhere) {
  EXPECT_THAT(graphs_of(expect_same_training([] {
                testing::manual_seed(1);
                nn::Sequential model(nn::Linear(6, 6));
                model->push_back(Scale());
                model->push_back(nn::Linear(6, 6));
                GraphTraining t = simple(model, {2, 1}, 4);
                t.steps = 6;
                t.before_step = [](GPipe& pipe, int64_t step) {
                  if (step != 3) return;
                  pipe->zero_grad(true);
                  at::Tensor w = pipe->parameters()[2];
                  w.mutable_grad() = at::Tensor();
                  w.set_data(w.detach().to(at::kDouble));
                  w.set_data(w.detach().to(at::kBFloat16));
                };
                return t;
              })),
              kReplayed);
}

// If a buffer that autograd has saved is changed between forward and backward, the backward fails,
// as without graphs.
TEST_F(GraphChanges, ASavedBufferChangedBeforeBackward) {
  std::vector<std::string> use;
  const auto run = [&use](bool graphs) {
    testing::manual_seed(1);
    nn::Sequential model(nn::Linear(6, 6), nn::BatchNorm1d(6), nn::Tanh(), nn::Linear(6, 6));
    GPipe pipe(model, options_for({2, 2}, 2, Checkpoint::kNever).graphs(graphs));
    pipe->eval();
    testing::manual_seed(3);
    std::vector<std::string> said;
    for (int64_t k = 0; k < 6; ++k) {
      const at::Tensor x = testing::copy_on(device(0), torch::randn({8, 6}));
      const at::Tensor y = pipe->forward(x);
      if (k == 5) {
        torch::NoGradGuard no_grad;
        for (at::Tensor& b : pipe->buffers())
          if (b.is_floating_point()) b.mul_(2);
      }
      try {
        y.sum().backward();
        said.emplace_back("fine");
      } catch (const c10::Error& error) {
        said.emplace_back("error");
      }
    }
    if (graphs) use = graphs_of(pipe->graph_use());
    return said;
  };
  EXPECT_EQ(run(true), run(false));
  EXPECT_THAT(use, kReplayed);
}

// A layer whose state changes in each forward. Under 1F1B the last stage's backward comes before
// the next change, under fill-drain it does not, so the backward finds a changed buffer.
struct Moving : nn::Module {
  Moving() { register_buffer("mean", torch::ones({6})); }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor mean = buffers()[0];
    {
      torch::NoGradGuard no_grad;
      mean.mul_(0.9).add_(x.detach().mean(0));
    }
    return x * mean;
  }
};

TEST_F(GraphChanges, AStateThatMovesOnIsRefusedUnderFillDrain) {
  std::vector<std::string> use;
  const auto run = [&use](bool graphs) {
    testing::manual_seed(1);
    nn::Sequential model(nn::Linear(6, 6), nn::Tanh(), nn::Linear(6, 6));
    model->push_back(Moving());
    GPipe pipe(model, options_for({2, 2}, 4, Checkpoint::kNever).graphs(graphs));
    testing::manual_seed(3);
    std::vector<std::string> said;
    for (int64_t k = 0; k < 4; ++k) {
      const at::Tensor x = testing::copy_on(device(0), torch::randn({8, 6}));
      const at::Tensor y = testing::copy_on(device(1), torch::randn({8, 6}));
      StepOptions options;
      if (k >= 2) options.schedule(ScheduleGenerator(&Schedule::gpipe));
      try {
        pipe->step({x}, {y}, &square_loss, options);
        said.emplace_back("fine");
      } catch (const c10::Error& error) {
        said.emplace_back("error");
      }
    }
    if (graphs) use = graphs_of(pipe->graph_use());
    return said;
  };
  EXPECT_EQ(run(true), run(false));
  EXPECT_THAT(use, last_left_alone("it cannot be recorded: it changes a buffer in place"));
}

// Autograd saves an index, too, which is a buffer of whole numbers. The index changes between
// forward and backward, or, if `moves`, in each forward.
struct Ordered : nn::Module {
  explicit Ordered(bool moves) : moves(moves) { register_buffer("order", torch::arange(6)); }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor order = buffers()[0];
    if (moves) {
      torch::NoGradGuard no_grad;
      order.add_(1).remainder_(6);
    }
    return x.index_select(1, order);
  }
  bool moves;
};

TEST_F(GraphChanges, ASavedIndexThatIsChanged) {
  for (bool moves : {false, true}) {
    std::vector<std::string> use;
    const auto run = [&](bool graphs) {
      testing::manual_seed(1);
      nn::Sequential model(nn::Linear(6, 6), nn::Tanh(), nn::Linear(6, 6));
      model->push_back(Ordered(moves));
      GPipe pipe(model, options_for({2, 2}, moves ? 1 : 2, Checkpoint::kNever).graphs(graphs));
      testing::manual_seed(3);
      std::vector<std::string> said;
      Trace trace;
      for (int64_t k = 0; k < 6; ++k) {
        pipe->zero_grad();
        const at::Tensor x = testing::copy_on(device(0), torch::randn({8, 6}));
        const at::Tensor y = pipe->forward(x);
        if (k == 5) {
          torch::NoGradGuard no_grad;
          if (moves) {
            (void)pipe->forward(x);
          } else {
            pipe->buffers()[0].add_(1).remainder_(6);
          }
        }
        try {
          y.pow(2).sum().backward();
          said.emplace_back("fine");
        } catch (const c10::Error& error) {
          said.emplace_back("error");
        }
      }
      if (graphs) use = graphs_of(pipe->graph_use());
      return said;
    };
    EXPECT_EQ(run(true), run(false)) << moves;
    if (moves) {
      EXPECT_THAT(use, last_left_alone("it cannot be recorded: it changes a buffer in place"));
    } else {
      EXPECT_THAT(use, kReplayed);
    }
  }
}

// The first layer changes the caller's input in place. So its stage is not recorded, and the input
// changes as without graphs.
TEST_F(GraphChanges, AFirstLayerInPlaceChangesTheCallersInput) {
  std::vector<std::string> use;
  const auto run = [&use](bool graphs) {
    testing::manual_seed(1);
    nn::Sequential model;
    model->push_back(tensor_layer([](at::Tensor x) { return x.mul_(2); }));
    model->push_back(nn::Linear(6, 6));
    model->push_back(nn::Linear(6, 6));
    GPipe pipe(model, options_for({2, 1}, 4, Checkpoint::kNever).graphs(graphs));
    testing::manual_seed(3);
    Trace trace;
    const at::Tensor x = testing::copy_on(device(0), torch::randn({8, 6}));
    const at::Tensor y = testing::copy_on(device(1), torch::randn({8, 6}));
    for (int64_t k = 0; k < 3; ++k) {
      pipe->step({x}, {y}, &square_loss);
      trace.push_back(on_host(x));
    }
    if (graphs) use = graphs_of(pipe->graph_use());
    return trace;
  };
  expect_same(run(true), run(false));
  EXPECT_THAT(use,
              first_left_alone("it cannot be recorded: it changes the caller's input in place"));
}

// This is the test above in inference mode, in which tensors do not count their changes.
TEST_F(GraphChanges, AFirstLayerInPlaceChangesTheCallersInputInInferenceMode) {
  std::vector<std::string> use;
  const auto run = [&use](bool graphs) {
    nn::Sequential model;
    model->push_back(tensor_layer([](at::Tensor x) { return x.mul_(2); }));
    model->push_back(tensor_layer([](at::Tensor x) { return x.add_(1); }));
    GPipe pipe(model, options_for({1, 1}, 2).graphs(graphs));
    const c10::InferenceMode inference;
    testing::manual_seed(3);
    Trace trace;
    const at::Tensor x = testing::copy_on(device(0), torch::randn({8, 6}));
    for (int64_t k = 0; k < 6; ++k) {
      for (const at::Tensor& output : pipe->forward(Tensors{x})) trace.push_back(on_host(output));
      trace.push_back(on_host(x));
    }
    if (graphs) use = graphs_of(pipe->graph_use());
    return trace;
  };
  expect_same(run(true), run(false));
  EXPECT_THAT(use,
              first_left_alone("it cannot be recorded: it changes the caller's input in place"));
}

// Two outputs share memory, and the loss changes one of them. So their stage is not recorded.
TEST_F(GraphChanges, ALossThatChangesOneOfTwoOverlappingOutputs) {
  EXPECT_THAT(graphs_of(expect_same_training([] {
                testing::manual_seed(1);
                nn::Sequential model(nn::Linear(6, 6), nn::Tanh(), nn::Linear(6, 6));
                model->push_back(testing::layer<at::Tensor, Tensors>([](const at::Tensor& x) {
                  const at::Tensor y = x * 2;
                  return Tensors{y, y.narrow(1, 0, 3)};
                }));
                GraphTraining t = simple(model, {2, 2}, 4);
                t.loss = [](const Tensors& outputs, const Tensors& targets) {
                  at::Tensor part = outputs.at(1);
                  part.mul_(3);
                  return at::mse_loss(outputs.at(0), targets.at(0)) + part.mean();
                };
                return t;
              })),
              last_left_alone("it cannot be recorded: two outputs share memory"));
}

// A hook that a layer registers on a node of the graph (Node::add_pre_hook). Each backward must
// call it, so the stage is not recorded.
struct CountingHook : torch::autograd::FunctionPreHook {
  explicit CountingHook(std::shared_ptr<int64_t> calls) : calls(std::move(calls)) {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& grads) override {
    ++*calls;
    return grads;
  }
  std::shared_ptr<int64_t> calls;
};

TEST_F(GraphChanges, APreHookOfANode) {
  std::vector<std::string> use;
  const auto run = [&use](bool graphs) {
    auto calls = std::make_shared<int64_t>(0);
    testing::manual_seed(1);
    nn::Sequential model(nn::Linear(6, 6));
    model->push_back(tensor_layer([calls](const at::Tensor& x) {
      at::Tensor y = x.tanh();
      if (y.grad_fn()) y.grad_fn()->add_pre_hook(std::make_unique<CountingHook>(calls));
      return y;
    }));
    model->push_back(nn::Linear(6, 6));
    GPipe pipe(model, options_for({2, 1}, 4, Checkpoint::kNever).graphs(graphs));
    testing::manual_seed(3);
    for (int64_t k = 0; k < 4; ++k) {
      const at::Tensor x = testing::copy_on(device(0), torch::randn({8, 6}));
      const at::Tensor y = testing::copy_on(device(1), torch::randn({8, 6}));
      pipe->step({x}, {y}, &square_loss);
    }
    if (graphs) use = graphs_of(pipe->graph_use());
    return *calls;
  };
  EXPECT_EQ(run(true), run(false));
  EXPECT_THAT(use, first_left_alone("it cannot be recorded: TanhBackward0 has a hook"));
}

// The loss throws in the middle of a step. The next step must have the bits that it has without
// graphs.
TEST_F(GraphChanges, ALossThatThrowsInTheMiddle) {
  for (Checkpoint mode : kModes) {
    for (bool fill_drain : {false, true}) {
      const auto run = [&](bool graphs) {
        testing::manual_seed(1);
        nn::Sequential model(nn::Linear(6, 6), nn::BatchNorm1d(6), nn::Dropout(0.3),
                             nn::Linear(6, 6));
        GPipe pipe(model, options_for({2, 2}, 4, mode).graphs(graphs));
        testing::manual_seed(3);
        Trace trace;
        int64_t calls = 0;
        for (int64_t k = 0; k < 6; ++k) {
          const at::Tensor x = testing::copy_on(device(0), torch::randn({8, 6}));
          const at::Tensor y = testing::copy_on(device(1), torch::randn({8, 6}));
          pipe->zero_grad(true);
          StepOptions options;
          if (fill_drain) options.schedule(ScheduleGenerator(&Schedule::gpipe));
          calls = 0;
          try {
            pipe->step(
                {x}, {y},
                [&](const Tensors& o, const Tensors& t) {
                  TORCH_CHECK(!(k == 3 && ++calls == 3), "the third");
                  return square_loss(o, t);
                },
                options);
          } catch (const c10::Error&) {
            trace.emplace_back();
            // How far stage 0 had come by then depends on timing, so its buffers are set anew.
            pipe->buffers()[0].zero_();
            pipe->buffers()[1].fill_(1);
            pipe->buffers()[2].zero_();
            continue;
          }
          add_state(pipe, trace);
        }
        if (graphs) {
          for (auto& u : pipe->graph_use()) EXPECT_EQ(u.reason, "");
        }
        return trace;
      };
      expect_same(run(true), run(false));
    }
  }
}

// A layer that returns its parameter, so that the parameter leaves the layer.
TEST_F(GraphChanges, ParametersThatLeave) {
  EXPECT_THAT(graphs_of(expect_same_training([] {
                testing::manual_seed(1);
                auto scale = std::make_shared<Scale>();
                nn::Sequential model(nn::Linear(6, 6));
                model->push_back(testing::layer<at::Tensor, Tensors>([](const at::Tensor& x) {
                  return Tensors{x, x};
                }));
                struct Give : nn::Module {
                  Give() { register_parameter("w", torch::linspace(0.5, 1.5, 12).reshape({2, 6})); }
                  Tensors forward(const Tensors& x) {
                    return {x[0], parameters()[0], x[1].tanh(), x[0]};
                  }
                };
                model->push_back(Give());
                model->push_back(testing::layer<Tensors, at::Tensor>(
                    [](const Tensors& x) { return x[0] * x[1] + x[2] * x[1].sum() + x[3]; }));
                model->push_back(nn::Linear(6, 6));
                GraphTraining t = simple(model, {3, 2}, 4);
                t.steps = 6;
                return t;
              })),
              kReplayed);
}

TEST_F(GraphChanges, ALossThatUsesAParameter) {
  for (Checkpoint mode : kModes) {
    EXPECT_THAT(
        graphs_of(expect_same_training([&] {
          testing::manual_seed(1);
          nn::Linear last(6, 6), first(6, 6);
          GraphTraining t = simple(nn::Sequential(first, nn::Tanh(), last), {2, 1}, 4, mode);
          t.loss = [last](const Tensors& o, const Tensors& y) {
            return at::mse_loss(o.at(0), y.at(0)) + last->weight.pow(2).sum() * 0.01;
          };
          t.steps = 6;
          return t;
        })),
        kReplayed);
  }
}

// Fused attention with dropout draws its mask from the device's default generator, so its stage is
// not recorded.
TEST_F(GraphChanges, AttentionWithDropout) {
  for (const at::ScalarType precision : {at::kFloat, at::kHalf}) {
    for (Checkpoint mode : kModes) {
      EXPECT_THAT(
          graphs_of(expect_same_training([&] {
            testing::manual_seed(1);
            nn::Sequential model(nn::Linear(6, 6));
            model->push_back(tensor_layer([precision](const at::Tensor& x) {
              const at::Tensor h = x.to(precision).reshape({1, 1, x.size(0), x.size(1)});
              return std::get<0>(
                         at::_scaled_dot_product_fused_attention_overrideable(h, h, h, {}, 0.5))
                  .reshape(x.sizes())
                  .to(x.scalar_type());
            }));
            model->push_back(nn::Linear(6, 6));
            GraphTraining t = simple(model, {2, 1}, 2, mode);
            t.steps = 7;
            return t;
          })),
          first_left_alone("layer 1 ('1') cannot be recorded: random numbers are drawn from a "
                           "device's default generator"));
    }
  }
}

struct Twice : nn::Module {
  at::Tensor scale = register_parameter("scale", torch::rand({6}));
  at::Tensor forward(const at::Tensor& x) { return x * scale + scale; }
};

TEST_F(GraphChanges, AParameterUsedTwice) {
  for (const bool one_device : {false, true}) {
    EXPECT_THAT(graphs_of(expect_same_training([&] {
                  testing::manual_seed(1);
                  nn::Sequential model(nn::Linear(6, 6), Twice(), nn::Linear(6, 6));
                  GraphTraining t = simple(model, {2, 1}, 4);
                  if (one_device) t.options.devices({device(), device()});
                  t.steps = 6;
                  return t;
                })),
                kReplayed);
  }
}

// The gradient's sum begins with the term of the loss. So the terms of the layers must not be added
// up first, and the stage is not recorded.
TEST_F(GraphChanges, AParameterUsedTwiceAndByTheLoss) {
  for (Checkpoint mode : kModes) {
    EXPECT_THAT(graphs_of(expect_same_training([&] {
                  testing::manual_seed(1);
                  const auto twice = std::make_shared<Twice>();
                  GraphTraining t =
                      simple(nn::Sequential(nn::Linear(6, 6), nn::Tanh(), twice), {2, 1}, 4, mode);
                  t.loss = [twice](const Tensors& o, const Tensors& y) {
                    return at::mse_loss(o.at(0), y.at(0)) + twice->scale.pow(3).sum() * 0.01;
                  };
                  t.steps = 6;
                  return t;
                })),
                last_left_alone("it cannot be recorded: the parameter '2.scale' is used several "
                                "times in the stage that computes the loss"));
  }
}

struct Normed : nn::Module {
  explicit Normed(const nn::BatchNorm1d& norm) : norm(register_module("norm", norm)) {}
  at::Tensor forward(const at::Tensor& x) { return norm->forward(x); }
  nn::BatchNorm1d norm;
};

// Updates of running statistics wait in a log until the run is over. A replay would write nothing
// to the log, so these stages are not recorded.
TEST_F(GraphChanges, RunningStatisticsOfTwoStages) {
  const std::string reason =
      "left alone: it cannot be recorded: several stages share running statistics";
  EXPECT_THAT(graphs_of(expect_same_training([] {
                testing::manual_seed(1);
                const nn::BatchNorm1d norm(nn::BatchNormOptions(6).affine(false));
                GraphTraining t =
                    simple(nn::Sequential(nn::Linear(6, 6), Normed(norm), nn::Tanh(), Normed(norm)),
                           {2, 2}, 4);
                t.options.devices({device(0), device(0)});
                t.steps = 6;
                return t;
              })),
              ::testing::ElementsAre(reason, reason));
}

// Two forwards run on streams that are not ordered, and each backward on its forward's stream. The
// graphs that they replay share memory, so the pipeline must order them.
TEST_F(GraphChanges, BackwardsOnStreamsOfTheirOwn) {
  std::vector<std::string> use;
  const auto run = [&use](bool graphs) {
    testing::manual_seed(1);
    nn::Sequential model(nn::Linear(6, 6), nn::Tanh(), nn::Linear(6, 6));
    // The parameters get no gradients, because accumulating gradients of parameters would order the
    // streams.
    for (at::Tensor& parameter : model->parameters()) parameter.set_requires_grad(false);
    GPipe pipe(model, options_for({3}, 1, Checkpoint::kNever).graphs(graphs));
    const c10::impl::VirtualGuardImpl impl(device(0).type());
    const c10::Stream streams[] = {impl.getStreamFromGlobalPool(device(0)),
                                   impl.getStreamFromGlobalPool(device(0))};
    testing::manual_seed(3);
    Trace trace;
    for (int64_t k = 0; k < 6; ++k) {
      at::Tensor inputs[2];
      at::Tensor outputs[2];
      for (int n : {0, 1}) {
        const c10::StreamGuard guard(streams[n]);
        inputs[n] = testing::copy_on(device(0), torch::randn({8, 6})).requires_grad_();
        outputs[n] = pipe->forward(inputs[n]).sum();
      }
      for (int n : {0, 1}) {
        const c10::StreamGuard guard(streams[n]);
        outputs[n].backward();
      }
      for (int n : {0, 1}) {
        const c10::StreamGuard guard(streams[n]);
        trace.push_back(on_host(inputs[n].grad()));
      }
    }
    if (graphs) use = graphs_of(pipe->graph_use());
    return trace;
  };
  expect_same(run(true), run(false));
  EXPECT_THAT(use, ::testing::ElementsAre("replayed"));
}

// A layer draws from a generator of its own, which a replay cannot do. So its stage is not
// recorded.
TEST_F(GraphChanges, AGivenGenerator) {
  for (Checkpoint mode : kModes) {
    EXPECT_THAT(
        graphs_of(expect_same_training([&] {
          testing::manual_seed(1);
          nn::Sequential model(nn::Linear(6, 6));
          auto generator = std::make_shared<at::Generator>(
              at::globalContext().defaultGenerator(device(0)).clone());
          generator->set_current_seed(5);
          model->push_back(tensor_layer([generator](const at::Tensor& x) {
            return x * at::bernoulli(at::full_like(x, 0.5), *generator);
          }));
          model->push_back(nn::Linear(6, 6));
          GraphTraining t = simple(model, {2, 1}, 2, mode);
          t.steps = 7;
          return t;
        })),
        first_left_alone("layer 1 ('1') cannot be recorded: random numbers are drawn from a "
                         "generator of a layer's own"));
  }
}

// LibTorch chooses kernels by the settings below, so graphs that were recorded under other settings
// are not replayed.
TEST_F(GraphChanges, ASettingOfTheProgram) {
  at::Context& context = at::globalContext();
  const std::pair<std::function<void()>, std::function<void()>> settings[] = {
      {[&] { context.setBenchmarkCuDNN(true); }, [&] { context.setBenchmarkCuDNN(false); }},
      {[&] {
         context.setFloat32Precision(at::Float32Backend::CUDA, at::Float32Op::MATMUL,
                                     at::Float32Precision::TF32);
       },
       [&] {
         context.setFloat32Precision(at::Float32Backend::CUDA, at::Float32Op::MATMUL,
                                     at::Float32Precision::NONE);
       }},
      {[&] { context.setAllowFP16AccumulationCuBLAS(true); },
       [&] { context.setAllowFP16AccumulationCuBLAS(false); }},
      {[&] { context.setSDPUseFlash(false); }, [&] { context.setSDPUseFlash(true); }},
      {[] { c10::set_default_dtype(caffe2::TypeMeta::Make<double>()); },
       [] { c10::set_default_dtype(caffe2::TypeMeta::Make<float>()); }},
  };
  const at::Tensor x = testing::copy_on(device(0), torch::randn({8, 6}));
  const at::Tensor y = testing::copy_on(device(1), torch::randn({8, 6}));
  for (const auto& [change, undo] : settings) {
    GPipe pipe(nn::Sequential(nn::Linear(6, 6), nn::Tanh(), nn::Linear(6, 6)),
               options_for({2, 1}, 2, Checkpoint::kNever).graphs(true));
    const auto recorded_after_steps = [&] {
      for (int k = 0; k < 5; ++k) pipe->step({x}, {y}, &square_loss);
      EXPECT_THAT(graphs_of(pipe->graph_use()), kReplayed);
      return pipe->graph_use().at(0).recorded;
    };
    const int64_t before = recorded_after_steps();
    EXPECT_EQ(recorded_after_steps(), before);
    change();
    const int64_t changed = recorded_after_steps();
    undo();
    EXPECT_GT(changed, before) << "setting " << &change - &settings[0].first;
  }
}

// The memory of graphs must be given back with the pipeline, even if a stage gave up or a step
// failed.
TEST_F(GraphChanges, MemoryIsGivenBack) {
  const auto in_use = [] {
    size_t sum = 0;
    for (int k = 0; k < testing::fake::kDevices; ++k) sum += testing::fake::allocator().in_use(k);
    return sum;
  };
  const size_t before = in_use();
  for (int way : {0, 1, 2}) {
    {
      testing::manual_seed(1);
      nn::Sequential model(nn::Linear(6, 6), nn::BatchNorm1d(6), nn::Dropout(0.3),
                           nn::Linear(6, 6));
      GPipe pipe(model, options_for({2, 2}, 4, Checkpoint::kNever).graphs(true));
      for (int64_t k = 0; k < 5; ++k) {
        const at::Tensor x = testing::copy_on(device(0), torch::randn({8, 6}));
        const at::Tensor y = testing::copy_on(device(1), torch::randn({8, 6}));
        if (way == 1 && k == 3)
          pipe->parameters()[0].register_hook([](const at::Tensor& g) { return g; });
        if (way == 2 && k == 3) testing::fake::allocator().fail(1, 7);
        try {
          pipe->step({x}, {y}, &square_loss);
        } catch (const c10::Error& error) {
        }
        testing::fake::allocator().fail(1, -1);
      }
      const char* first = way == 1 ? "left alone: a parameter has a hook" : "replayed";
      EXPECT_THAT(graphs_of(pipe->graph_use()), ::testing::ElementsAre(first, "replayed")) << way;
      EXPECT_GT(in_use(), before) << way;
    }
    EXPECT_EQ(in_use(), before) << way;
  }
}

// Allocations of a step with graphs fail, each in turn. The step must throw that error or none, and
// later steps must give the right numbers.
TEST_F(GraphChanges, EachAllocationFailsInTurn) {
  int recorded = 0;
  for (int device_number : {0, 1}) {
    for (int64_t after = 0; after < 60; after += 3) {
      Trace traces[2];
      for (int g = 0; g < 2; ++g) {
        testing::manual_seed(1);
        nn::Sequential model(nn::Linear(6, 6), nn::Dropout(0.3), nn::Linear(6, 6), nn::Tanh());
        GPipe pipe(model, options_for({2, 2}, 2, Checkpoint::kNever).graphs(g == 1));
        for (int64_t k = 0; k < 6; ++k) {
          const at::Tensor x = testing::copy_on(device(0), torch::randn({4, 6}));
          const at::Tensor y = testing::copy_on(device(1), torch::randn({4, 6}));
          testing::manual_seed(10 + k);
          if (g == 1 && k == 2) testing::fake::allocator().fail(device_number, after);
          try {
            pipe->step({x}, {y}, &square_loss);
          } catch (const c10::OutOfMemoryError&) {
            const auto failure = pipe->last_failure();
            if (failure && failure->out_of_memory) {
              EXPECT_EQ(failure->out_of_memory->device, device(device_number));
            }
          }
          testing::fake::allocator().fail(device_number, -1);
          if (k == 2) pipe->zero_grad();
          if (k > 2) add_state(pipe, traces[g]);
        }
        if (g == 1) {
          for (const GraphUse& use : pipe->graph_use()) recorded += use.reason.empty() ? 1 : 0;
        }
      }
      expect_same(traces[1], traces[0]);
    }
  }
  EXPECT_GT(recorded, 0) << "nothing was left with graphs";
}

// Graphs must give the same bits if parts of the pipeline are left out by GPipeOptions::ablation:
// late recomputes, direct skips, copy streams.
TEST_F(GraphChanges, Ablations) {
  for (int which : {0, 1, 2}) {
    EXPECT_THAT(graphs_of(expect_same_training([&] {
                  const SampleModel& sample = testing::sample_models()[2];
                  GraphTraining t{sample.make(), options_for({2, 2, 1}, 4, Checkpoint::kAlways),
                                  sample.inputs(8), sample.targets(8), sample.loss};
                  if (which == 0) t.options.ablation({true, true, true});
                  if (which == 1) t.options.ablation({false, true, false});
                  if (which == 2) t.options.ablation({true, false, false});
                  t.step.schedule(ScheduleGenerator(&Schedule::gpipe));
                  t.steps = 6;
                  return t;
                })),
                ::testing::Each("replayed"));
  }
}

}  // namespace
}  // namespace gpipe
