// Tests GPipeOptions::graphs: whatever is recorded, replayed or left alone, the bits must be those
// without graphs. graphs_test runs on the CPU, which has no graphs. graphs_fake_test runs on the
// fake accelerator, and graphs_cuda_test on CUDA.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/modules/transformerlayer.h>
#include <torch/utils.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/internal/tensors/transfer.h"
#include "gpipe/schedule/hand_written.h"
#include "gpipe/testing/autocast_scope.h"
#include "gpipe/testing/cpu_options.h"
#include "gpipe/testing/device.h"
#include "gpipe/testing/function_layer.h"
#include "gpipe/testing/graph_training.h"
#include "gpipe/testing/sample_models.h"
#include "gpipe/testing/tied_product.h"
#include "gpipe/testing/torch_seed.h"

namespace gpipe {
namespace {

namespace nn = torch::nn;
using testing::add_state;
using testing::device;
using testing::expect_same;
using testing::expect_same_training;
using testing::GraphTraining;
using ::testing::HasSubstr;
using testing::on_host;
using testing::options_for;
using testing::SampleModel;
using testing::square_loss;
using testing::tensor_layer;
using testing::TiedProduct;
using testing::Trace;

constexpr Checkpoint kModes[] = {Checkpoint::kAlways, Checkpoint::kExceptLast, Checkpoint::kNever};

void expect_replayed(const std::vector<GraphUse>& use) {
  ASSERT_FALSE(use.empty());
  for (size_t j = 0; j < use.size(); ++j) {
    if (!testing::for_gpus()) {
      EXPECT_THAT(use[j].reason, HasSubstr("there are none on cpu"));
      continue;
    }
    EXPECT_EQ(use[j].reason, "") << "stage " << j;
    EXPECT_GT(use[j].recorded, 0) << "stage " << j;
    EXPECT_GT(use[j].replayed, use[j].recorded) << "stage " << j;
  }
}

void expect_left_alone(const GraphUse& use, const std::string& reason) {
  EXPECT_EQ(use.replayed, 0);
  EXPECT_THAT(use.reason, HasSubstr(testing::for_gpus() ? reason : "there are none on cpu"));
}

class Graphs : public testing::DeviceTest {};

TEST_F(Graphs, WithoutTheOptionThereIsNothingToTell) {
  GPipe pipe(nn::Sequential(nn::Linear(2, 2)), options_for({1}, 1));
  EXPECT_TRUE(pipe->graph_use().empty());
}

struct Case {
  size_t model;
  int64_t partitions;
  Checkpoint mode;
  int schedule;  // 0: 1F1B, 1: fill-drain
};

class GraphsOfSampleModels : public testing::DeviceTest,
                             public ::testing::WithParamInterface<Case> {};

TEST_P(GraphsOfSampleModels, TrainToTheSameBits) {
  const Case& c = GetParam();
  const SampleModel& sample = testing::sample_models()[c.model];
  const auto balances = testing::all_balances(sample.layers, c.partitions);
  const std::vector<int64_t>& balance = balances[balances.size() / 2];
  const auto use = expect_same_training([&] {
    GraphTraining training{sample.make(),    options_for(balance, 4, c.mode),
                           sample.inputs(8), sample.targets(8),
                           sample.loss,      StepOptions(),
                           /*steps=*/3};
    if (c.schedule == 1) training.step.schedule(ScheduleGenerator(&Schedule::gpipe));
    return training;
  });
  expect_replayed(use);
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (size_t model = 0; model < testing::sample_models().size(); ++model) {
    for (int64_t partitions = 1; partitions <= 3; ++partitions) {
      for (Checkpoint mode : kModes) {
        for (int schedule : {0, 1}) all.push_back({model, partitions, mode, schedule});
      }
    }
  }
  return all;
}

std::string name_of(const ::testing::TestParamInfo<Case>& info) {
  const Case& c = info.param;
  return testing::sample_models()[c.model].name + "_" + std::to_string(c.partitions) + "_" +
         to_text(c.mode) + (c.schedule == 0 ? "_1f1b" : "_gpipe");
}

INSTANTIATE_TEST_SUITE_P(All, GraphsOfSampleModels, ::testing::ValuesIn(cases()), name_of);

nn::Sequential four_layers(int64_t width = 6) {
  testing::manual_seed(1);
  return nn::Sequential(nn::Linear(width, 8), nn::Tanh(), nn::Dropout(0.4), nn::Linear(8, 3));
}

GraphTraining four_layers_in_two(Checkpoint mode = Checkpoint::kNever) {
  testing::manual_seed(2);
  return {
      four_layers(), options_for({2, 2}, 4, mode), {torch::randn({8, 6})}, {torch::randn({8, 3})}};
}

// A stage records graphs for as many micro-batches as wait for their backward at one time.
TEST_F(Graphs, EachMicroBatchInFlightHasMemoryOfItsOwn) {
  const auto recorded = [](Checkpoint mode, bool fill_drain) {
    const auto use = expect_same_training([&] {
      GraphTraining training = four_layers_in_two(mode);
      training.options.chunks(8);
      training.model = four_layers(64);
      training.inputs = {torch::ones({8, 64})};  // each row begins at a cache line
      if (fill_drain) training.step.schedule(ScheduleGenerator(&Schedule::gpipe));
      return training;
    });
    expect_replayed(use);
    return use;
  };
  if (!testing::for_gpus()) GTEST_SKIP() << "the CPU has no graphs";
  // Under fill-drain all 8 micro-batches wait at one time. Each has a forward and a backward. One
  // more forward is without gradients.
  const auto never = recorded(Checkpoint::kNever, /*fill_drain=*/true);
  EXPECT_EQ(never[0].recorded, 2 * 8 + 1);
  EXPECT_EQ(never[1].recorded, 2 * 8 + 1);
  const auto one_f_one_b = recorded(Checkpoint::kNever, /*fill_drain=*/false);
  EXPECT_EQ(one_f_one_b[0].recorded, 2 * 2 + 1);
  EXPECT_EQ(one_f_one_b[1].recorded, 2 * 1 + 1);
  // All micro-batches share one checkpointed forward. A recompute and its backward are made one
  // micro-batch at a time. One more forward is without gradients.
  const auto always = recorded(Checkpoint::kAlways, /*fill_drain=*/true);
  EXPECT_EQ(always[0].recorded, 1 + 2 + 1);
  EXPECT_EQ(always[1].recorded, 1 + 2 + 1);
}

// Gradients must not belong to the stream on which their graphs were recorded: each backward would
// be ordered with that stream by events, and .grad would be in its memory.
TEST_F(Graphs, GradientsBelongToTheCallersStream) {
  if (!testing::for_gpus()) GTEST_SKIP() << "the CPU has no streams";
  for (Checkpoint mode : kModes) {
    GPipe pipe(four_layers(), options_for({2, 2}, 4, mode).graphs(true));
    const at::Tensor x = testing::copy_on(device(0), torch::ones({8, 6}));
    const at::Tensor y = testing::copy_on(device(1), torch::ones({8, 3}));
    for (int step = 0; step < 4; ++step) pipe->step({x}, {y}, &square_loss);
    expect_replayed(pipe->graph_use());
    for (const at::Tensor& parameter : pipe->parameters()) {
      const auto accumulator = torch::autograd::impl::grad_accumulator(parameter);
      EXPECT_EQ(accumulator->stream(), internal::current_stream(parameter.device()));
    }
  }
}

TEST_F(Graphs, SplitBackwardsGetTheSameBits) {
  for (Checkpoint mode : kModes) {
    const auto use = expect_same_training([&] {
      GraphTraining training = four_layers_in_two(mode);
      training.options.chunks(2);
      training.steps = 5;
      training.step.schedule(testing::split_backward());
      return training;
    });
    expect_replayed(use);
  }
}

nn::Sequential attention_and_more(double dropout) {
  nn::TransformerEncoderLayer layer(
      nn::TransformerEncoderLayerOptions(4, 2).dim_feedforward(8).dropout(dropout));
  return nn::Sequential(layer, nn::Linear(4, 4));
}

nn::Sequential linear_and_dropout(double dropout) {
  return nn::Sequential(nn::Linear(4, 4), nn::Dropout(dropout),
                        nn::LayerNorm(nn::LayerNormOptions({4})));
}

TEST_F(Graphs, MixedPrecisionGetsTheSameBits) {
  if (device().is_privateuseone()) GTEST_SKIP() << "the fake accelerator has no autocast";
  const std::pair<const char*, nn::Sequential (*)(double)> models[] = {
      {"attention", attention_and_more}, {"linear", linear_and_dropout}};
  for (const auto& [name, make] : models) {
    for (double dropout : {0.0, 0.1}) {
      for (bool mixed : {false, true}) {
        for (int64_t rows : {1, 6}) {
          SCOPED_TRACE(std::string(name) + ", dropout " + std::to_string(dropout) + ", rows " +
                       std::to_string(rows) + (mixed ? ", bfloat16" : ""));
          const auto use = expect_same_training([&] {
            testing::manual_seed(5);
            const nn::Sequential model = make(dropout);
            const at::Tensor input = torch::randn({rows, 6, 4});
            GraphTraining training{model,
                                   options_for({static_cast<int64_t>(model->size())}, rows),
                                   {testing::copy_on(device(), input)},
                                   {testing::copy_on(device(), torch::randn({rows, 6, 4}))}};
            training.steps = 6;
            // Autocast is on as long as `training` lives, because before_step holds the scope.
            if (mixed) {
              training.before_step = [held = std::make_shared<testing::AutocastScope>(
                                          device().type(), at::kBFloat16)](GPipe&, int64_t) {};
            }
            return training;
          });
          // LibTorch's attention in C++ compares the values of query and key, which waits for the
          // device.
          if (std::string(name) == "attention") {
            expect_left_alone(use[0], "aten::equal waits for the device");
          } else {
            expect_replayed(use);
          }
        }
      }
    }
  }
}

TEST_F(Graphs, StagesOnOneWorkerGetTheSameBits) {
  const auto use = expect_same_training([] {
    testing::manual_seed(2);
    GraphTraining training{four_layers(),
                           options_for({1, 1, 1, 1}, 2),
                           {torch::randn({8, 6})},
                           {torch::randn({8, 3})}};
    training.steps = 5;
    training.step.schedule(testing::interleaved());
    return training;
  });
  expect_replayed(use);
}

// Runs forward(), and then backwards that autograd starts.
Trace forward_backward(bool graphs, Checkpoint mode) {
  GPipe pipe(four_layers(), options_for({2, 2}, 4, mode).graphs(graphs));
  testing::manual_seed(3);
  const at::Tensor data = torch::randn({8, 6});
  Trace trace;
  for (int64_t k = 0; k < 3; ++k) {
    const at::Tensor x = testing::copy_on(device(0), data).requires_grad_();
    const at::Tensor y = pipe->forward(x);
    trace.push_back(on_host(y.detach()));
    const at::Tensor loss = y.pow(2).sum() * (1 + k);
    loss.backward({}, /*retain_graph=*/true);
    loss.backward();  // runs once more through the same graphs
    trace.push_back(on_host(x.grad()));
    add_state(pipe, trace);
    // The gradients of this forward are returned, not accumulated.
    const at::Tensor again = pipe->forward(x);
    std::vector<at::Tensor> wanted = pipe->parameters();
    wanted.push_back(x);
    for (const at::Tensor& gradient : torch::autograd::grad({again.sum()}, wanted)) {
      trace.push_back(on_host(gradient));
    }
  }
  if (graphs) expect_replayed(pipe->graph_use());
  return trace;
}

TEST_F(Graphs, AutogradsOwnBackwardsGetTheSameBits) {
  for (Checkpoint mode : kModes) {
    SCOPED_TRACE(to_text(mode));
    expect_same(forward_backward(true, mode), forward_backward(false, mode));
  }
}

// Three forwards come before the first backward. The one in the middle gets no backward.
TEST_F(Graphs, ForwardsMayOverlapAndBeForgotten) {
  const auto run = [](bool graphs) {
    GPipe pipe(four_layers(), options_for({2, 2}, 2, Checkpoint::kNever).graphs(graphs));
    testing::manual_seed(3);
    const at::Tensor data = torch::randn({4, 6});
    Trace trace;
    for (int64_t k = 0; k < 4; ++k) {
      const at::Tensor x = testing::copy_on(device(0), data);
      const at::Tensor first = pipe->forward(x);
      const at::Tensor forgotten = pipe->forward(x * 3);
      const at::Tensor second = pipe->forward(x * 2);
      first.sum().backward();
      second.sum().backward();
      trace.push_back(on_host(forgotten.detach()));
      add_state(pipe, trace);
    }
    if (graphs) expect_replayed(pipe->graph_use());
    return trace;
  };
  expect_same(run(true), run(false));
}

TEST_F(Graphs, AShortLastMicroBatchHasGraphsOfItsOwn) {
  const auto use = expect_same_training([] {
    GraphTraining training = four_layers_in_two();
    training.inputs = {torch::ones({7, 6})};
    training.targets = {torch::ones({7, 3})};
    training.steps = 6;
    return training;
  });
  expect_replayed(use);
}

TEST_F(Graphs, ShapesThatAlwaysChangeAreLeftAlone) {
  const auto run = [](bool graphs) {
    GPipe pipe(four_layers(), options_for({2, 2}, 1).graphs(graphs));
    testing::manual_seed(3);
    Trace trace;
    for (int64_t rows = 1; rows <= 50; ++rows) {
      const at::Tensor x = testing::copy_on(device(0), torch::randn({rows, 6}));
      const at::Tensor y = testing::copy_on(device(1), torch::randn({rows, 3}));
      pipe->step({x}, {y}, &square_loss);
      add_state(pipe, trace);
    }
    EXPECT_EQ(pipe->graph_use().size(), graphs ? 2 : 0);
    for (const GraphUse& use : pipe->graph_use()) {
      expect_left_alone(use, "the shapes of its inputs change too often");
    }
    return trace;
  };
  expect_same(run(true), run(false));
}

TEST_F(Graphs, AChangedModelIsRecordedAnew) {
  const auto use = expect_same_training([] {
    GraphTraining training = four_layers_in_two(Checkpoint::kAlways);
    training.steps = 9;
    training.before_step = [](GPipe& pipe, int64_t step) {
      if (step == 3) pipe->eval();
      if (step == 5) pipe->train();
      if (step == 7) {
        for (at::Tensor& parameter : pipe->parameters()) {
          parameter.set_data(parameter.detach() * 2);  // this is other memory
        }
      }
      if (step == 8) pipe->parameters()[0].set_requires_grad(false);
    };
    return training;
  });
  expect_replayed(use);
}

TEST_F(Graphs, TheCallersStreamMayChange) {
  const auto run = [](bool graphs) {
    Trace trace;
    GPipe pipe(four_layers(), options_for({2, 2}, 4, Checkpoint::kNever).graphs(graphs));
    testing::manual_seed(3);
    for (int64_t k = 0; k < 4; ++k) {
      std::optional<testing::OtherStreamsScope> others;
      if (k % 2 == 1) others.emplace();
      const at::Tensor x = testing::copy_on(device(0), torch::randn({8, 6})).requires_grad_();
      const at::Tensor y = testing::copy_on(device(1), torch::randn({8, 3}));
      pipe->step({x}, {y}, &square_loss);
      trace.push_back(on_host(x.grad()));
      add_state(pipe, trace);
    }
    if (graphs) expect_replayed(pipe->graph_use());
    return trace;
  };
  expect_same(run(true), run(false));
}

// LibTorch keeps the seeds of graphs' draws in memory of the stream that was current at the
// recording. Other code must not get that memory while a replay on another stream uses it.
TEST_F(Graphs, TheirMemoryIsGivenToOthersAfterReplaysOnAnotherStream) {
  if (!testing::for_gpus()) GTEST_SKIP() << "the CPU has no graphs";
  const torch::NoGradGuard no_grad;
  // The draws are in the first stage, because its memory is freed first. Freeing a pool's memory
  // waits for devices.
  GPipe pipe(four_layers(), options_for({3, 1}, 4).graphs(true));
  const at::Tensor x = testing::copy_on(device(0), torch::ones({8, 6}));
  at::Tensor y;
  {
    const testing::OtherStreamsScope others;
    for (int k = 0; k < 4; ++k) y = pipe->forward(x);
    expect_replayed(pipe->graph_use());
    on_host(y);
  }
  testing::slow_work(device(0));
  y = pipe->forward(x);
  pipe = GPipe(nullptr);
  EXPECT_TRUE(on_host(y).isfinite().all().item<bool>());
}

// A thread must run a cell without recording before it records: for example, cuDNN's handles and
// the algorithms that it has chosen belong to a thread. A single stage runs on the caller's thread.
TEST_F(Graphs, AThreadRecordsNothingThatItHasNotRun) {
  const testing::HostWaitsAllowed waits;
  const auto run = [](bool graphs) {
    auto known = std::make_shared<std::set<std::thread::id>>();
    testing::manual_seed(1);
    nn::Sequential model(nn::Linear(64, 8));
    model->push_back(tensor_layer([known](const at::Tensor& x) {
      const bool is_new = known->insert(std::this_thread::get_id()).second;
      if (is_new) (void)x.sum().item<float>();  // this cannot be recorded
      return x.tanh();
    }));
    GPipe pipe(model, options_for({2}, 4, Checkpoint::kNever).graphs(graphs));
    const at::Tensor x = testing::copy_on(device(0), torch::ones({8, 64}));
    const at::Tensor y = testing::copy_on(device(0), torch::ones({8, 8}));
    const auto step = [&] { pipe->step({x}, {y}, &square_loss); };
    step();
    std::thread([&] {
      for (int k = 0; k < 4; ++k) step();
    }).join();
    step();
    if (graphs) expect_replayed(pipe->graph_use());
    Trace trace;
    add_state(pipe, trace);
    return trace;
  };
  expect_same(run(true), run(false));
}

// The loss is a sum, so the gradient of the last stage's output has stride 0. No layer uses the
// second output of the first stage, so that output gets no gradient.
TEST_F(Graphs, GradientsThatAreExpandedOrMissingGetTheSameBits) {
  const auto use = expect_same_training([] {
    GraphTraining training = four_layers_in_two();
    training.model = nn::Sequential(
        nn::Linear(6, 8), testing::layer<at::Tensor, Tensors>([](const at::Tensor& x) {
          return Tensors{x.tanh(), x.sigmoid()};
        }),
        testing::layer<Tensors, at::Tensor>([](const Tensors& x) { return x[0].relu(); }),
        nn::Linear(8, 3));
    training.loss = [](const Tensors& outputs, const Tensors&) { return outputs[0].sum(); };
    return training;
  });
  expect_replayed(use);
}

// ---- Stages that are left alone
// -------------------------------------------------------------------------

// Returns the use of graphs in a pipeline of two stages with `layer` in the first one.
std::vector<GraphUse> with_layer(const std::function<nn::AnyModule()>& layer) {
  return expect_same_training([&] {
    GraphTraining training = four_layers_in_two();
    testing::manual_seed(5);
    training.model = nn::Sequential();
    training.model->push_back(nn::Linear(6, 8));
    training.model->push_back("odd", layer());
    training.model->push_back(nn::Tanh());
    training.model->push_back(nn::Linear(8, 3));
    return training;
  });
}

TEST_F(Graphs, ALayerThatAsksForAValueIsNamed) {
  const testing::HostWaitsAllowed waits;
  const auto use = with_layer([] {
    return nn::AnyModule(
        tensor_layer([](const at::Tensor& x) { return x * (x.sum().item<float>() > 0 ? 2 : 3); }));
  });
  expect_left_alone(use[0], "layer 1 ('odd') cannot be recorded: aten::_local_scalar_dense waits");
  expect_replayed({use[1]});
}

TEST_F(Graphs, ATensorFromOutsideIsNoted) {
  const auto use = with_layer([] {
    const at::Tensor scale = testing::copy_on(device(0), torch::rand({8}));
    return nn::AnyModule(tensor_layer([scale](const at::Tensor& x) { return x * scale; }));
  });
  expect_left_alone(use[0],
                    "aten::mul takes a tensor that is neither an input, parameter or buffer");
  expect_replayed({use[1]});
}

struct Scaled : torch::autograd::Function<Scaled> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) {
    return x * 2;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list gradients) {
    return {gradients[0] * 2};
  }
};

TEST_F(Graphs, AFunctionOfTheUserIsCalledEachTime) {
  const auto use = with_layer([] {
    return nn::AnyModule(tensor_layer([](const at::Tensor& x) { return Scaled::apply(x); }));
  });
  expect_left_alone(use[0], "is a function of yours");
  expect_replayed({use[1]});
}

TEST_F(Graphs, HooksOfParametersAreCalledEachTime) {
  std::vector<int64_t> calls;
  const auto use = expect_same_training([&] {
    GraphTraining training = four_layers_in_two();
    calls.push_back(0);
    const size_t place = calls.size() - 1;
    training.model->parameters()[0].register_hook([&calls, place](const at::Tensor& gradient) {
      ++calls[place];
      return gradient * 2;
    });
    return training;
  });
  EXPECT_EQ(calls[0], 4 * 4);
  EXPECT_EQ(calls[1], 4 * 4);
  expect_left_alone(use[0], "a parameter has a hook");
  expect_replayed({use[1]});
}

TEST_F(Graphs, AHookThatComesLaterIsCalled) {
  std::vector<int64_t> calls;
  const auto use = expect_same_training([&] {
    GraphTraining training = four_layers_in_two();
    calls.push_back(0);
    const size_t place = calls.size() - 1;
    training.before_step = [&calls, place](GPipe& pipe, int64_t step) {
      if (step != 2) return;
      pipe->parameters()[0].register_hook([&calls, place](const at::Tensor& gradient) {
        ++calls[place];
        return gradient * 2;
      });
    };
    return training;
  });
  EXPECT_EQ(calls[0], 2 * 4);
  EXPECT_EQ(calls[1], 2 * 4);
  if (testing::for_gpus()) {
    EXPECT_GT(use[0].replayed, 0);
    EXPECT_THAT(use[0].reason, HasSubstr("a parameter has a hook"));
  }
}

TEST_F(Graphs, ParametersOfSeveralStagesAreLeftAlone) {
  const auto use = expect_same_training([] {
    testing::manual_seed(2);
    const at::Tensor weight = torch::randn({6, 6});
    GraphTraining training{nn::Sequential(TiedProduct(weight), nn::Tanh(), TiedProduct(weight),
                                          nn::Tanh(), nn::Linear(6, 3)),
                           // All stages are on one device, as a tied weight requires.
                           options_for({2, 2, 1}, 4).devices({device(0), device(0), device(0)}),
                           {torch::randn({8, 6})},
                           {torch::randn({8, 3})}};
    return training;
  });
  expect_left_alone(use[0], "other stages use the parameter");
  expect_left_alone(use[1], "other stages use the parameter");
  expect_replayed({use[2]});
}

TEST_F(Graphs, DeferredBatchNormsAreLeftAlone) {
  const SampleModel& sample = testing::sample_models()[2];
  const auto use = expect_same_training([&] {
    return GraphTraining{sample.make(), options_for({3, 2}, 4).deferred_batch_norm(true),
                         sample.inputs(8), sample.targets(8), sample.loss};
  });
  expect_left_alone(use[0], "batch norms are deferred");
  expect_left_alone(use[1], "batch norms are deferred");
}

TEST_F(Graphs, AFailingLayerIsToldOfAsWithout) {
  const auto run = [](bool graphs) {
    auto calls = std::make_shared<int64_t>(0);
    nn::Sequential model = four_layers();
    model->push_back(tensor_layer([calls](const at::Tensor& x) {
      TORCH_CHECK(++*calls % 6 != 0, "the sixth call");
      return x * 2;
    }));
    GPipe pipe(model, options_for({2, 3}, 4, Checkpoint::kNever).graphs(graphs));
    testing::manual_seed(3);
    std::vector<std::string> errors;
    for (int64_t k = 0; k < 6; ++k) {
      const at::Tensor x = testing::copy_on(device(0), torch::randn({8, 6}));
      const at::Tensor y = testing::copy_on(device(1), torch::randn({8, 3}));
      try {
        pipe->step({x}, {y}, &square_loss);
      } catch (const c10::Error& error) {
        errors.push_back(error.what_without_backtrace());
      }
    }
    if (graphs) expect_replayed(pipe->graph_use());
    return errors;
  };
  const std::vector<std::string> without = run(false);
  ASSERT_FALSE(without.empty());
  EXPECT_THAT(without[0], HasSubstr("layer 4"));
  // Once the layer is recorded, a replay does not call it any more, so fewer steps fail.
  for (const std::string& error : run(true)) EXPECT_THAT(error, HasSubstr("the sixth call"));
}

}  // namespace
}  // namespace gpipe
