// Tests that a pipeline over several processes computes what it computes in one process, bit for
// bit.
//
// GPIPE_EXACTNESS_STEPS=50 (--test_env=...): steps of training in each case, 4 if it is not set.
// The cases of FiftySteps always have 50. GPIPE_EXACTNESS_ALL=1: each schedule with each balance
// and each mode, which takes many minutes. Without it, each balance meets each mode if workers have
// one stage, and each schedule meets each mode if workers have two stages. The third of these takes
// turns.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/clip_grad.h"
#include "gpipe/gpipe.h"
#include "gpipe/schedule/named_schedule.h"
#include "gpipe/several_arguments.h"
#include "gpipe/testing/bitwise.h"
#include "gpipe/testing/number_from.h"
#include "gpipe/testing/own_backward.h"
#include "gpipe/testing/processes/world_ranks.h"
#include "gpipe/testing/sample_models.h"
#include "meta/meta_scope.h"
#include "tied/tied_layer.h"

namespace gpipe::distributed {
namespace {

using testing::all_balances;
using testing::bitwise_difference;
using testing::sample_models;
using testing::SampleModel;
using Say = WorldRanks::Say;

constexpr int64_t kRows = 7;  // cannot be divided evenly, so the last micro-batch has fewer rows

struct Layout {
  std::string schedule;
  int64_t stages;
  std::vector<int64_t> processes;  // [worker]; empty: each worker has its own process
};

struct Case {
  SampleModel sample;
  Layout layout;
  std::vector<int64_t> balance;
  Checkpoint mode;
  bool deferred;
  int64_t steps;
};

std::vector<int64_t> last_balance(int64_t layers, int64_t stages) {
  return all_balances(layers, stages).back();
}

int64_t few_steps() {
  return static_cast<int64_t>(testing::number_from("GPIPE_EXACTNESS_STEPS", 4));
}

constexpr Checkpoint kModes[] = {Checkpoint::kAlways, Checkpoint::kExceptLast, Checkpoint::kNever};

std::ostream& operator<<(std::ostream& out, const Case& one) {
  out << one.sample.name << ", " << one.layout.schedule << ", " << to_text(one.mode);
  for (const int64_t layers : one.balance) out << " " << layers;
  for (size_t k = 0; k < one.layout.processes.size(); ++k) {
    out << (k == 0 ? " in processes " : " ") << one.layout.processes[k];
  }
  return out << (one.deferred ? ", deferred" : "") << ", " << one.steps << " steps";
}

// The first difference in the state of this process; empty if there is none.
std::string state_difference(GPipe& pipe, GPipe& expected) {
  for (size_t k = 0; k < pipe->size(); ++k) {
    const auto index = static_cast<int64_t>(k);
    const auto parameters = (*pipe)[index]->named_parameters();
    const auto expected_parameters = (*expected)[index]->named_parameters();
    const auto buffers = (*pipe)[index]->named_buffers();
    const auto expected_buffers = (*expected)[index]->named_buffers();
    for (size_t n = 0; n < parameters.size(); ++n) {
      const at::Tensor& here = parameters[n].value();
      const std::string name = "layer " + std::to_string(k) + " " + parameters[n].key() + ": ";
      if (!pipe->is_here(index)) {
        if (!here.is_meta() || here.grad().defined()) return name + "is elsewhere, and has memory";
        continue;
      }
      const at::Tensor& there = expected_parameters[n].value();
      std::string differs = bitwise_difference(there, here);
      if (!differs.empty()) return name + differs;
      differs = bitwise_difference(there.grad(), here.grad());
      if (!differs.empty()) return name + "the gradient: " + differs;
    }
    for (size_t n = 0; n < buffers.size() && pipe->is_here(index); ++n) {
      const std::string differs =
          bitwise_difference(expected_buffers[n].value(), buffers[n].value());
      if (!differs.empty()) return "buffer of layer " + std::to_string(k) + ": " + differs;
    }
  }
  return "";
}

// Trains the pipeline of one process and the pipeline over processes, and compares them after each
// step. Returns the first difference.
std::string difference(const World& world, const Case& one) {
  const SampleModel& sample = one.sample;
  const Layout& layout = one.layout;
  Placement placement = placement_by_name(layout.schedule, layout.stages);
  GPipeOptions options(one.balance);
  options.chunks(3).checkpoint(one.mode).deferred_batch_norm(one.deferred).cpu_threads_per_stage(1);
  GPipe expected(sample.make(), GPipeOptions(options).placement(placement));
  if (!layout.processes.empty()) placement.processes(layout.processes);
  GPipe pipe(sample.make(), GPipeOptions(options).placement(placement).world(world));
  torch::optim::Adam expected_optimizer(expected->parameters(), 0.01);
  torch::optim::Adam optimizer(pipe->local_parameters(), 0.01);

  const bool first = pipe->is_here(0);
  const bool last = pipe->is_here(-1);
  const StepOptions step =
      StepOptions().schedule(schedule_by_name(layout.schedule)).keep_outputs(true);
  for (int64_t k = 0; k < one.steps; ++k) {
    const int64_t rows = k % 2 == 0 ? kRows : kRows - 2;  // the shapes change from step to step
    const Tensors inputs = sample.inputs(rows);
    const Tensors targets = sample.targets(rows);
    expected_optimizer.zero_grad();
    optimizer.zero_grad();
    torch::manual_seed(7 + k);
    const StepResult wanted = expected->step(inputs, targets, sample.loss, step);
    torch::manual_seed(world.rank() == 0 ? 7 + k : 1000 + world.rank());
    const StepResult got =
        pipe->step(first ? inputs : Tensors(), last ? targets : Tensors(), sample.loss, step);
    if (got.loss != wanted.loss || got.losses != wanted.losses) {
      return "the loss: " + std::to_string(got.loss) + " and not " + std::to_string(wanted.loss);
    }
    if (got.outputs.empty() != !last) return "outputs where they should not be";
    const std::string differs = last ? bitwise_difference(wanted.outputs, got.outputs) : "";
    if (!differs.empty()) return "an output: " + differs;
    const double norm = clip_grad_norm_(expected->parameters(), 0.1);
    if (pipe->clip_grad_norm_(0.1) != norm) return "the norm of the gradients";
    expected_optimizer.step();
    optimizer.step();
  }
  const Tensors inputs = sample.inputs(kRows);
  const Tensors targets = sample.targets(kRows);
  torch::manual_seed(3);
  const double wanted = expected->evaluate(inputs, targets, sample.loss).loss;
  torch::manual_seed(3);
  if (pipe->evaluate(inputs, targets, sample.loss).loss != wanted) return "the evaluation";
  const torch::NoGradGuard no_grad;
  torch::manual_seed(4);
  const Tensors wanted_outputs = expected->forward(inputs);
  torch::manual_seed(4);
  const Tensors outputs = pipe->forward(first ? inputs : Tensors());
  if (last && !bitwise_difference(wanted_outputs, outputs).empty()) return "forward";
  if (!last && !outputs.empty()) return "outputs of a forward where they should not be";
  return state_difference(pipe, expected);
}

// Expects no difference in any case. The processes are started once and run all cases.
void expect_same_bits(int64_t processes, const std::vector<Case>& cases) {
  WorldRanks ranks(processes, [&](const World& world, const Say& say) {
    for (const Case& one : cases) {
      const std::string differs = outcome([&] { return difference(world, one); });
      say(differs.empty() ? "same" : differs);
    }
  });
  for (const Case& one : cases) {
    for (int64_t rank = 0; rank < processes; ++rank) {
      EXPECT_EQ(ranks->next(rank), "same") << one << ", rank " << rank;
    }
  }
  ranks.expect_ends();
}

// Cases of each model that has enough layers in each layout. The checkpoint modes take turns.
std::vector<Case> all_models(const std::vector<Layout>& layouts) {
  std::vector<Case> cases;
  for (const Layout& layout : layouts) {
    size_t number = 0;
    for (const SampleModel& sample : sample_models()) {
      ++number;
      if (sample.layers < layout.stages) continue;
      cases.push_back({sample, layout, last_balance(sample.layers, layout.stages),
                       kModes[number % std::size(kModes)], number % 2 == 0, few_steps()});
    }
  }
  return cases;
}

TEST(WorldExactness, TwoProcesses) {
  expect_same_bits(2, all_models({{"1f1b", 2, {}},
                                  {"gpipe", 2, {}},
                                  {"zb-h1", 2, {}},
                                  {"zb-v", 4, {}},
                                  {"interleaved", 4, {}},
                                  {"1f1b", 3, {0, 1, 0}},
                                  {"1f1b", 4, {1, 0, 0, 1}}}));
}

TEST(WorldExactness, ThreeProcesses) {
  expect_same_bits(3, all_models({{"1f1b", 3, {}}, {"zb-h2", 3, {}}, {"1f1b", 4, {2, 0, 1, 0}}}));
}

TEST(WorldExactness, FourProcesses) {
  expect_same_bits(4, all_models({{"1f1b", 4, {}}, {"gpipe", 4, {}}, {"zb-h1", 4, {}}}));
}

// Nine layers, enough for two stages in each of four processes, with buffers and random numbers.
SampleModel deep_model() {
  SampleModel sample;
  sample.name = "deep";
  sample.layers = 9;
  sample.make = [] {
    namespace nn = torch::nn;
    torch::manual_seed(1);
    return nn::Sequential(nn::Linear(4, 6), nn::BatchNorm1d(3), nn::Dropout(0.3), nn::Linear(6, 6),
                          nn::Tanh(), nn::Linear(6, 6), nn::BatchNorm1d(3), nn::Dropout(0.4),
                          nn::Linear(6, 2));
  };
  const auto rows_of = [](int64_t width, uint64_t seed) {
    return [width, seed](int64_t rows) {
      torch::manual_seed(seed);
      return Tensors{torch::randn({rows, 3, width})};
    };
  };
  sample.inputs = rows_of(4, 2);
  sample.targets = rows_of(2, 3);
  sample.loss = [](const Tensors& outputs, const Tensors& targets) {
    return torch::mse_loss(outputs[0], targets[0]);
  };
  return sample;
}

bool has_several_stages(const NamedSchedule& schedule) {
  return schedule.shape == PlacementShape::kLoop || schedule.shape == PlacementShape::kVShape;
}

// Layouts of the schedules that have one stage in each worker, or (`several`) of those that have
// two.
std::vector<Layout> layouts_of(int64_t workers, bool several) {
  std::vector<Layout> layouts;
  for (const NamedSchedule& schedule : named_schedules()) {
    if (schedule.shape == PlacementShape::kOneWorker) continue;
    if (has_several_stages(schedule) != several) continue;
    layouts.push_back({schedule.name, several ? 2 * workers : workers, {}});
  }
  return layouts;
}

bool wants_all() { return testing::number_from("GPIPE_EXACTNESS_ALL", 0) != 0; }

// Cases of each balance with each checkpoint mode. The layouts take turns.
std::vector<Case> all_balances_and_modes(const SampleModel& sample,
                                         const std::vector<Layout>& layouts) {
  std::vector<Case> cases;
  size_t turn = 0;
  for (const auto& balance : all_balances(sample.layers, layouts.front().stages)) {
    for (const Checkpoint mode : kModes) {
      for (size_t k = 0; k < layouts.size(); ++k) {
        if (!wants_all() && k != turn % layouts.size()) continue;
        cases.push_back({sample, layouts[k], balance, mode, cases.size() % 2 == 0, few_steps()});
      }
      ++turn;
    }
  }
  return cases;
}

// Cases of each layout with each checkpoint mode. The balances take turns.
std::vector<Case> all_layouts_and_modes(const std::vector<Layout>& layouts) {
  const SampleModel sample = deep_model();
  if (wants_all()) return all_balances_and_modes(sample, layouts);
  const auto balances = all_balances(sample.layers, layouts.front().stages);
  std::vector<Case> cases;
  for (const Layout& layout : layouts) {
    for (const Checkpoint mode : kModes) {
      cases.push_back({sample, layout, balances[5 * cases.size() % balances.size()], mode,
                       cases.size() % 2 == 0, few_steps()});
    }
  }
  return cases;
}

class WorldExactnessOver : public ::testing::TestWithParam<int64_t> {};
INSTANTIATE_TEST_SUITE_P(Processes, WorldExactnessOver, ::testing::Values(2, 3, 4));

TEST_P(WorldExactnessOver, AllBalancesAndModes) {
  const std::vector<Layout> layouts = layouts_of(GetParam(), /*several=*/false);
  std::vector<Case> cases;
  for (const SampleModel& sample : sample_models()) {
    // The other models are large, or have neither random draws nor buffers.
    if (sample.name != "dropout" && sample.name != "batch_norm" && !wants_all()) continue;
    const std::vector<Case> more = all_balances_and_modes(sample, layouts);
    cases.insert(cases.end(), more.begin(), more.end());
  }
  expect_same_bits(GetParam(), cases);
}

TEST_P(WorldExactnessOver, LoopsAndVs) {
  std::vector<Layout> layouts = layouts_of(GetParam(), /*several=*/true);
  ASSERT_GE(layouts.size(), 7);
  std::vector<Case> cases = all_models(layouts);
  // Here the order of the workers is the reverse of the order of their processes.
  for (Layout& layout : layouts) {
    for (int64_t k = GetParam(); k > 0; --k) layout.processes.push_back(k - 1);
  }
  const std::vector<Case> backwards = all_layouts_and_modes(layouts);
  cases.insert(cases.end(), backwards.begin(), backwards.end());
  expect_same_bits(GetParam(), cases);
}

TEST_P(WorldExactnessOver, FiftySteps) {
  const int64_t processes = GetParam();
  std::vector<Case> cases;
  for (const char* name : {"1f1b", "zb-h1", "interleaved", "zb-v"}) {
    const bool several = name == std::string("interleaved") || name == std::string("zb-v");
    const int64_t stages = several ? 2 * processes : processes;
    const SampleModel sample = deep_model();
    const auto balances = all_balances(sample.layers, stages);
    cases.push_back({sample,
                     {name, stages, {}},
                     balances[balances.size() / 2],
                     kModes[cases.size() % std::size(kModes)],
                     cases.size() % 2 == 0,
                     50});
  }
  expect_same_bits(processes, cases);
}

// A layer whose weight other layers use, too: the first and the last layer share one, as in a
// language model, and so do layers in the middle.
struct TiedImpl : torch::nn::Module, TiedLayer {
  // `registers`: whether this is the first layer with the weight, which registers it.
  TiedImpl(const torch::Tensor& weight, bool transposed, bool registers)
      : weight(weight), transposed(transposed) {
    if (registers) register_parameter("weight", weight);
  }
  std::vector<torch::Tensor> tied_parameters() const override {
    return parameters().empty() ? std::vector<torch::Tensor>{weight} : std::vector<torch::Tensor>();
  }
  torch::Tensor forward(torch::Tensor x) {
    return torch::tanh(x.matmul(transposed ? weight.t() : weight));
  }
  torch::Tensor weight;
  bool transposed;
};
TORCH_MODULE(Tied);

SampleModel tied_model(bool registers_twice) {
  constexpr int64_t kWidth = 5;
  SampleModel sample = sample_models().front();
  sample.name = "tied";
  sample.layers = 6;
  sample.make = [registers_twice] {
    namespace nn = torch::nn;
    torch::manual_seed(1);
    const torch::Tensor a = torch::randn({kWidth, kWidth}, torch::requires_grad());
    const torch::Tensor b = torch::randn({kWidth, kWidth}, torch::requires_grad());
    return nn::Sequential(Tied(a, false, true), nn::Dropout(0.3), Tied(b, false, true),
                          Tied(a, true, false), Tied(b, true, registers_twice),
                          Tied(a, false, false));
  };
  const auto rows = [](int64_t count) {
    return Tensors{torch::linspace(-1, 1, count * kWidth).view({count, kWidth})};
  };
  sample.inputs = rows;
  sample.targets = rows;
  sample.loss = [](const Tensors& outputs, const Tensors& targets) {
    return torch::mse_loss(outputs[0], targets[0]);
  };
  return sample;
}

// Does what difference() does, for parameters that several layers share.
std::string tied_difference(const World& world, const Layout& layout, Checkpoint mode) {
  const SampleModel sample = tied_model(/*registers_twice=*/mode == Checkpoint::kNever);
  Placement placement = placement_by_name(layout.schedule, layout.stages);
  GPipeOptions options(last_balance(sample.layers, layout.stages));
  options.chunks(3).checkpoint(mode).cpu_threads_per_stage(1);
  GPipe expected(sample.make(), GPipeOptions(options).placement(placement));
  if (!layout.processes.empty()) placement.processes(layout.processes);
  GPipe pipe(sample.make(), GPipeOptions(options).placement(placement).world(world));
  // SGD is one of the two optimizers, because LibTorch's SGD changes parameters without increasing
  // their version.
  const auto optimizer_of = [&](const std::vector<torch::Tensor>& parameters)
      -> std::unique_ptr<torch::optim::Optimizer> {
    if (parameters.empty()) return nullptr;
    if (mode == Checkpoint::kAlways) return std::make_unique<torch::optim::Adam>(parameters, 0.01);
    return std::make_unique<torch::optim::SGD>(parameters, 0.5);
  };
  const auto expected_optimizer = optimizer_of(expected->local_parameters());
  const auto optimizer = optimizer_of(pipe->local_parameters());
  const auto freeze_first = [](const GPipe& of) {
    const torch::Tensor first = of->named_parameters()["0.weight"];
    for (torch::Tensor& local : of->local_parameters()) {
      if (local.is_same(first)) local.set_requires_grad(false);
    }
  };
  const StepOptions step = StepOptions().schedule(schedule_by_name(layout.schedule));
  for (int64_t k = 0; k < 4; ++k) {
    expected_optimizer->zero_grad();
    if (optimizer != nullptr) optimizer->zero_grad();
    if (k == 3) {  // freezes the weight in its owner's process
      freeze_first(expected);
      freeze_first(pipe);
    }
    torch::manual_seed(7 + k);
    const double wanted =
        expected->step(sample.inputs(kRows), sample.targets(kRows), sample.loss, step).loss;
    torch::manual_seed(world.rank() == 0 ? 7 + k : 1000);
    const double got =
        pipe->step(sample.inputs(kRows), sample.targets(kRows), sample.loss, step).loss;
    if (got != wanted) return "the loss in step " + std::to_string(k);
    const auto named = pipe->named_parameters();
    for (size_t n = 0; n < named.size(); ++n) {
      const torch::Tensor parameter = named[n].value();
      if (parameter.is_meta()) continue;
      const bool owned = [&] {
        for (const torch::Tensor& local : pipe->local_parameters()) {
          if (local.is_same(parameter)) return true;
        }
        return false;
      }();
      const std::string differs =
          bitwise_difference(expected->named_parameters()[n].value().grad(), parameter.grad());
      if (owned && !differs.empty()) return "the gradient of " + named[n].key() + ": " + differs;
      if (!owned && parameter.grad().defined()) return "a copy has a gradient";
    }
    if (pipe->clip_grad_norm_(0.1) != expected->clip_grad_norm_(0.1)) return "the norm";
    expected_optimizer->step();
    if (optimizer != nullptr) optimizer->step();
  }
  // The copies of tied weights still have the values of the last step, and evaluate() must bring
  // the new ones.
  const auto evaluation = [&](GPipe& pipeline) {
    torch::manual_seed(3);
    return pipeline->evaluate(sample.inputs(kRows), sample.targets(kRows), sample.loss).loss;
  };
  if (evaluation(pipe) != evaluation(expected)) return "the evaluation";
  return pipe->parameter_hash() == expected->parameter_hash() ? "same" : "the hash";
}

struct OwnBackwardTiedImpl : TiedImpl {
  using TiedImpl::TiedImpl;
  torch::Tensor forward(torch::Tensor x) { return testing::OwnBackward::apply(x, weight); }
};

// A tied layer that clamps its weight in its forward, as an embedding with max_norm does.
struct ClampedTiedImpl : TiedImpl {
  using TiedImpl::TiedImpl;
  torch::Tensor forward(torch::Tensor x) {
    const torch::NoGradGuard no_grad;
    weight.clamp_(-0.1, 0.1);
    return x.matmul(weight);
  }
};

// A tied layer that gives its weight a sparse gradient.
struct SparseTiedImpl : TiedImpl {
  using TiedImpl::TiedImpl;
  torch::Tensor forward(torch::Tensor x) {
    return x + torch::embedding(weight, x.argmax(1), -1, false, /*sparse=*/true);
  }
};

TEST(WorldExactness, ASparseGradientOfATiedWeightIsRefusedByName) {
  WorldRanks ranks(2, [](const World& world, const Say& say) {
    const auto first =
        std::make_shared<TiedImpl>(torch::ones({5, 5}, torch::requires_grad()), false, true);
    const auto last = std::make_shared<SparseTiedImpl>(first->weight, false, false);
    GPipe pipe(torch::nn::Sequential(first, last), GPipeOptions({1, 1}).chunks(2).world(world));
    const LossFn loss = [](const Tensors& outputs, const Tensors&) { return outputs[0].mean(); };
    say(outcome([&] { return std::to_string(pipe->step({torch::ones({4, 5})}, {}, loss).loss); }));
  });
  using ::testing::AllOf, ::testing::Each, ::testing::HasSubstr;
  EXPECT_THAT(ranks.lines(),
              Each(AllOf(HasSubstr("the gradient of the tied parameter '0.weight' in stage 1"),
                         HasSubstr("layout Sparse"), HasSubstr("into one process"))));
  ranks.expect_ends();
}

TEST(WorldExactness, WhatTheOtherProcessOfATiedWeightWouldMissIsRefused) {
  using torch::nn::Sequential;
  WorldRanks ranks(2, [](const World& world, const Say& say) {
    const Tensors x{torch::ones({4, 5})};
    const LossFn loss = [](const Tensors& outputs, const Tensors&) { return outputs[0].mean(); };
    const GPipeOptions options = GPipeOptions({1, 1}).chunks(2).world(world);
    const auto weight_of = [] { return torch::ones({5, 5}, torch::requires_grad()); };
    const auto first = std::make_shared<TiedImpl>(weight_of(), false, true);
    GPipe own_backward(
        Sequential(first, std::make_shared<OwnBackwardTiedImpl>(first->weight, false, false)),
        options);
    say(outcome([&] { return std::to_string(own_backward->step(x, {}, loss).loss); }));
    const auto clamped = std::make_shared<ClampedTiedImpl>(weight_of(), false, true);
    GPipe changed(Sequential(clamped, std::make_shared<TiedImpl>(clamped->weight, false, false)),
                  options);
    say(outcome([&] { return std::to_string(changed->evaluate(x, {}, loss).loss); }));
  });
  using ::testing::Each, ::testing::HasSubstr;
  EXPECT_THAT(ranks.lines(), Each(HasSubstr("a backward of its own towards the tied parameter")));
  EXPECT_THAT(ranks.lines(), Each(HasSubstr("was changed in place by a layer during the call")));
  ranks.expect_ends();
}

// Rank 0 owns the weight, and rank 1 freezes its copy. That must be refused. If the owner freezes
// the weight, it is frozen (tied_difference() tests that).
TEST(WorldExactness, ATiedWeightThatIsFrozenInACopyAloneIsRefused) {
  WorldRanks ranks(2, [](const World& world, const Say& say) {
    const Tensors x{torch::ones({4, 5})};
    const LossFn loss = [](const Tensors& outputs, const Tensors&) { return outputs[0].mean(); };
    const auto first =
        std::make_shared<TiedImpl>(torch::ones({5, 5}, torch::requires_grad()), false, true);
    GPipe pipe(torch::nn::Sequential(first, std::make_shared<TiedImpl>(first->weight, true, false)),
               GPipeOptions({1, 1}).chunks(2).world(world));
    const auto step = [&] { return std::to_string(pipe->step(x, {}, loss).loss); };
    if (world.rank() == 1) first->weight.set_requires_grad(false);
    say(outcome(step));
    say(first->weight.grad().defined() ? "a gradient" : "no gradient");
    say(outcome([&] { return std::to_string(pipe->evaluate(x, {}, loss).loss); }));
  });
  using ::testing::AllOf, ::testing::Each, ::testing::HasSubstr;
  EXPECT_THAT(ranks.lines(),
              Each(AllOf(HasSubstr("value error"),
                         HasSubstr("the tied parameter '0.weight' is frozen on rank 1"),
                         HasSubstr("requires a gradient on rank 0"))));
  EXPECT_THAT(ranks.lines(), Each("no gradient"));
  EXPECT_THAT(ranks.lines(), Each(::testing::MatchesRegex("[0-9.]+")));
  ranks.expect_ends();
}

TEST(WorldExactness, TiedWeights) {
  const std::vector<Checkpoint> modes = {Checkpoint::kAlways, Checkpoint::kNever};
  const std::vector<Layout> of_two = {{"1f1b", 2, {}},
                                      {"zb-h1", 2, {}},
                                      {"zb-v", 4, {}},
                                      {"1f1b", 4, {0, 1, 0, 1}},
                                      {"1f1b", 6, {1, 0, 0, 1, 0, 1}}};
  const std::vector<Layout> of_three = {{"1f1b", 3, {}}, {"zb-h2", 6, {2, 1, 0, 0, 1, 2}}};
  for (const auto& [processes, layouts] : {std::pair(2, of_two), {3, of_three}}) {
    WorldRanks ranks(processes, [&, &layouts = layouts](const World& world, const Say& say) {
      for (const Layout& layout : layouts) {
        for (const Checkpoint mode : modes) {
          say(outcome([&] { return tied_difference(world, layout, mode); }));
        }
      }
    });
    for (const Layout& layout : layouts) {
      for (size_t k = 0; k < modes.size(); ++k) {
        EXPECT_THAT(ranks.lines(), ::testing::Each("same"))
            << layout.schedule << ", " << layout.stages << " stages";
      }
    }
    ranks.expect_ends();
  }
}

// A layer that computes linear(x) * mask and passes the mask on. The mask is a shared input: a
// parameter that no layer has registered, whose gradient must arrive exactly once.
struct MaskedImpl : torch::nn::Module {
  MaskedImpl() { linear = register_module("linear", torch::nn::Linear(5, 5)); }
  at::Tensor forward(at::Tensor x, at::Tensor mask) { return linear->forward(x) * mask; }
  torch::nn::Linear linear{nullptr};
};

TEST(WorldExactness, SharedInputs) {
  WorldRanks ranks(2, [&](const World& world, const Say& say) {
    const auto make = [] {
      torch::manual_seed(1);
      return torch::nn::Sequential(SeveralArguments<MaskedImpl>(), SeveralArguments<MaskedImpl>(),
                                   First());
    };
    const LossFn loss = [](const Tensors& outputs, const Tensors& targets) {
      return at::mse_loss(outputs.at(0), targets.at(0));
    };
    const auto options = GPipeOptions({1, 2}).chunks(3).cpu_threads_per_stage(1).shared_inputs({1});
    GPipe expected(make(), options), pipe(make(), GPipeOptions(options).world(world));
    const bool first = pipe->is_here(0);
    torch::manual_seed(2);
    const at::Tensor x = torch::randn({7, 5}), target = torch::randn({7, 5});
    at::Tensor wanted = torch::rand({5}).requires_grad_();
    at::Tensor mask = wanted.detach().clone().requires_grad_(first);
    const double loss_wanted = expected->step({x, wanted}, {target}, loss).loss;
    const double got =
        pipe->step(first ? Tensors{x, mask} : Tensors(), first ? Tensors() : Tensors{target}, loss)
            .loss;
    std::string differs = got == loss_wanted ? "" : "the loss ";
    if (first) differs += bitwise_difference(wanted.grad(), mask.grad());
    differs += state_difference(pipe, expected);
    // Processes with different shared_inputs would cut the inputs differently, so that is refused.
    try {
      const GPipe other(make(), GPipeOptions(options).world(world).shared_inputs(
                                    first ? std::vector<int64_t>{1} : std::vector<int64_t>{}));
      differs += "other shared inputs were taken";
    } catch (const std::exception& error) {
      const std::string text = error.what();
      if (text.find("shared_inputs of pipeline") == std::string::npos) differs += text;
    }
    say(differs.empty() ? "same" : differs);
  });
  EXPECT_THAT(ranks.lines(), ::testing::ElementsAre("same", "same"));
}

TEST(WorldExactness, TheLosssOwnParameterGetsItsGradient) {
  WorldRanks ranks(2, [&](const World& world, const Say& say) {
    const SampleModel& sample = sample_models().front();
    const auto gradient = [&](const World& over) {
      GPipeOptions options(last_balance(sample.layers, 2));
      options.chunks(3).cpu_threads_per_stage(1).checkpoint(Checkpoint::kAlways);
      GPipe pipe(sample.make(), options.world(over));
      const torch::Tensor scale = torch::full({1}, 1.5, torch::requires_grad());
      torch::manual_seed(7);
      pipe->step(sample.inputs(kRows), sample.targets(kRows),
                 [&](const Tensors& outputs, const Tensors& targets) {
                   return sample.loss(outputs, targets) * scale[0];
                 });
      return scale.grad();
    };
    const torch::Tensor expected = gradient(World());
    const torch::Tensor got = gradient(world);
    if (world.rank() == 0) {
      say(got.defined() ? "a gradient where there is no loss" : "same");
    } else {
      const std::string differs = bitwise_difference(expected, got);
      say(expected.defined() && differs.empty() ? "same" : differs);
    }
  });
  EXPECT_THAT(ranks.lines(), ::testing::ElementsAre("same", "same"));
}

torch::nn::Sequential with_buffers() {
  namespace nn = torch::nn;
  return nn::Sequential(nn::Linear(5, 6), nn::BatchNorm1d(6), nn::Dropout(0.3), nn::Linear(6, 3));
}

void fill(const std::string& name, at::Tensor& tensor, at::Generator generator) {
  if (name == "1.running_var") {
    tensor.fill_(1);
  } else if (tensor.is_floating_point() && name != "1.running_mean") {
    tensor.normal_(0, 0.1, std::move(generator));
  } else {
    tensor.zero_();
  }
}

// The names and sums of this process's materialized parameters, and the names of its buffers.
std::string materialized(const World& world, const std::vector<int64_t>& balance) {
  torch::nn::Sequential module = [] {
    const MetaScope meta;
    return with_buffers();
  }();
  GPipeOptions options(balance);
  if (world.size() > 1) options.world(world);
  GPipe pipe(module, options);
  torch::manual_seed(world.rank() == 0 ? 5 : 99);
  pipe->materialize(fill);
  std::string text;
  for (const auto& parameter : pipe->named_parameters()) {
    if (parameter.value().is_meta()) continue;
    text += parameter.key() + " " + c10::str(parameter.value().sum().item<float>()) + " ";
  }
  for (const auto& buffer : pipe->named_buffers()) {
    if (!buffer.value().is_meta()) text += buffer.key() + " ";
  }
  pipe->step(
      {torch::ones({4, 5})}, {torch::ones({4, 3})},
      [](torch::Tensor output, torch::Tensor target) { return torch::mse_loss(output, target); });
  return text;
}

TEST(WorldExactness, AModelOnMetaIsFilledWithTheSameValuesHoweverItIsCut) {
  WorldRanks ranks(2, [&](const World& world, const Say& say) {
    say(materialized(world, {1, 3}));
    say(materialized(world, {3, 1}));
    say(materialized(World(), {4}));
  });
  std::vector<std::vector<std::string>> lines(2);
  for (int64_t rank = 0; rank < 2; ++rank) {
    for (int k = 0; k < 3; ++k) lines[rank].push_back(ranks->next(rank));
  }
  EXPECT_THAT(lines[0][0], ::testing::StartsWith("0.weight "));
  EXPECT_THAT(lines[1][0], ::testing::StartsWith("1.weight "));
  const auto parts = [](const std::string& text) {
    return text.substr(0, text.find(" 1.running_mean"));
  };
  const std::string whole = lines[0][2];
  EXPECT_THAT(whole, ::testing::HasSubstr(parts(lines[0][0])));
  EXPECT_THAT(whole, ::testing::HasSubstr(parts(lines[1][0])));
  EXPECT_THAT(whole, ::testing::HasSubstr(parts(lines[1][1])));
  ranks.expect_ends();
}

}  // namespace
}  // namespace gpipe::distributed
