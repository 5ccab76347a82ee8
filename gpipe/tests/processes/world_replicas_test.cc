// Tests that a pipeline over replicas computes what one process computes with the same groups, bit
// for bit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/schedulers/step_lr.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gpipe/distributed/sockets/master_port.h"
#include "gpipe/gpipe.h"
#include "gpipe/internal/processes/processes.h"
#include "gpipe/schedule/named_schedule.h"
#include "gpipe/testing/bitwise.h"
#include "gpipe/testing/function_layer.h"
#include "gpipe/testing/own_backward.h"
#include "gpipe/testing/processes/rank_processes.h"
#include "gpipe/testing/processes/world_ranks.h"
#include "gpipe/testing/sample_models.h"
#include "gpipe/zero_optimizer.h"
#include "meta/meta_scope.h"

namespace gpipe::distributed {
namespace {

namespace nn = torch::nn;
using ::testing::AllOf;
using testing::bitwise_difference;
using ::testing::Each;
using ::testing::HasSubstr;
using testing::sample_models;
using testing::SampleModel;
using Say = WorldRanks::Say;

constexpr int64_t kChunks = 8;

struct Layout {
  int64_t replicas;
  int64_t processes;
  int64_t stages;
  std::string schedule;
};

std::vector<int64_t> last_balance(int64_t layers, int64_t stages) {
  return testing::all_balances(layers, stages).back();
}

// A placement over the processes of a replica: consecutive workers share a process.
Placement placement_of(const Layout& layout) {
  Placement placement = placement_by_name(layout.schedule, layout.stages);
  if (layout.processes == 1) return placement;
  std::vector<int64_t> processes;
  for (int64_t worker = 0; worker < placement.workers(); ++worker) {
    processes.push_back(worker * layout.processes / placement.workers());
  }
  return placement.processes(processes);
}

Tensors rows_of(const Tensors& tensors, const RowRange& rows) {
  Tensors result;
  for (const torch::Tensor& tensor : tensors) {
    result.push_back(tensor.narrow(0, rows.begin, rows.size()));
  }
  return result;
}

// Trains one process and the replicas, and compares them. The rows of the mini-batches cannot be
// divided evenly: the last replicas get fewer rows, and some get no rows of the smallest
// mini-batch.
std::string difference(const World& world, const SampleModel& sample, const Layout& layout,
                       int64_t groups) {
  GPipeOptions options(last_balance(sample.layers, layout.stages));
  options.chunks(kChunks).groups(groups).cpu_threads_per_stage(1).deferred_batch_norm(true);
  GPipe expected(sample.make(), options);
  GPipe pipe(sample.make(), GPipeOptions(options).placement(placement_of(layout)).world(world));
  torch::optim::Adam expected_optimizer(expected->parameters(), 0.01);
  torch::optim::Adam optimizer(pipe->local_parameters(), 0.01);
  const bool first = pipe->is_here(0);
  const bool last = pipe->is_here(-1);
  const StepOptions step =
      StepOptions().schedule(schedule_by_name(layout.schedule)).keep_outputs(true);
  for (const int64_t rows : {16, 13, 3, 16}) {
    const Tensors inputs = sample.inputs(rows);
    const Tensors targets = sample.targets(rows);
    const RowRange here = world.rows(rows, kChunks);
    expected_optimizer.zero_grad();
    optimizer.zero_grad();
    torch::manual_seed(7 + rows);
    const StepResult wanted =
        expected->step(inputs, targets, sample.loss, StepOptions().keep_outputs(true));
    torch::manual_seed(world.rank() == 0 ? 7 + rows : 1000 + world.rank());
    const StepResult got = pipe->step(first ? rows_of(inputs, here) : Tensors(),
                                      last ? rows_of(targets, here) : Tensors(), sample.loss, step);
    if (got.loss != wanted.loss || got.losses != wanted.losses) {
      return "the loss: " + std::to_string(got.loss) + " and not " + std::to_string(wanted.loss);
    }
    if (last && here.size() > 0) {
      const std::string differs = bitwise_difference(rows_of(wanted.outputs, here), got.outputs);
      if (!differs.empty()) return "an output: " + differs;
    } else if (!got.outputs.empty()) {
      return "outputs where they should not be";
    }
    if (pipe->clip_grad_norm_(0.1) != expected->clip_grad_norm_(0.1)) {
      return "the norm of the gradients";
    }
    for (size_t k = 0; k < pipe->parameters().size(); ++k) {
      const at::Tensor parameter = pipe->parameters()[k];
      if (parameter.is_meta()) continue;
      const std::string differs =
          bitwise_difference(expected->parameters()[k].grad(), parameter.grad());
      if (!differs.empty()) return "gradient " + std::to_string(k) + ": " + differs;
    }
    for (size_t k = 0; k < pipe->buffers().size(); ++k) {
      const at::Tensor buffer = pipe->buffers()[k];
      if (buffer.is_meta()) continue;
      const std::string differs = bitwise_difference(expected->buffers()[k], buffer);
      if (!differs.empty()) return "buffer " + std::to_string(k) + ": " + differs;
    }
    expected_optimizer.step();
    optimizer.step();
  }
  const RowRange here = world.rows(16, kChunks);
  const Tensors inputs = sample.inputs(16);
  const Tensors targets = sample.targets(16);
  torch::manual_seed(3);
  const double wanted = expected->evaluate(inputs, targets, sample.loss).loss;
  torch::manual_seed(3);
  const double got = pipe->evaluate(first ? rows_of(inputs, here) : Tensors(),
                                    last ? rows_of(targets, here) : Tensors(), sample.loss)
                         .loss;
  if (got != wanted) return "the evaluation";
  if (pipe->parameter_hash() != expected->parameter_hash()) return "the hash";
  return "";
}

// Expects no difference in any layout. The processes are started once and run all layouts.
void expect_same_bits(int64_t processes, const std::vector<Layout>& layouts) {
  WorldRanks ranks(processes, [&](const World& world, const Say& say) {
    for (const Layout& layout : layouts) {
      for (const SampleModel& sample : sample_models()) {
        if (sample.layers < layout.stages) {
          say("left out");
          continue;
        }
        const std::string differs =
            difference(world.grid(layout.replicas, layout.processes), sample, layout, 4);
        say(differs.empty() ? "same" : differs);
      }
    }
  });
  int64_t compared = 0;
  for (const Layout& layout : layouts) {
    for (const SampleModel& sample : sample_models()) {
      for (int64_t rank = 0; rank < processes; ++rank) {
        const std::string line = ranks->next(rank);
        compared += line == "same";
        if (line != "left out") {
          EXPECT_EQ(line, "same") << sample.name << ", " << layout.replicas << " replicas of "
                                  << layout.stages << " stages in " << layout.processes
                                  << " processes, " << layout.schedule << ", rank " << rank;
        }
      }
    }
  }
  EXPECT_GE(compared, processes * static_cast<int64_t>(layouts.size()) * 3);
  ranks.expect_ends();
}

TEST(WorldReplicas, TwoProcesses) {
  expect_same_bits(2, {{2, 1, 1, "1f1b"}, {2, 1, 3, "zb-h1"}, {2, 1, 2, "1f1b"}});
}

TEST(WorldReplicas, FourProcesses) {
  expect_same_bits(4,
                   {{4, 1, 2, "1f1b"}, {2, 2, 2, "1f1b"}, {2, 2, 3, "zb-h2"}, {2, 2, 4, "zb-v"}});
}

// With a ZeroOptimizer each replica has the optimizer states of its own parameters only.
// Nevertheless all replicas get the bits of the plain optimizer.
TEST(WorldReplicas, AShardedOptimizerGivesThePlainOnesBits) {
  WorldRanks ranks(4, [&](const World& world, const Say& say) {
    const SampleModel& sample = sample_models().front();
    for (const auto& [replicas, processes] : {std::pair(4, 1), {2, 2}}) {
      const World grid = world.grid(replicas, processes);
      GPipeOptions options(last_balance(sample.layers, 2));
      options.chunks(kChunks).groups(4).cpu_threads_per_stage(1);
      GPipe expected(sample.make(), options);
      GPipe pipe(sample.make(), GPipeOptions(options).world(grid));
      torch::optim::Adam expected_optimizer(expected->parameters(), 0.01);
      ZeroOptimizer optimizer(pipe, [](std::vector<torch::Tensor> parameters) {
        return std::make_unique<torch::optim::Adam>(std::move(parameters), 0.01);
      });
      const RowRange here = grid.rows(16, kChunks);
      for (int step = 0; step < 3; ++step) {
        expected_optimizer.zero_grad();
        optimizer.zero_grad(step == 1);
        torch::manual_seed(step);
        expected->step(sample.inputs(16), sample.targets(16), sample.loss);
        torch::manual_seed(step);
        pipe->step(rows_of(sample.inputs(16), here), rows_of(sample.targets(16), here),
                   sample.loss);
        expected_optimizer.step();
        optimizer.step();
      }
      say(pipe->parameter_hash() == expected->parameter_hash() ? "same" : "other parameters");
      say(std::to_string(optimizer.local().state().size()) + " of " +
          std::to_string(pipe->local_parameters().size()));
    }
  });
  const auto states = [](const std::vector<std::string>& lines) {
    int64_t sum = 0;
    for (const std::string& line : lines) sum += std::stoll(line);
    return sum;
  };
  EXPECT_THAT(ranks.lines(), Each("same"));
  const std::vector<std::string> of_four = ranks.lines();
  EXPECT_THAT(ranks.lines(), Each("same"));
  const std::vector<std::string> of_two = ranks.lines();
  const auto count = static_cast<int64_t>(sample_models().front().make()->parameters().size());
  EXPECT_EQ(states(of_four), count);
  EXPECT_EQ(states(of_two), count);
  ranks.expect_ends();
}

nn::Sequential linears() {
  torch::manual_seed(1);
  return nn::Sequential(nn::Linear(5, 6), nn::Dropout(0.3), nn::Linear(6, 3));
}

torch::Tensor loss_fn(torch::Tensor output, torch::Tensor target) {
  return torch::mse_loss(output, target);
}

GPipeOptions options_of(const World& world) {
  return GPipeOptions({3}).chunks(4).cpu_threads_per_stage(1).world(world);
}

// The outcomes of a call of all processes, by rank. After the call the processes must be able to go
// on together.
std::vector<std::string> outcomes(int64_t processes,
                                  const std::function<std::string(const World&)>& call) {
  WorldRanks ranks(processes, [&](const World& world, const Say& say) {
    say(outcome([&] { return call(world.grid(processes, 1)); }));
    // The processes can go on: a step with a new pipeline works.
    GPipe pipe(linears(), options_of(world.grid(processes, 1)));
    pipe->step({torch::ones({2, 5})}, {torch::ones({2, 3})}, loss_fn);
    say(pipe->parameter_hash());
  });
  std::vector<std::string> lines = ranks.lines();
  EXPECT_THAT(ranks.lines(), Each(::testing::SizeIs(16)));
  ranks.expect_ends();
  return lines;
}

// World::local_rank() is the launcher's LOCAL_RANK, whatever the rank and the place in the grid
// are.
TEST(WorldReplicas, TheLocalRankIsTheLaunchers) {
  const MasterPort port;
  RankProcesses ranks(2, [&](int64_t rank, const Say& say) {
    WorldRanks::become(rank, 2, port.number());
    setenv("LOCAL_RANK", std::to_string(1 - rank).c_str(), /*overwrite=*/1);
    const World world = World::from_environment(WorldRanks::quick());
    say(std::to_string(world.local_rank()) + ", " + std::to_string(world.grid(2, 1).local_rank()));
  });
  EXPECT_EQ(ranks.next(0), "1, 1");
  EXPECT_EQ(ranks.next(1), "0, 0");
  for (int64_t rank = 0; rank < 2; ++rank) EXPECT_TRUE(ranks.ends(rank));
}

// Processes that lay the same world out in different grids are told so, and can go on.
TEST(WorldReplicas, OtherGridsAreNamed) {
  for (const int64_t size : {2, 4}) {
    WorldRanks ranks(size, [size](const World& world, const Say& say) {
      const World pairs = world.grid(size / 2, 2);
      const auto made = [](const World& grid) {
        return outcome([&] {
          GPipe pipe(linears(),
                     GPipeOptions({2, 1}).chunks(4).cpu_threads_per_stage(1).world(grid));
          return std::string("made");
        });
      };
      say(made(world.rank() == 1 ? world.grid(size, 1) : pairs));
      say(made(pairs));
    });
    for (const std::string& line : ranks.lines()) {
      EXPECT_THAT(line, HasSubstr("World::grid")) << size;
    }
    EXPECT_THAT(ranks.lines(), Each("made")) << size;
    ranks.expect_ends();
  }
}

TEST(WorldReplicas, RowsOfOthersAreRefused) {
  const auto lines = outcomes(2, [](const World& world) {
    GPipe pipe(linears(), options_of(world));
    const int64_t rows = world.rank() == 0 ? 3 : 5;  // 8 in total
    pipe->step({torch::ones({rows, 5})}, {torch::ones({rows, 3})}, loss_fn);
    return "nothing was thrown";
  });
  EXPECT_THAT(lines,
              Each(AllOf(HasSubstr("value error"), HasSubstr("replica 0 (rank 0)"),
                         HasSubstr("3 rows"), HasSubstr("rows 0 to 4"), HasSubstr("World::rows"))));
}

TEST(WorldReplicas, EachTypeOfNormIsThatOfOneProcess) {
  const auto lines = outcomes(2, [](const World& world) {
    GPipe alone(linears(), GPipeOptions(options_of(world)).groups(2).world(World()));
    GPipe pipe(linears(), options_of(world));
    const RowRange here = world.rows(8, 4);
    for (const double type : {0.0, 0.5, 1.0, 2.0, std::numeric_limits<double>::infinity()}) {
      for (GPipe* const each : {&alone, &pipe}) {
        (*each)->zero_grad();
        torch::manual_seed(7);
        const int64_t rows = each == &alone ? 8 : here.size();
        (*each)->step({torch::ones({rows, 5})}, {torch::ones({rows, 3})}, loss_fn);
      }
      if (alone->clip_grad_norm_(1, type) != pipe->clip_grad_norm_(1, type)) {
        return "the norm of type " + std::to_string(type);
      }
      for (size_t k = 0; k < pipe->parameters().size(); ++k) {
        const std::string differs =
            bitwise_difference(alone->parameters()[k].grad(), pipe->parameters()[k].grad());
        if (!differs.empty()) return "gradient " + std::to_string(k) + ": " + differs;
      }
    }
    return std::string("the same");
  });
  EXPECT_THAT(lines, Each("the same"));
}

TEST(WorldReplicas, OtherParametersAreRefused) {
  const auto lines = outcomes(2, [](const World& world) {
    torch::manual_seed(world.rank());
    const nn::Sequential module(nn::Linear(5, 6), nn::Linear(6, 3));
    GPipe pipe(module, GPipeOptions({2}).chunks(4).world(world));
    return "nothing was thrown";
  });
  EXPECT_THAT(lines, Each(AllOf(HasSubstr("value error"), HasSubstr("'0.weight'"),
                                HasSubstr("rank 1"), HasSubstr("torch::manual_seed"))));
}

TEST(WorldReplicas, ReplicasThatCameApartAreFoundByTheHash) {
  const auto lines = outcomes(2, [](const World& world) {
    GPipe pipe(linears(), options_of(world));
    pipe->step({torch::ones({2, 5})}, {torch::ones({2, 3})}, loss_fn);
    torch::optim::Adam optimizer(pipe->parameters(), world.rank() == 0 ? 0.1 : 0.2);
    optimizer.step();
    return pipe->parameter_hash();
  });
  EXPECT_THAT(lines, Each(AllOf(HasSubstr("value error"), HasSubstr("'0.weight'"),
                                HasSubstr("different models"))));
}

TEST(WorldReplicas, WhatCannotBeAddedUpIsRefused) {
  const auto running = outcomes(2, [](const World& world) {
    const nn::Sequential module(nn::Linear(5, 6), nn::BatchNorm1d(6), nn::Linear(6, 3));
    torch::NoGradGuard no_grad;
    for (torch::Tensor& parameter : module->parameters()) parameter.fill_(0.5);
    torch::AutoGradMode grad(true);
    GPipe pipe(module, options_of(world));
    pipe->step({torch::ones({2, 5})}, {torch::ones({2, 3})}, loss_fn);
    return "nothing was thrown";
  });
  EXPECT_THAT(running,
              ::testing::Contains(AllOf(HasSubstr("value error"), HasSubstr("layer 1 ('1')"),
                                        HasSubstr("running statistics"))));
  const auto of_the_loss = outcomes(2, [](const World& world) {
    GPipe pipe(linears(), options_of(world));
    const torch::Tensor scale = torch::ones({}, torch::requires_grad());
    pipe->step({torch::ones({2, 5})}, {torch::ones({2, 3})},
               [&](torch::Tensor output, torch::Tensor target) {
                 return loss_fn(std::move(output), std::move(target)) * scale;
               });
    return "nothing was thrown";
  });
  EXPECT_THAT(of_the_loss, ::testing::Contains(HasSubstr("no layer has registered")));
  const auto sparse = outcomes(2, [](const World& world) {
    torch::manual_seed(1);
    GPipe pipe(nn::Sequential(nn::Embedding(nn::EmbeddingOptions(4, 3).sparse(true)),
                              nn::Identity(), nn::Identity()),
               options_of(world));
    pipe->step({torch::zeros({2}, torch::kLong)}, {torch::ones({2, 3})}, loss_fn);
    return "nothing was thrown";
  });
  EXPECT_THAT(sparse, Each(AllOf(HasSubstr("the gradient of '0.weight', of layout Sparse"),
                                 HasSubstr("without sparse(true)"))));
  const auto weighted = outcomes(2, [](const World& world) {
    torch::manual_seed(1);
    GPipe pipe(linears(), options_of(world));
    StepOptions options;
    if (world.rank() == 1) options.weight([](const Tensors&) { return 2.0; });
    return c10::str(
        "loss ", pipe->step({torch::ones({2, 5})}, {torch::ones({2, 3})}, loss_fn, options).loss);
  });
  EXPECT_THAT(weighted, Each(AllOf(HasSubstr("value error"), HasSubstr("StepOptions::weight"),
                                   HasSubstr("not given on rank 0, and given on rank 1"))));
  const auto wrong_groups = outcomes(2, [](const World& world) {
    GPipe pipe(linears(), options_of(world).chunks(12).groups(6));
    return "nothing was thrown";
  });
  EXPECT_THAT(wrong_groups, Each(HasSubstr("groups(6) must be 1, 2, 4, 8")));
}

// Makes a step in two replicas, and the same step in one process with two groups. Returns the sums
// of the gradients and buffers of each replica, and then those of the one process.
std::vector<std::string> sums_of(const std::function<nn::Sequential()>& make,
                                 const std::string& schedule = "1f1b") {
  WorldRanks ranks(2, [&](const World& world, const Say& say) {
    const auto text = [&](const World& over) {
      const nn::Sequential module = make();
      GPipe pipe(module, GPipeOptions({static_cast<int64_t>(module->size())})
                             .chunks(4)
                             .groups(2)
                             .deferred_batch_norm(true)
                             .cpu_threads_per_stage(1)
                             .world(over));
      torch::manual_seed(3);
      const RowRange here = over.rows(8, 4);
      const torch::Tensor x = torch::linspace(-1, 1, 40).view({8, 5});
      const torch::Tensor y = torch::linspace(0, 1, 24).view({8, 3});
      pipe->step({x.slice(0, here.begin, here.end)}, {y.slice(0, here.begin, here.end)}, loss_fn,
                 StepOptions().schedule(schedule_by_name(schedule)));
      std::string text;
      for (const torch::Tensor& parameter : pipe->parameters()) {
        text +=
            c10::str(parameter.grad().defined() ? parameter.grad().sum().item<double>() : 0, " ");
      }
      for (const torch::Tensor& buffer : pipe->buffers()) {
        text += c10::str(buffer.sum().item<double>(), " ");
      }
      return text;
    };
    say(outcome([&] { return text(world.grid(2, 1)); }));
    say(outcome([&] { return text(World()); }));
  });
  std::vector<std::string> lines = ranks.lines();
  lines.push_back(ranks.lines()[0]);
  ranks.expect_ends();
  return lines;
}

// Returns the module with all parameters set to 1/4.
nn::Sequential filled(nn::Sequential module) {
  torch::NoGradGuard no_grad;
  for (torch::Tensor& parameter : module->parameters()) parameter.fill_(0.25);
  return module;
}

void expect_same_sums(const std::function<nn::Sequential()>& make) {
  const auto lines = sums_of(make);
  EXPECT_THAT(lines, Each(lines[2]));
  EXPECT_THAT(lines[2], ::testing::MatchesRegex("[-+0-9.e ]+")) << "not sums";
}

// A layer whose backward runs a backward of its own, as a user's own checkpointing does.
struct ReentrantImpl : nn::Module {
  ReentrantImpl() { weight = register_parameter("weight", torch::full({5, 5}, 0.25)); }
  torch::Tensor forward(torch::Tensor x) { return testing::OwnBackward::apply(x, weight); }
  torch::Tensor weight;
};

TEST(WorldReplicas, UsersCodeMayRunABackwardOfItsOwn) {
  expect_same_sums([] {
    nn::Sequential module;
    module->push_back(nn::Linear(5, 5));
    module->push_back(std::make_shared<ReentrantImpl>());
    module->push_back(nn::Linear(5, 3));
    return filled(std::move(module));
  });
}

// A layer like stochastic depth: each micro-batch goes through one of two norms.
struct OneOfTwoImpl : nn::Module {
  OneOfTwoImpl() {
    a = register_module("a", nn::BatchNorm1d(5));
    b = register_module("b", nn::BatchNorm1d(5));
    register_buffer("expanded", torch::ones({1}).expand({4}));
  }
  torch::Tensor forward(torch::Tensor x) {
    return x[0][0].item<float>() < 0 ? a->forward(x) : b->forward(x);
  }
  nn::BatchNorm1d a = nullptr, b = nullptr;
};

TEST(WorldReplicas, NormsThatOnlySomeMicroBatchesCallHaveTheirOwnStatistics) {
  expect_same_sums([] {
    nn::Sequential module;
    module->push_back(std::make_shared<OneOfTwoImpl>());
    module->push_back(nn::Linear(5, 3));
    return filled(std::move(module));
  });
}

TEST(WorldReplicas, AReplicaWithoutRowsGivesNoOutputs) {
  const auto lines = outcomes(2, [](const World& world) {
    GPipe pipe(linears(), options_of(world));
    const torch::NoGradGuard no_grad;
    const RowRange here = world.rows(2, 4);
    const torch::Tensor output = pipe->forward(torch::ones({2, 5}).slice(0, here.begin, here.end));
    return output.defined() ? c10::str(output.sizes()) : std::string("none");
  });
  EXPECT_THAT(lines, ::testing::ElementsAre("[2, 3]", "none"));
}

TEST(WorldReplicas, OtherBuffersAndValuesOfMaterializeAreRefused) {
  const auto buffers = outcomes(2, [](const World& world) {
    nn::Sequential module = linears();
    module->ptr(0)->register_buffer("features", torch::full({3}, static_cast<float>(world.rank())));
    GPipe pipe(module, options_of(world));
    return "nothing was thrown";
  });
  EXPECT_THAT(buffers, Each(AllOf(HasSubstr("value error"), HasSubstr("buffer 0.features"))));
  const auto values = outcomes(2, [](const World& world) {
    nn::Sequential module = [] {
      const MetaScope meta;
      return linears();
    }();
    GPipe pipe(module, options_of(world));
    torch::manual_seed(world.rank());
    pipe->materialize([](const std::string&, torch::Tensor& tensor, torch::Generator) {
      // Mistake: draws from another generator than the given one.
      tensor.copy_(torch::randn(tensor.sizes()));
    });
    return "nothing was thrown";
  });
  EXPECT_THAT(values, Each(AllOf(HasSubstr("value error"), HasSubstr("'0.weight'"))));
}

TEST(WorldReplicas, WhatEachReplicaWouldHaveAloneIsRefused) {
  const auto evaluated = outcomes(2, [](const World& world) {
    torch::manual_seed(1);
    GPipe pipe(nn::Sequential(nn::Linear(5, 6), nn::BatchNorm1d(6), nn::Linear(6, 3)),
               options_of(world));
    pipe->evaluate({torch::ones({2, 5})}, {torch::ones({2, 3})}, loss_fn);
    return "nothing was thrown";
  });
  EXPECT_THAT(evaluated, ::testing::Contains(HasSubstr("running statistics")));
  const auto computed = outcomes(2, [](const World& world) {
    GPipe pipe(linears(), options_of(world));
    const torch::Tensor scale = torch::ones({}, torch::requires_grad());
    pipe->step({torch::ones({2, 5}) * scale}, {torch::ones({2, 3})}, loss_fn);
    return "nothing was thrown";
  });
  EXPECT_THAT(computed, ::testing::Contains(HasSubstr("input 0 was computed from")));
}

struct LazyImpl : nn::Module {
  torch::Tensor forward(torch::Tensor x) {
    if (!weight.defined()) weight = register_parameter("weight", torch::ones({5, 5}));
    return x.matmul(weight);
  }
  torch::Tensor weight;
};

TEST(WorldReplicas, AParameterThatOnlyOneReplicaHasIsRefused) {
  const auto lines = outcomes(2, [](const World& world) {
    nn::Sequential module;
    module->push_back(std::make_shared<LazyImpl>());
    torch::manual_seed(1);
    module->push_back(nn::Linear(5, 6));
    GPipe pipe(module, GPipeOptions({2}).chunks(4).cpu_threads_per_stage(1).world(world));
    const RowRange here = world.rows(2, 4);  // the second replica gets no rows
    pipe->step({torch::ones({here.size(), 5})}, {torch::ones({here.size(), 6})}, loss_fn);
    return "nothing was thrown";
  });
  EXPECT_THAT(lines,
              Each(AllOf(HasSubstr("value error"), HasSubstr("the parameters of the replicas"),
                         HasSubstr("first forward"))));
  // The processes of the other stage must throw, too, although their replicas have already added up
  // their gradients.
  const auto of_two_stages = outcomes(4, [](const World& world) {
    const World grid = world.grid(2, 2);
    nn::Sequential module;
    module->push_back(std::make_shared<LazyImpl>());
    torch::manual_seed(1);
    module->push_back(nn::Linear(5, 6));
    GPipe pipe(module, GPipeOptions({1, 1}).chunks(4).cpu_threads_per_stage(1).world(grid));
    const RowRange here = grid.rows(2, 4);  // the second replica gets no rows
    pipe->step({torch::ones({here.size(), 5})}, {torch::ones({here.size(), 6})}, loss_fn);
    return "nothing was thrown";
  });
  EXPECT_THAT(of_two_stages,
              Each(AllOf(HasSubstr("value error"), HasSubstr("the parameters of the replicas"))));
}

struct DrawnLateImpl : nn::Module {
  torch::Tensor forward(torch::Tensor x) {
    if (!weight.defined()) weight = register_parameter("weight", torch::rand({5, 5}));
    return x.matmul(weight);
  }
  torch::Tensor weight;
};

// A parameter that a forward draws is refused: each replica draws its own random numbers, so the
// replicas would train different models.
TEST(WorldReplicas, AParameterThatReplicasDrawInAForwardIsRefused) {
  const auto lines = outcomes(2, [](const World& world) {
    torch::manual_seed(1);
    nn::Sequential module;
    module->push_back(nn::Linear(5, 5));
    module->push_back(std::make_shared<DrawnLateImpl>());
    GPipe pipe(module, GPipeOptions({2}).chunks(4).cpu_threads_per_stage(1).world(world));
    pipe->step({torch::ones({2, 5})}, {torch::ones({2, 5})}, loss_fn);
    return "nothing was thrown";
  });
  EXPECT_THAT(lines, Each(AllOf(HasSubstr("value error"), HasSubstr("'1.weight' in a forward"),
                                HasSubstr("other values on rank 1 than on rank 0"))));
}

// Freezes the weights of the first layer in one replica. In the other one it freezes those of the
// last layer (`swapped`: as many, of the same shapes) or none.
void freeze_otherwise(const GPipe& pipe, int64_t replica, bool swapped) {
  for (torch::Tensor& parameter : (*pipe)[replica == 0 ? 0 : 1]->parameters()) {
    if (replica == 0 || swapped) parameter.set_requires_grad(false);
  }
}

GPipe twins(const World& world) {
  torch::manual_seed(1);
  return GPipe(nn::Sequential(nn::Linear(5, 5), nn::Linear(5, 5)),
               GPipeOptions({2}).chunks(4).cpu_threads_per_stage(1).world(world));
}

// If replicas froze different parameters, the gradient of one parameter would be added to that of
// another one. So step() and ZeroOptimizer::step() refuse that.
TEST(WorldReplicas, WhatIsNotFrozenInAllReplicasIsRefused) {
  for (const bool swapped : {false, true}) {
    SCOPED_TRACE(swapped);
    const auto steps = outcomes(2, [&](const World& world) {
      GPipe pipe = twins(world);
      freeze_otherwise(pipe, world.replica(), swapped);
      std::string text = outcome([&] {
        pipe->step({torch::ones({2, 5})}, {torch::ones({2, 5})}, loss_fn);
        return "nothing was thrown";
      });
      for (const torch::Tensor& parameter : pipe->parameters()) {
        if (parameter.grad().defined()) text += ", and there is a gradient";
      }
      return text;
    });
    EXPECT_THAT(steps, Each(AllOf(HasSubstr("value error"), HasSubstr("the parameters of the rep"),
                                  HasSubstr("frozen (requires_grad)"),
                                  ::testing::Not(HasSubstr("there is a gradient")))));
    const auto optimizers = outcomes(2, [&](const World& world) {
      GPipe pipe = twins(world);
      ZeroOptimizer optimizer(pipe, [](std::vector<torch::Tensor> parameters) {
        return std::make_unique<torch::optim::SGD>(std::move(parameters), 0.1);
      });
      pipe->step({torch::ones({2, 5})}, {torch::ones({2, 5})}, loss_fn);
      const std::string before = pipe->parameter_hash();
      freeze_otherwise(pipe, world.replica(), swapped);
      const std::string text = outcome([&] {
        optimizer.step();
        return "nothing was thrown";
      });
      return text + (pipe->parameter_hash() == before ? "" : ", and values have changed");
    });
    EXPECT_THAT(optimizers,
                Each(AllOf(HasSubstr("value error"), HasSubstr("frozen (requires_grad)"),
                           ::testing::Not(HasSubstr("values have changed")))));
  }
}

// Only a small part of the parameters trains, as with adapters beside a frozen base. The states
// must be shared out by the bytes that train. If all bytes counted, one replica could get all the
// states.
TEST(WorldReplicas, ZeroOptimizerSharesOutWhatTrains) {
  const auto shares = outcomes(2, [](const World& world) {
    torch::manual_seed(1);
    GPipe pipe(
        nn::Sequential(nn::Linear(40, 40), nn::Linear(40, 4), nn::Linear(4, 4), nn::Linear(4, 4)),
        GPipeOptions({4}).chunks(4).cpu_threads_per_stage(1).world(world));
    for (torch::Tensor& parameter : (*pipe)[0]->parameters()) parameter.set_requires_grad(false);
    ZeroOptimizer optimizer(pipe, [](std::vector<torch::Tensor> parameters) {
      return std::make_unique<torch::optim::Adam>(std::move(parameters), 0.1);
    });
    const RowRange here = world.rows(8, 4);
    pipe->step({torch::ones({here.size(), 40})}, {torch::ones({here.size(), 4})}, loss_fn);
    optimizer.step();
    return std::to_string(optimizer.local().state().size());
  });
  // One replica has the states of the matrix of 160 numbers. The other has those of the two
  // matrices of 16 numbers and of the three biases of 4.
  EXPECT_THAT(shares, ::testing::UnorderedElementsAre("1", "5"));
}

TEST(WorldReplicas, WhatIsFrozenBeforeInOneReplicaAloneIsRefusedByZeroOptimizer) {
  const auto lines = outcomes(2, [](const World& world) {
    GPipe pipe = twins(world);
    freeze_otherwise(pipe, world.replica(), /*swapped=*/false);
    ZeroOptimizer optimizer(pipe, [](std::vector<torch::Tensor> parameters) {
      return std::make_unique<torch::optim::SGD>(std::move(parameters), 0.1);
    });
    for (torch::Tensor& parameter : pipe->parameters()) parameter.set_requires_grad(true);
    pipe->step({torch::ones({2, 5})}, {torch::ones({2, 5})}, loss_fn);
    return outcome([&] {
      optimizer.step();
      return "nothing was thrown";
    });
  });
  EXPECT_THAT(lines, Each(AllOf(HasSubstr("value error"), HasSubstr("shared out by"))));
}

TEST(WorldReplicas, WhatIsFrozenInAllReplicasMayChangeFromStepToStep) {
  const auto lines = outcomes(2, [](const World& world) {
    const auto hash = [](const World& over) {
      torch::manual_seed(1);
      GPipe pipe(nn::Sequential(nn::Linear(5, 7), nn::Linear(7, 7), nn::Linear(7, 3)),
                 GPipeOptions({3}).chunks(4).groups(2).cpu_threads_per_stage(1).world(over));
      ZeroOptimizer optimizer(pipe, [](std::vector<torch::Tensor> parameters) {
        return std::make_unique<torch::optim::Adam>(std::move(parameters), 0.1);
      });
      const RowRange here = over.rows(8, 4);
      for (int64_t step = 0; step < 4; ++step) {
        for (int64_t layer = 0; layer < 3; ++layer) {
          for (torch::Tensor& parameter : (*pipe)[layer]->parameters()) {
            parameter.set_requires_grad(layer != step);
          }
        }
        if (step != 2) optimizer.zero_grad();
        pipe->step({torch::ones({here.size(), 5})}, {torch::ones({here.size(), 3})}, loss_fn);
        optimizer.step();
      }
      return pipe->parameter_hash();
    };
    return hash(world) == hash(World()) ? "same" : "other values";
  });
  EXPECT_THAT(lines, Each("same"));
}

TEST(WorldReplicas, AfterAnOptimizerThatThrewOnOneOfThemTheNextStepComparesParameters) {
  struct Throwing : torch::optim::SGD {
    Throwing(std::vector<at::Tensor> parameters, bool& throws)
        : SGD(std::move(parameters), torch::optim::SGDOptions(0.1)), throws(throws) {}
    torch::Tensor step(LossClosure closure) override {
      if (std::exchange(throws, false)) throw std::runtime_error("no room");
      return SGD::step(std::move(closure));
    }
    bool& throws;
  };
  const auto lines = outcomes(2, [](const World& world) {
    torch::manual_seed(1);
    GPipe pipe(nn::Sequential(nn::Linear(5, 7), nn::Linear(7, 3)),
               GPipeOptions({2}).chunks(2).cpu_threads_per_stage(1).world(world));
    // The buffers of the replicas differ here, which is allowed.
    (*pipe)[0]->register_buffer("own", torch::full({1}, static_cast<double>(world.replica())));
    bool throws = world.replica() == 0;
    ZeroOptimizer optimizer(pipe, [&](std::vector<torch::Tensor> parameters) {
      return std::make_unique<Throwing>(std::move(parameters), throws);
    });
    const auto step = [&] {
      return outcome([&] {
        pipe->step({torch::ones({2, 5})}, {torch::ones({2, 3})}, loss_fn);
        optimizer.step();
        return "went well";
      });
    };
    std::string all;
    for (int k = 0; k < 3; ++k) all += step() + "; ";
    all += outcome([&] {
             optimizer.step();  // again: shares would be updated different numbers of times
             return "went well";
           }) +
           "; ";
    {
      const torch::NoGradGuard no_grad;  // as in load_checkpoint
      for (torch::Tensor& parameter : pipe->parameters()) parameter.fill_(0.5);
    }
    return all + step();
  });
  const auto refused = HasSubstr("has other values on rank 1 than on rank 0");
  EXPECT_THAT(lines, Each(AllOf(HasSubstr("no room"), refused, ::testing::EndsWith("; went well"),
                                ::testing::Not(HasSubstr("; went well; ")))));
}

// A training loop that uses only the interface of torch::optim::Optimizer.
void train(GPipe& pipe, torch::optim::Optimizer& optimizer, const RowRange& here) {
  torch::optim::StepLR scheduler(optimizer, /*step_size=*/2, /*gamma=*/0.5);
  for (int step = 0; step < 5; ++step) {
    optimizer.zero_grad();
    torch::manual_seed(step);
    pipe->step({torch::ones({8, 5}).slice(0, here.begin, here.end)},
               {torch::ones({8, 3}).slice(0, here.begin, here.end)}, loss_fn);
    if (step == 3) {
      for (auto& group : optimizer.param_groups()) {
        static_cast<torch::optim::AdamOptions&>(group.options()).lr(0.7).weight_decay(0.1);
      }
    }
    optimizer.step();
    scheduler.step();
  }
}

TEST(WorldReplicas, ALearningRateOfAShardedOptimizersLocalOneCounts) {
  const auto make = [](std::vector<torch::Tensor> parameters) {
    return std::make_unique<torch::optim::SGD>(std::move(parameters), 0.1);
  };
  const auto input = torch::ones({8, 5});
  const auto step = [&](GPipe& pipe, torch::optim::Optimizer& optimizer) {
    optimizer.zero_grad();
    torch::manual_seed(7);
    pipe->step({input}, {torch::ones({8, 3})}, loss_fn);
    optimizer.step();
  };
  GPipe plain_pipe(linears(), options_of(World()));
  const auto plain = make(plain_pipe->parameters());
  GPipe pipe(linears(), options_of(World()));
  ZeroOptimizer optimizer(pipe, make);
  for (const double rate : {0.1, 0.4, 0.2}) {
    plain->param_groups()[0].options().set_lr(rate);
    optimizer.local().param_groups()[0].options().set_lr(rate);
    step(plain_pipe, *plain);
    step(pipe, optimizer);
    EXPECT_EQ(optimizer.param_groups()[0].options().get_lr(), rate);
    EXPECT_EQ(pipe->parameter_hash(), plain_pipe->parameter_hash());
  }
  plain->param_groups()[0].options().set_lr(0.05);
  optimizer.param_groups()[0].options().set_lr(0.05);
  step(plain_pipe, *plain);
  step(pipe, optimizer);
  EXPECT_EQ(pipe->parameter_hash(), plain_pipe->parameter_hash());
}

TEST(WorldReplicas, AShardedOptimizerIsOneForSchedulersAndLoops) {
  const auto lines = outcomes(2, [](const World& world) {
    GPipe alone(linears(), options_of(World()).groups(2));
    torch::optim::Adam adam(alone->parameters(), 0.1);
    train(alone, adam, {0, 8});
    GPipe pipe(linears(), options_of(world));
    ZeroOptimizer optimizer(pipe, [](std::vector<torch::Tensor> parameters) {
      return std::make_unique<torch::optim::Adam>(std::move(parameters), 0.1);
    });
    train(pipe, optimizer, world.rows(8, 4));
    const double rate = optimizer.param_groups()[0].options().get_lr();
    if (rate != adam.param_groups()[0].options().get_lr()) return "the rate " + c10::str(rate);
    if (optimizer.local().param_groups()[0].options().get_lr() != 0.7) return std::string("local");
    return std::string(pipe->parameter_hash() == alone->parameter_hash() ? "same" : "other values");
  });
  EXPECT_THAT(lines, Each("same"));
}

TEST(WorldReplicas, OtherLearningRatesAreRefusedBeforeAnythingChanges) {
  const auto lines = outcomes(2, [](const World& world) {
    GPipe pipe(linears(), options_of(world));
    ZeroOptimizer optimizer(pipe, [](std::vector<torch::Tensor> parameters) {
      return std::make_unique<torch::optim::Adam>(std::move(parameters), 0.1);
    });
    pipe->step({torch::ones({2, 5})}, {torch::ones({2, 3})}, loss_fn);
    const std::string before = pipe->parameter_hash();
    const auto rate = [&](double value) {
      optimizer.param_groups()[0].options().set_lr(value);
      return outcome([&] {
        optimizer.step();
        return "went well";
      });
    };
    // Even the next larger double counts as another learning rate.
    std::string all = rate(world.rank() == 1 ? std::nextafter(0.2, 1) : 0.2);
    all += pipe->parameter_hash() == before ? "; unchanged" : "; changed";
    return all + "; " + rate(0.2);
  });
  EXPECT_THAT(lines, Each(AllOf(HasSubstr("value error"), HasSubstr("learning rates"),
                                HasSubstr("on rank 0 and"), HasSubstr("on rank 1"),
                                ::testing::EndsWith("; unchanged; went well"))));
}

// Replicas may make their groups differently, e.g. by the layers that they own, and so have
// different rates from the beginning. Such rates are not compared.
TEST(WorldReplicas, RatesOfGroupsThatWereMadeDifferentlyAreNotCompared) {
  const auto lines = outcomes(2, [](const World& world) {
    GPipe pipe(linears(), options_of(world));
    ZeroOptimizer optimizer(pipe, [&](std::vector<torch::Tensor> parameters) {
      return std::make_unique<torch::optim::SGD>(std::move(parameters),
                                                 world.rank() == 0 ? 0.1 : 0.2);
    });
    pipe->step({torch::ones({2, 5})}, {torch::ones({2, 3})}, loss_fn);
    optimizer.param_groups()[0].options().set_lr(world.rank() == 0 ? 0.05 : 0.1);
    optimizer.step();
    return "went well";
  });
  EXPECT_THAT(lines, Each("went well"));
}

TEST(WorldReplicas, WhatAShardedOptimizerCannotDoIsRefused) {
  GPipe pipe(linears(), options_of(World()));
  const auto sgd = [](std::vector<torch::Tensor> parameters) {
    return std::make_unique<torch::optim::SGD>(std::move(parameters), 0.1);
  };
  const auto message = [](const auto& call) {
    try {
      call();
    } catch (const c10::ValueError& error) {
      return std::string(error.what_without_backtrace());
    }
    return std::string("nothing was thrown");
  };
  ZeroOptimizer optimizer(pipe, sgd);
  EXPECT_THAT(message([&] { optimizer.step([] { return torch::ones({}); }); }),
              HasSubstr("takes no closure"));
  optimizer.add_param_group(torch::optim::OptimizerParamGroup(
      {torch::ones({3})}, std::make_unique<torch::optim::SGDOptions>(0.1)));
  EXPECT_THAT(message([&] { optimizer.step(); }),
              HasSubstr("2 groups of 5 parameters, not 1 of 4; the function"));
  EXPECT_THAT(message([&] {
                ZeroOptimizer(pipe, [&](std::vector<torch::Tensor> parameters) {
                  auto made = sgd(std::move(parameters));
                  made->param_groups().clear();
                  return made;
                });
              }),
              HasSubstr("without groups"));
}

// ZeroOptimizer::step() is a call of all processes. If ranks step different optimizers, or if one
// rank evaluates instead, all ranks throw.
TEST(WorldReplicas, AShardedOptimizersStepIsACallOfAll) {
  const auto sgd = [](std::vector<torch::Tensor> parameters) {
    return std::make_unique<torch::optim::SGD>(std::move(parameters), 0.1);
  };
  const auto swapped = outcomes(2, [&](const World& world) {
    GPipe a(linears(), options_of(world)), b(linears(), options_of(world));
    ZeroOptimizer of_a(a, sgd), of_b(b, sgd);
    (world.rank() == 0 ? of_a : of_b).step();
    return "nothing was thrown";
  });
  EXPECT_THAT(swapped, Each(AllOf(HasSubstr("ZeroOptimizer::step of pipeline 0"),
                                  HasSubstr("ZeroOptimizer::step of pipeline 1"))));
  const auto skipped = outcomes(2, [&](const World& world) {
    GPipe pipe(linears(), options_of(world));
    ZeroOptimizer optimizer(pipe, sgd);
    if (world.rank() == 0) {
      optimizer.step();
    } else {
      pipe->evaluate({torch::ones({2, 5})}, {torch::ones({2, 3})}, loss_fn);
    }
    return "nothing was thrown";
  });
  EXPECT_THAT(skipped, Each(HasSubstr("ZeroOptimizer::step")));
}

TEST(WorldReplicas, AShardedOptimizerKeepsItsSharesWhenTypesChange) {
  const auto lines = outcomes(2, [](const World& world) {
    const auto hash = [](const World& over) {
      torch::manual_seed(1);
      GPipe pipe(nn::Sequential(nn::Linear(5, 7), nn::Linear(7, 6), nn::Linear(6, 3)),
                 GPipeOptions({3}).chunks(4).groups(2).cpu_threads_per_stage(1).world(over));
      ZeroOptimizer optimizer(pipe, [](std::vector<torch::Tensor> parameters) {
        return std::make_unique<torch::optim::SGD>(std::move(parameters), 0.1);
      });
      pipe->to(torch::kDouble);
      (*pipe)[0]->to(torch::kFloat);
      pipe->to(torch::kDouble);
      (*pipe)[1]->to(torch::kDouble);
      const RowRange here = over.rows(8, 4);
      pipe->step({torch::ones({here.size(), 5}, torch::kDouble)},
                 {torch::ones({here.size(), 3}, torch::kDouble)}, loss_fn);
      optimizer.step();
      return pipe->parameter_hash();
    };
    return hash(world) == hash(World()) ? "same" : "other values";
  });
  EXPECT_THAT(lines, Each("same"));
}

// If a layer of one replica throws, the other replicas must learn where.
TEST(WorldReplicas, AFailureIsEverybodys) {
  const auto lines = outcomes(2, [](const World& world) {
    nn::Sequential module = linears();
    module->push_back(
        testing::layer<torch::Tensor, torch::Tensor>([rank = world.rank()](torch::Tensor value) {
          if (rank == 1) throw std::runtime_error("the weather");
          return value;
        }));
    GPipe pipe(module, GPipeOptions({4}).chunks(4).world(world));
    pipe->step({torch::ones({2, 5})}, {torch::ones({2, 3})}, loss_fn);
    return "nothing was thrown";
  });
  EXPECT_THAT(lines[0],
              AllOf(HasSubstr("failure: "), HasSubstr("rank 1"), HasSubstr("the weather")));
  EXPECT_THAT(lines[1], AllOf(HasSubstr("exception: "), HasSubstr("the weather")));
}

// A number for each of four ranks, in memory that all processes share.
class SharedCounts {
 public:
  SharedCounts()
      : counts_(static_cast<Counts*>(mmap(nullptr, sizeof(Counts), PROT_READ | PROT_WRITE,
                                          MAP_SHARED | MAP_ANONYMOUS, /*fd=*/-1, /*offset=*/0))) {}
  ~SharedCounts() { munmap(counts_, sizeof(Counts)); }
  SharedCounts(const SharedCounts&) = delete;
  SharedCounts& operator=(const SharedCounts&) = delete;

  std::atomic<int64_t>& of(int64_t rank) const { return (*counts_)[static_cast<size_t>(rank)]; }
  // Waits up to 30 s. Returns whether the counts of these ranks have all reached `count`.
  bool reach(const std::vector<int64_t>& ranks, int64_t count) const {
    for (int i = 0; i < 3000; ++i) {
      bool all = true;
      for (const int64_t rank : ranks) all = all && of(rank) >= count;
      if (all) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }

 private:
  using Counts = std::array<std::atomic<int64_t>, 4>;
  Counts* const counts_;  // initially 0
};

// The Processes of a World that also count their exchanges of tensors.
class Counting final : public internal::Processes {
 public:
  Counting(std::shared_ptr<Processes> processes, std::atomic<int64_t>& moves)
      : processes_(std::move(processes)), moves_(moves) {}

  int64_t rank() const override { return processes_->rank(); }
  int64_t size() const override { return processes_->size(); }
  int64_t next_number() override { return processes_->next_number(); }
  void take_number() override { processes_->take_number(); }
  std::unique_ptr<Call> begin_call() override { return processes_->begin_call(); }
  std::vector<std::string> exchange(const std::string& name, const std::string& value,
                                    bool is_patient) override {
    return processes_->exchange(name, value, is_patient);
  }
  void agree(const std::string& name, const std::string& value) override {
    processes_->agree(name, value);
  }
  void move(const std::vector<Parcel>& sends, const std::vector<Parcel>& receives) override {
    processes_->move(sends, receives);
    ++moves_;
  }
  std::unique_ptr<Run> begin_run(const Program& program,
                                 const std::vector<int64_t>& process_of_worker,
                                 std::shared_ptr<Messages>& messages,
                                 std::function<std::string(int64_t)> current_layer,
                                 c10::Device device) override {
    return processes_->begin_run(program, process_of_worker, messages, std::move(current_layer),
                                 device);
  }

 private:
  const std::shared_ptr<Processes> processes_;
  std::atomic<int64_t>& moves_;
};

// Sums over replicas exchange signatures, gradients and sums (sum_over_replicas). Small gradients
// are in one bucket.
constexpr int64_t kMovesOfSums = 3;

// Two replicas of two stages, each stage in its own process. The last backward of stage 0 waits
// until the sums of stage 1 have arrived in both replicas, and until that of the other replica has
// seen this, too. Then it calls `then(rank)`, which so cannot interrupt the other one before.
// Each rank says the outcome of its step and how many of its parameters have a gradient. Ranks of
// stage 0 also say whether the sums came.
//
// `moves`: how many exchanges of tensors each rank has made outside of runs.
WorldRanks::Main last_backward_late(const SharedCounts& moves,
                                    const std::function<void(int64_t rank)>& then) {
  const auto waited = std::make_shared<SharedCounts>();
  return [&moves, waited, then](const World& bare, const Say& say) {
    const World world(std::make_shared<Counting>(bare.processes(), moves.of(bare.rank())),
                      bare.rank(), bare.size());
    torch::manual_seed(1);
    int backwards = 0;
    bool came = false;
    const auto late = [&](const torch::Tensor& gradient) {
      if (++backwards == 2) {  // the last of two micro-batches
        came = moves.reach({1, 3}, kMovesOfSums);
        ++waited->of(bare.rank());
        came = waited->reach({0, 2}, 1) && came;
        then(bare.rank());
      }
      return gradient;
    };
    const nn::Sequential module(nn::Linear(5, 6),
                                testing::layer<torch::Tensor, torch::Tensor>([&](torch::Tensor x) {
                                  torch::Tensor y = x * 2;
                                  if (y.requires_grad()) y.register_hook(late);
                                  return y;
                                }),
                                nn::Linear(6, 3));
    GPipe pipe(module,
               GPipeOptions({2, 1}).chunks(4).cpu_threads_per_stage(1).world(world.grid(2, 2)));
    say(outcome([&] {
      pipe->step({torch::ones({2, 5})}, {torch::ones({2, 3})}, loss_fn);
      return std::string("went well");
    }));
    int with_gradient = 0;
    for (const torch::Tensor& parameter : pipe->local_parameters()) {
      with_gradient += parameter.grad().defined();
    }
    say(std::to_string(with_gradient));
    say(pipe->is_here(0) && !came ? "the sums did not come" : "");
  };
}

// The last stages finish their backwards first. They must add up their gradients while the first
// stages still compute.
TEST(WorldReplicas, StagesThatAreDoneAddUpWhileOthersCompute) {
  const SharedCounts moves;
  WorldRanks ranks(4, last_backward_late(moves, [](int64_t) {}));
  EXPECT_THAT(ranks.lines(), Each("went well"));
  EXPECT_THAT(ranks.lines(), Each("2"));
  EXPECT_THAT(ranks.lines(), Each(""));
  ranks.expect_ends();
}

// A rank throws or dies while others have already added up their gradients. All remaining ranks
// learn of the fault, and no rank keeps gradients, even if it has its sums.
TEST(WorldReplicas, AFaultWhileOthersAddUpIsEverybodysAndLeavesNoGradients) {
  for (const bool is_killed : {false, true}) {
    const SharedCounts moves;
    WorldRanks ranks(4, last_backward_late(moves, [&](int64_t rank) {
                       if (rank != 2) return;
                       if (is_killed) kill(getpid(), SIGKILL);
                       throw std::runtime_error("the weather");
                     }));
    const auto begin = std::chrono::steady_clock::now();
    for (const int64_t rank : {0, 1, 3}) {
      EXPECT_THAT(ranks->next(rank), AllOf(HasSubstr("failure: rank 2"),
                                           HasSubstr(is_killed ? "is gone" : "the weather")));
      EXPECT_EQ(ranks->next(rank), "0");
      EXPECT_EQ(ranks->next(rank), "");
      EXPECT_TRUE(ranks->ends(rank)) << rank;
    }
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(60));
    EXPECT_THAT(ranks->next(2), HasSubstr(is_killed ? "ended" : "exception: the weather"));
  }
}

// One replica is done long before the other one. The limit of a call must not count the time in
// which the other replica computes.
TEST(WorldReplicas, TheLimitOfACallIsNotOneForTheWorkOfAnotherReplica) {
  WorldOptions options = WorldRanks::quick();
  options.call_limit = std::chrono::milliseconds(500);
  WorldRanks ranks(
      2,
      [](const World& world, const Say& say) {
        nn::Sequential module = linears();
        module->push_back(nn::BatchNorm1d(3));
        module->push_back(testing::layer<torch::Tensor, torch::Tensor>(
            [rank = world.rank()](torch::Tensor value) {
              if (rank == 1) std::this_thread::sleep_for(std::chrono::seconds(1));
              return value;
            }));
        GPipe pipe(
            module,
            GPipeOptions({5}).chunks(4).deferred_batch_norm(true).cpu_threads_per_stage(1).world(
                world.grid(2, 1)));
        const std::vector<torch::Tensor> inputs{torch::ones({4, 5})};
        const std::vector<torch::Tensor> targets{torch::ones({4, 3})};
        say(outcome([&] {
          pipe->step(inputs, targets, loss_fn);
          return std::string("went well");
        }));
        say(outcome([&] {
          pipe->evaluate(inputs, targets, loss_fn);
          return std::string("went well");
        }));
      },
      options);
  for (int call = 0; call < 2; ++call) EXPECT_THAT(ranks.lines(), Each("went well"));
  ranks.expect_ends();
}

}  // namespace
}  // namespace gpipe::distributed
