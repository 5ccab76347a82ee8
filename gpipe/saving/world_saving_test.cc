// Tests of checkpoints of several processes: each process writes its part, and any other number of
// processes can read them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/saving/saving.h"
#include "gpipe/testing/processes/world_ranks.h"
#include "gpipe/zero_optimizer.h"

namespace gpipe {
namespace {

using distributed::WorldRanks;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using Say = WorldRanks::Say;

std::string new_path() {
  static int count = 0;
  // Tests append a rank to the path. The letter between the two numbers keeps all paths different.
  return ::testing::TempDir() + "/world" + std::to_string(getpid()) + "-" +
         std::to_string(count++) + "r";
}

torch::nn::Sequential model(int64_t width = 5) {
  torch::manual_seed(1);
  return torch::nn::Sequential(torch::nn::Linear(4, width), torch::nn::BatchNorm1d(width),
                               torch::nn::Dropout(0.5), torch::nn::Linear(width, 3));
}

GPipe pipeline(const World& world, std::vector<int64_t> balance, int64_t width = 5) {
  return {model(width), GPipeOptions(std::move(balance))
                            .cpu_threads_per_stage(1)
                            .chunks(2)
                            .groups(2)
                            .deferred_batch_norm(true)
                            .world(world)};
}

torch::optim::Adam adam(GPipe& pipe, double rate = 0.05) {
  return torch::optim::Adam(pipe->local_parameters(), torch::optim::AdamOptions(rate));
}

ZeroOptimizer zero_adam(GPipe& pipe) {
  return ZeroOptimizer(pipe, [](std::vector<at::Tensor> parameters) {
    return std::make_unique<torch::optim::Adam>(std::move(parameters),
                                                torch::optim::AdamOptions(0.05));
  });
}

template <typename Optimizer>
void train(GPipe& pipe, Optimizer& optimizer, int64_t first, int64_t last) {
  const RowRange here = pipe->world().rows(6, pipe->chunks());
  for (int64_t step = first; step < last; ++step) {
    optimizer.zero_grad();
    const at::Tensor input = at::linspace(-1, 1 + 0.1 * static_cast<double>(step), 24)
                                 .view({6, 4})
                                 .slice(0, here.begin, here.end);
    const at::Tensor target = at::linspace(0, 1, 18).view({6, 3}).slice(0, here.begin, here.end);
    pipe->step({input}, {target}, [](const Tensors& outputs, const Tensors& targets) {
      return torch::nn::functional::mse_loss(outputs[0], targets[0]);
    });
    optimizer.step();
  }
}

// A run of six steps. `reads`: the first three steps are not made, but read from a checkpoint.
// `writes`: the run is saved after three steps.
struct Run {
  std::vector<int64_t> balance;
  bool reads = false;
  bool writes = false;
};
template <typename Optimizer>
std::string run_with(GPipe& pipe, Optimizer& optimizer, const Run& run, const std::string& path) {
  torch::manual_seed(run.reads ? 77 : 7);
  if (run.reads) {
    const Progress progress = load_checkpoint(pipe, optimizer, path);
    if (progress.step != 3 || progress.rows != 18) return "another progress";
  } else {
    train(pipe, optimizer, 0, 3);
  }
  if (run.writes) save_checkpoint(pipe, optimizer, {3, 18, {}}, path);
  train(pipe, optimizer, 3, 6);
  return pipe->parameter_hash();
}

std::string run(const World& world, const Run& run, const std::string& path) {
  GPipe pipe = pipeline(world, run.balance);
  auto optimizer = adam(pipe);
  return run_with(pipe, optimizer, run, path);
}
// Does what run() does, with a ZeroOptimizer, which keeps each state once.
std::string zero_run(const World& world, const Run& run, const std::string& path) {
  GPipe pipe = pipeline(world, run.balance);
  ZeroOptimizer optimizer = zero_adam(pipe);
  return run_with(pipe, optimizer, run, path);
}

std::vector<std::string> names_in(const std::string& path) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(path)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

// The outcome of a call that returns nothing.
std::string outcome(const std::function<void()>& call) {
  return distributed::outcome([&]() -> std::string {
    call();
    return "went well";
  });
}

TEST(WorldCheckpoint, AnyLayoutReadsAnyOther) {
  const std::string of_two = new_path(), of_one = new_path();
  std::string expected;
  {
    WorldRanks ranks(2, [&](const World& world, const Say& say) {
      say(run(world, {{2, 2}, false, true}, of_two));
      // Each process also runs by itself, with its own folder.
      say(run(World(), {{1, 3}, false, true}, of_one + std::to_string(world.rank())));
    });
    const std::vector<std::string> first = ranks.lines();
    expected = first[0];
    EXPECT_EQ(expected.size(), 16);
    EXPECT_THAT(first, ElementsAre(expected, expected));
    EXPECT_THAT(ranks.lines(), ElementsAre(expected, expected));
    ranks.expect_ends();
  }
  EXPECT_THAT(names_in(of_two),
              ElementsAre("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
                          "model.safetensors.index.json", "optimizer-00001-of-00002.safetensors",
                          "optimizer-00002-of-00002.safetensors", "progress.safetensors"));
  {
    // Three processes read a checkpoint of two processes, which they replace, and one of a single
    // process.
    WorldRanks ranks(3, [&](const World& world, const Say& say) {
      say(run(world, {{1, 1, 2}, true, true}, of_two));
      say(run(world, {{2, 1, 1}, true, false}, of_one + "0"));
    });
    EXPECT_THAT(ranks.lines(), ElementsAre(expected, expected, expected));
    EXPECT_THAT(ranks.lines(), ElementsAre(expected, expected, expected));
    ranks.expect_ends();
  }
  EXPECT_EQ(names_in(of_two).size(), 8);
  {
    WorldRanks ranks(2, [&](const World& world, const Say& say) {
      say(run(World(), {{4}, true, world.rank() == 0}, of_two));
    });
    EXPECT_THAT(ranks.lines(), ElementsAre(expected, expected));
    ranks.expect_ends();
  }
  EXPECT_EQ(names_in(of_two).size(), 3);
}

// A layer that divides by an expanded buffer, all of whose elements share one place in memory, and
// changes that element.
struct ExpandingImpl : torch::nn::Module {
  ExpandingImpl() : base(torch::ones({1})), average(register_buffer("average", base.expand({4}))) {}
  torch::Tensor forward(const torch::Tensor& value) {
    {
      const torch::NoGradGuard no_grad;
      base.mul_(0.9).add_(value.detach().abs().mean(), 0.1);
    }
    return value / average;
  }
  torch::Tensor base;
  torch::Tensor average;
};

TEST(WorldCheckpoint, AnExpandedBufferIsTrainedWithAndSavedInAnyLayout) {
  const std::string path = new_path();
  const auto hash_of = [&](const World& world, std::vector<int64_t> balance, bool reads,
                           bool writes) {
    torch::manual_seed(1);
    torch::nn::Sequential layers(torch::nn::Linear(4, 4), std::make_shared<ExpandingImpl>(),
                                 std::make_shared<ExpandingImpl>(), torch::nn::Linear(4, 3));
    GPipe pipe(layers, GPipeOptions(std::move(balance))
                           .cpu_threads_per_stage(1)
                           .chunks(3)
                           .checkpoint(Checkpoint::kAlways)
                           .world(world));
    auto optimizer = adam(pipe);
    if (reads) {
      load_checkpoint(pipe, optimizer, path);
    } else {
      train(pipe, optimizer, 0, 3);
    }
    if (writes) save_checkpoint(pipe, optimizer, {3, 18, {}}, path);
    train(pipe, optimizer, 3, 6);
    return pipe->parameter_hash();
  };
  std::vector<std::string> hashes;
  struct Layout {
    std::vector<int64_t> balance;
    bool reads;
    bool writes;
  };
  for (const Layout& now : std::vector<Layout>{
           {{4}, false, false}, {{2, 2}, false, true}, {{2, 2}, true, false}, {{4}, true, false}}) {
    WorldRanks run(static_cast<int64_t>(now.balance.size()),
                   [&](const World& world, const Say& say) {
                     say(hash_of(world, now.balance, now.reads, now.writes));
                   });
    for (const std::string& line : run.lines()) hashes.push_back(line);
    run.expect_ends();
  }
  EXPECT_THAT(hashes, Each(hashes.front()));
}

TEST(WorldCheckpoint, AnyLayoutReadsTheWeightsAlone) {
  const std::string path = new_path();
  WorldRanks ranks(2, [&](const World& world, const Say& say) {
    GPipe trained = pipeline(world, {2, 2});
    auto optimizer = adam(trained);
    train(trained, optimizer, 0, 2);
    save_checkpoint(trained, optimizer, {2, 12, {}}, path);
    say(trained->parameter_hash());
    GPipe other = pipeline(world, {1, 3});
    say(other->parameter_hash());
    load_weights(other, path);
    say(other->parameter_hash());
    GPipe alone = pipeline(World(), {4});
    load_weights(alone, path);
    say(alone->parameter_hash());
    GPipe wider = pipeline(world, {2, 2}, 6);
    say(outcome([&] { load_weights(wider, path); }));
  });
  const std::string hash = ranks.lines()[0];
  EXPECT_THAT(ranks.lines(), Each(::testing::Ne(hash)));
  EXPECT_THAT(ranks.lines(), Each(hash));
  EXPECT_THAT(ranks.lines(), Each(hash));
  EXPECT_THAT(ranks.lines(), Each(HasSubstr("F32 [5, 4]")));
  ranks.expect_ends();
}

TEST(WorldCheckpoint, ReplicasReadWhatOneHasWrittenAndTheReverse) {
  const std::string of_replicas = new_path(), of_zero = new_path(), of_one = new_path();
  WorldRanks ranks(4, [&](const World& world, const Say& say) {
    const World grid = world.grid(2, 2);
    const std::string own = of_one + std::to_string(world.rank());
    say(run(World(), {{4}, false, true}, own));
    say(run(grid, {{2, 2}, false, true}, of_replicas));
    say(zero_run(grid, {{1, 3}, false, true}, of_zero));
    say(run(grid, {{1, 3}, true, false}, of_one + "0"));
    say(zero_run(grid, {{2, 2}, true, false}, of_one + "0"));
    say(zero_run(world.grid(2, 2), {{2, 2}, true, true}, of_replicas));
    say(run(world.grid(1, 4), {{1, 1, 1, 1}, true, false}, of_zero));
    say(zero_run(World(), {{2, 2}, true, false}, of_zero));
    say(run(World(), {{2, 2}, true, false}, of_replicas));
  });
  const std::string expected = ranks.lines()[0];
  EXPECT_EQ(expected.size(), 16);
  for (int k = 0; k < 8; ++k) {
    EXPECT_THAT(ranks.lines(), ElementsAre(expected, expected, expected, expected)) << k;
  }
  ranks.expect_ends();
  EXPECT_THAT(
      names_in(of_zero),
      ElementsAre("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
                  "model.safetensors.index.json", "optimizer-00001-of-00004.safetensors",
                  "optimizer-00002-of-00004.safetensors", "optimizer-00003-of-00004.safetensors",
                  "optimizer-00004-of-00004.safetensors", "progress.safetensors"));
}

// The learning rate is set on the ZeroOptimizer itself, which is then saved and read through a
// reference to a plain Optimizer. The rate and the states must come back.
TEST(WorldCheckpoint, KeepsTheLearningRateOfAZeroOptimizer) {
  const std::string path = new_path();
  WorldRanks ranks(2, [&](const World& world, const Say& say) {
    GPipe pipe = pipeline(world.grid(2, 1), {4});
    ZeroOptimizer optimizer = zero_adam(pipe);
    torch::optim::Optimizer& plain = optimizer;
    plain.param_groups()[0].options().set_lr(0.125);
    train(pipe, optimizer, 0, 1);
    save_checkpoint(pipe, plain, {1, 6, {}}, path);
    ZeroOptimizer other = zero_adam(pipe);
    torch::optim::Optimizer& other_plain = other;
    load_checkpoint(pipe, other_plain, path);
    say(std::to_string(other.param_groups()[0].options().get_lr()) + ", " +
        std::to_string(other.local().state().size() == other.owned_parameters().size()));
  });
  EXPECT_THAT(ranks.lines(), Each("0.125000, 1"));
  ranks.expect_ends();
}

// A layer that registers its parameters and its buffer in its first forward.
struct LateImpl : torch::nn::Module {
  torch::Tensor forward(torch::Tensor x) {
    if (!weight.defined()) {
      weight = register_parameter("weight", torch::linspace(-1, 1, x.size(1) * 3).view({-1, 3}));
      bias = register_module("inner", torch::nn::Linear(1, 3))->bias;
      torch::NoGradGuard no_grad;
      bias.copy_(torch::linspace(0, 1, 3));
      count = register_buffer("count", torch::zeros({}));
    }
    if (is_training()) count.add_(1);
    return torch::tanh(x.matmul(weight) + bias);
  }
  torch::Tensor weight, bias, count;
};
TORCH_MODULE(Late);

GPipe late_pipeline(const World& world, const std::vector<int64_t>& balance) {
  torch::manual_seed(1);
  const torch::nn::Sequential module(torch::nn::Linear(4, 5), Late(), torch::nn::Linear(3, 4),
                                     Late());
  return {module, GPipeOptions(balance).cpu_threads_per_stage(1).chunks(2).world(world)};
}

// Makes two steps, with a checkpoint between them, or (`reads`) reads the checkpoint and makes the
// second step. Returns the norm of the second step, the hash and the names of the parameters.
std::string late_run(const World& world, const std::vector<int64_t>& balance,
                     const std::string& path, bool reads) {
  GPipe pipe = late_pipeline(world, balance);
  const auto mse = [](const Tensors& outputs, const Tensors& targets) {
    return torch::nn::functional::mse_loss(outputs[0], targets[0]);
  };
  const at::Tensor input = at::linspace(-1, 1, 24).view({6, 4});
  const at::Tensor target = at::linspace(5, 6, 18).view({6, 3});
  std::string text;
  pipe->eval();
  pipe->evaluate({input}, {target}, mse);  // registers
  pipe->train();
  torch::optim::SGD optimizer(pipe->local_parameters(), 0.5);
  if (reads) load_checkpoint(pipe, optimizer, path);
  for (int step = reads ? 1 : 0; step < 2; ++step) {
    optimizer.zero_grad();
    pipe->step({input}, {target}, mse);
    const double norm = pipe->clip_grad_norm_(0.5);
    optimizer.step();
    if (step == 0) {
      save_checkpoint(pipe, optimizer, {1, 6, {}}, path);
    } else {
      text += std::to_string(norm);
    }
  }
  std::string names;
  for (const auto& parameter : pipe->named_parameters()) names += " " + parameter.key();
  return text + " " + pipe->parameter_hash() + names;
}

TEST(WorldCheckpoint, WhatALayerRegistersInItsFirstForwardIsTheModelsInAllProcesses) {
  const std::vector<std::vector<int64_t>> balances = {{4}, {2, 2}, {1, 2, 1}};
  std::vector<std::string> paths;
  std::string want;
  for (const std::vector<int64_t>& balance : balances) {
    paths.push_back(new_path());
    WorldRanks ranks(static_cast<int64_t>(balance.size()), [&, path = paths.back()](
                                                               const World& world, const Say& say) {
      say(distributed::outcome([&] { return late_run(world, balance, path, /*reads=*/false); }));
    });
    const std::vector<std::string> lines = ranks.lines();
    if (want.empty()) want = lines[0];
    EXPECT_THAT(lines, Each(want));
    EXPECT_THAT(lines, Each(HasSubstr("1.inner.bias")));
    ranks.expect_ends();
  }
  for (const std::vector<int64_t>& balance : balances) {
    for (const std::string& path : paths) {
      WorldRanks ranks(static_cast<int64_t>(balance.size()), [&](const World& world,
                                                                 const Say& say) {
        say(distributed::outcome([&] { return late_run(world, balance, path, /*reads=*/true); }));
      });
      EXPECT_THAT(ranks.lines(), Each(want));
      ranks.expect_ends();
    }
  }
}

TEST(WorldCheckpoint, WhatALayerRegistersInAStepThatFailsIsTheModelsToo) {
  std::string want;
  for (const std::vector<int64_t>& balance :
       std::vector<std::vector<int64_t>>{{4}, {2, 2}, {1, 2, 1}}) {
    WorldRanks ranks(static_cast<int64_t>(balance.size()), [&](const World& world, const Say& say) {
      say(distributed::outcome([&] {
        GPipe pipe = late_pipeline(world, balance);
        const auto fails = [](const Tensors&, const Tensors&) -> at::Tensor {
          throw std::runtime_error("no loss");
        };
        std::string text;
        try {
          pipe->step({at::ones({2, 4})}, {}, fails);
        } catch (const std::exception&) {
          text = "failed ";
        }
        for (const at::Tensor& parameter : pipe->local_parameters()) {
          parameter.mutable_grad() = at::ones_like(parameter);
        }
        text += std::to_string(pipe->clip_grad_norm_(0.5));
        return text + " " + pipe->parameter_hash();
      }));
    });
    const std::vector<std::string> lines = ranks.lines();
    if (want.empty()) want = lines[0];
    EXPECT_THAT(lines, Each(want));
    EXPECT_THAT(want, ::testing::StartsWith("failed "));
    ranks.expect_ends();
  }
}

TEST(WorldCheckpoint, ReplicasThatHaveComeApartAreNotSaved) {
  const std::string path = new_path();
  WorldRanks ranks(2, [&](const World& world, const Say& say) {
    GPipe pipe = pipeline(world.grid(2, 1), {4});
    auto optimizer = adam(pipe);
    train(pipe, optimizer, 0, 1);
    if (world.rank() == 1) {
      const torch::NoGradGuard no_grad;
      pipe->parameters()[0].fill_(1);
    }
    say(outcome([&] { save_checkpoint(pipe, optimizer, {1, 6, {}}, path); }));
  });
  EXPECT_THAT(ranks.lines(),
              Each(AllOf(HasSubstr("the replicas have different values of '0.weight'"),
                         HasSubstr("save_checkpoint compares the replicas by their parameter_hash "
                                   "before it writes anything"))));
  ranks.expect_ends();
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(WorldCheckpoint, WhatIsWrongIsRefusedByAllAndChangesNothing) {
  const std::string path = new_path();
  WorldRanks ranks(2, [&](const World& world, const Say& say) {
    GPipe pipe = pipeline(world, {2, 2});
    auto optimizer = adam(pipe);
    train(pipe, optimizer, 0, 2);
    save_checkpoint(pipe, optimizer, {2, 12, {}}, path);
    const auto refused = [&](const std::string& what, const std::function<void()>& call) {
      const std::string before = pipe->parameter_hash();
      const std::string line = outcome(call);
      say(pipe->parameter_hash() == before ? line : what + " changed something");
    };
    refused("another optimizer", [&] {
      torch::optim::SGD sgd(pipe->local_parameters(), 0.1);
      load_checkpoint(pipe, sgd, path);
    });
    refused("foreign parameters", [&] {
      torch::optim::Adam all(pipe->parameters(), torch::optim::AdamOptions(0.05));
      save_checkpoint(pipe, all, {2, 12, {}}, path);
    });
    refused("other progress", [&] {
      save_checkpoint(pipe, optimizer, {2 + world.rank(), 12, {}}, path);
    });
    refused("other settings", [&] {
      save_checkpoint(pipe, optimizer, {2, 12, {}, world.rank() == 0 ? "3" : "4"}, path);
    });
    refused("fewer parameters", [&] {
      auto some = pipe->local_parameters();
      if (world.rank() == 1) some.pop_back();
      torch::optim::Adam fewer(some, torch::optim::AdamOptions(0.05));
      load_checkpoint(pipe, fewer, path);
    });
    refused("no folder", [&] { load_checkpoint(pipe, optimizer, path + "/none"); });
    GPipe wider = pipeline(world, {2, 2}, 6);
    auto of_wider = adam(wider);
    refused("another model", [&] { load_checkpoint(wider, of_wider, path); });
    if (world.rank() == 0) {
      std::fstream file(path + "/model-00002-of-00002.safetensors",
                        std::ios::in | std::ios::out | std::ios::binary);
      file.seekp(-3, std::ios::end);
      file.put('x');
    }
    refused("a damaged part", [&] { load_checkpoint(pipe, optimizer, path); });
    // save_checkpoint() replaces an old checkpoint even if that is damaged.
    save_checkpoint(pipe, optimizer, {2, 12, {}}, path);
    refused("nothing", [&] { load_checkpoint(pipe, optimizer, path); });
  });
  const auto both = [&](const std::string& part) {
    for (const std::string& line : ranks.lines()) EXPECT_THAT(line, HasSubstr(part));
  };
  both("Adam");
  both("which is in another process; make it of GPipe::local_parameters()");
  both("save_checkpoint: the progress must be the same on all ranks");
  both("save_checkpoint: Progress::settings must be the same on all ranks");
  both("is of an optimizer of 6 parameters, and those of the processes have 5");
  both("No such file or directory");
  both("in the model");
  both("when it was saved");
  both("went well");
  ranks.expect_ends();
}

// Lets this process write no more bytes into a file than a header has. What writes more gets an
// error, or is killed (`dies`).
void limit_files(bool dies) {
  (void)signal(SIGXFSZ, dies ? SIG_DFL : SIG_IGN);
  const rlimit bytes{100, 100}, no_core{0, 0};
  setrlimit(RLIMIT_FSIZE, &bytes);
  setrlimit(RLIMIT_CORE, &no_core);
}

// What each rank throws while the last ones of three cannot write their files.
std::vector<std::string> outcomes_of_limits(int64_t who_fails, int64_t who_dies) {
  const std::string path = new_path();
  WorldRanks ranks(3, [&](const World& world, const Say& say) {
    GPipe pipe = pipeline(world, {2, 1, 1});
    auto optimizer = adam(pipe);
    train(pipe, optimizer, 0, 1);
    if (world.rank() == who_fails || world.rank() == who_dies) {
      limit_files(world.rank() == who_dies);
    }
    say(outcome([&] { save_checkpoint(pipe, optimizer, {1, 6, {}}, path); }));
  });
  std::vector<std::string> lines = ranks.lines();
  EXPECT_FALSE(has_checkpoint(path));
  return lines;
}

// When rank 0 learns that a rank was lost, it removes the draft, so the others may fail to write.
// All must throw why.
TEST(WorldCheckpoint, ARankThatCannotWriteThrowsTheLossOfAnother) {
  const std::vector<std::string> lines = outcomes_of_limits(/*who_fails=*/1, /*who_dies=*/2);
  EXPECT_THAT(lines[0], AllOf(StartsWith("failure: rank 2"), Not(HasSubstr("cannot write"))));
  EXPECT_EQ(lines[1], lines[0]);
  EXPECT_EQ(lines[2], "ended");
}

TEST(WorldCheckpoint, ARankThatCannotWriteSaysSo) {
  const std::vector<std::string> lines = outcomes_of_limits(/*who_fails=*/1, /*who_dies=*/-1);
  EXPECT_THAT(lines[0], StartsWith("failure: rank 1"));
  EXPECT_THAT(lines[0], HasSubstr("cannot write"));
  EXPECT_THAT(lines[1], StartsWith("exception: cannot write"));
  EXPECT_EQ(lines[2], lines[0]);
}

// A process is killed while both save again and again. The other one must learn that, and the
// checkpoint must be complete: the old one or a new one.
TEST(WorldCheckpoint, AProcessThatIsKilledWhileItIsWrittenLeavesTheOldOne) {
  const std::string path = new_path();
  for (const int64_t victim : {0, 1}) {
    WorldRanks ranks(2, [&](const World& world, const Say& say) {
      GPipe pipe = pipeline(world, {2, 2});
      auto optimizer = adam(pipe);
      train(pipe, optimizer, 0, 1);
      save_checkpoint(pipe, optimizer, {1, 6, {}}, path);
      say("saved");
      for (int64_t step = 2;; ++step) {
        const std::string line = outcome([&] {
          save_checkpoint(pipe, optimizer, {step, 6, {}}, path);
        });
        if (line == "went well") continue;
        say(line);
        return;
      }
    });
    EXPECT_EQ(ranks->next(0), "saved");
    EXPECT_EQ(ranks->next(1), "saved");
    usleep(30'000);
    ranks->send(victim, SIGKILL);
    EXPECT_THAT(ranks->next(1 - victim),
                AllOf(StartsWith("failure: rank " + std::to_string(victim)), HasSubstr("is gone")));
    EXPECT_TRUE(ranks->ends(1 - victim));
    WorldRanks readers(1, [&](const World& world, const Say& say) {
      GPipe pipe = pipeline(world, {4});
      auto optimizer = adam(pipe);
      say(outcome([&] { load_checkpoint(pipe, optimizer, path); }));
    });
    EXPECT_EQ(readers->next(0), "went well");
    EXPECT_TRUE(readers->ends(0));
  }
}

}  // namespace
}  // namespace gpipe
