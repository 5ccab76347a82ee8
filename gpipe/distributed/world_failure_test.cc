// What goes wrong in one process is known in all of them, and what one of them does differently.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>
#include <torch/utils.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "gpipe/clip_grad.h"
#include "gpipe/distributed/failure.h"
#include "gpipe/distributed/world_ranks.h"
#include "gpipe/gpipe.h"
#include "gpipe/testing/function_layer.h"

namespace gpipe::distributed {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using Say = WorldRanks::Say;

namespace nn = torch::nn;

torch::Tensor loss(torch::Tensor output, torch::Tensor target) {
  return torch::mse_loss(output, target);
}

// Layer 1 is a function.
nn::Sequential model(std::function<torch::Tensor(torch::Tensor)> f) {
  torch::manual_seed(1);
  return nn::Sequential(nn::Linear(4, 4),
                        testing::layer<torch::Tensor, torch::Tensor>(std::move(f)),
                        nn::Linear(4, 4));
}
nn::Sequential plain_model() {
  return model([](torch::Tensor x) { return x.relu(); });
}

GPipeOptions options(const World& world) {
  return GPipeOptions({1, 1, 1}).chunks(4).cpu_threads_per_stage(1).world(world);
}

// What came of a call: "12.5", "failure: ..." or "value error: ...".
std::string outcome(const std::function<std::string()>& call) {
  try {
    return call();
  } catch (const DistributedFailure& failure) {
    return std::string("failure: ") + failure.what();
  } catch (const c10::ValueError& error) {
    return std::string("value error: ") + error.what_without_backtrace();
  } catch (const c10::Error& error) {
    return std::string("error: ") + error.what_without_backtrace();
  } catch (const std::exception& error) {
    return std::string("exception: ") + error.what();
  }
}

std::string step(GPipe& pipe, const StepOptions& step_options = {}) {
  return outcome([&] {
    return "loss " + std::to_string(pipe->step({torch::ones({8, 4})}, {torch::zeros({8, 4})}, loss,
                                               step_options)
                                        .loss);
  });
}

std::vector<std::string> lines_of(WorldRanks& ranks, int64_t size) {
  std::vector<std::string> lines;
  for (int64_t rank = 0; rank < size; ++rank) lines.push_back(ranks->next(rank));
  return lines;
}

void expect_ends(WorldRanks& ranks, int64_t size) {
  for (int64_t rank = 0; rank < size; ++rank) EXPECT_TRUE(ranks->ends(rank)) << rank;
}

TEST(WorldFailure, ALayerThrowsAndAllGoOnAfterwards) {
  WorldRanks ranks(3, [](const World& world, const Say& say) {
    int calls = 0;
    GPipe pipe(model([&](torch::Tensor x) {
                 if (++calls == 2) throw std::runtime_error("boom");
                 return x.relu();
               }),
               options(world));
    say(step(pipe));
    pipe->zero_grad();
    say(step(pipe));
    say(step(pipe));
  });
  const std::vector<std::string> first = lines_of(ranks, 3);
  EXPECT_THAT(first[1], StartsWith("exception: boom (in the forward of stage 1, micro-batch 1"));
  for (const int64_t rank : {0, 2}) {
    EXPECT_THAT(first[rank], AllOf(StartsWith("failure: rank 1 ("),
                                   HasSubstr("threw in stage 1, micro-batch 1, layer 1 ('1'): "
                                             "boom")));
    EXPECT_EQ(first[rank].find("also"), std::string::npos) << first[rank];
  }
  for (int round = 0; round < 2; ++round) {
    const std::vector<std::string> then = lines_of(ranks, 3);
    EXPECT_THAT(then[0], StartsWith("loss "));
    EXPECT_EQ(then[1], then[0]);
    EXPECT_EQ(then[2], then[0]);
  }
  expect_ends(ranks, 3);
}

TEST(WorldFailure, TheLossThrows) {
  WorldRanks ranks(3, [](const World& world, const Say& say) {
    GPipe pipe(plain_model(), options(world));
    say(outcome([&]() -> std::string {
      pipe->step({torch::ones({8, 4})}, {torch::ones({8, 4})},
                 [](torch::Tensor, torch::Tensor) -> torch::Tensor {
                   throw std::out_of_range("no such class");
                 });
      return "went well";
    }));
  });
  const std::vector<std::string> lines = lines_of(ranks, 3);
  EXPECT_THAT(lines[2], StartsWith("exception: no such class"));
  for (const int64_t rank : {0, 1}) {
    EXPECT_THAT(lines[rank], HasSubstr("rank 2"));
    EXPECT_THAT(lines[rank], HasSubstr("in stage 2, micro-batch 0, the loss function: no such"));
  }
  expect_ends(ranks, 3);
}

TEST(WorldFailure, AWrongInputOnOneRankReachesAll) {
  WorldRanks ranks(3, [](const World& world, const Say& say) {
    GPipe pipe(plain_model(), options(world));
    // The targets do not fit, which only the last process sees.
    say(outcome([&]() -> std::string {
      pipe->step({torch::ones({8, 4})}, {torch::ones({world.rank() == 2 ? 7 : 8, 4})}, loss);
      return "went well";
    }));
    say(step(pipe));
  });
  const std::vector<std::string> lines = lines_of(ranks, 3);
  EXPECT_THAT(lines[2], StartsWith("value error: the targets have 7 rows"));
  EXPECT_THAT(lines[0], AllOf(StartsWith("failure: rank 2"), HasSubstr("the targets have 7 rows")));
  EXPECT_EQ(lines[1], lines[0]);
  for (const std::string& line : lines_of(ranks, 3)) EXPECT_THAT(line, StartsWith("loss "));
  expect_ends(ranks, 3);
}

// What all find to be different is an error on all that names both values, and no failure: the
// next call goes on.
TEST(WorldFailure, DifferencesAreNamedOnAll) {
  WorldRanks ranks(3, [](const World& world, const Say& say) {
    const bool odd = world.rank() == 1;
    say(outcome([&]() -> std::string {
      GPipe pipe(plain_model(), options(world).chunks(odd ? 2 : 4));
      return "made";
    }));
    say(outcome([&]() -> std::string {
      GPipe pipe(odd ? nn::Sequential(nn::Linear(4, 4), nn::Linear(4, 4), nn::Linear(4, 4))
                     : plain_model(),
                 options(world));
      return "made";
    }));
    GPipe pipe(plain_model(), options(world));
    pipe->train(!odd);
    say(step(pipe));
    pipe->train();
    say(step(pipe, StepOptions().reduction(odd ? LossReduction::kSum : LossReduction::kMean)));
    say(step(pipe, odd ? StepOptions().schedule(Schedule::gpipe(3, 4)) : StepOptions()));
    say(step(pipe, StepOptions().schedule(odd ? Schedule::gpipe(3, 4)
                                              : Schedule::one_f_one_b(3, 4))));
    say(outcome([&]() -> std::string {
      pipe->step({torch::ones({odd ? 6 : 8, 4})}, {torch::zeros({8, 4})}, loss);
      return "went well";
    }));
    say(outcome([&]() -> std::string {
      if (odd) {
        pipe->evaluate({torch::ones({8, 4})}, {torch::zeros({8, 4})}, loss);
      } else {
        pipe->step({torch::ones({8, 4})}, {torch::zeros({8, 4})}, loss);
      }
      return "went well";
    }));
    say(step(pipe));
  });
  const std::vector<std::vector<std::string>> expected = {
      {"chunks of the making of pipeline 0", "rank 0 has '4'", "rank 1 has '2'"},
      {"the layers of the making of pipeline 1", "rank 0", "rank 1"},
      {"the mode must be the same on all ranks: it is training on rank 0, and evaluation on rank 1"},
      {"StepOptions::reduction", "kMean on rank 0", "kSum on rank 1"},
      {"whether StepOptions have a schedule", "no on rank 0", "yes on rank 1"},
      {"the schedule must be the same on all ranks"},
      {"8 rows on rank 0, which has the first stage, and 6 on rank 1"},
      {"the begin of step of pipeline 2", "the begin of evaluate of pipeline 2"}};
  for (const std::vector<std::string>& parts : expected) {
    for (const std::string& line : lines_of(ranks, 3)) {
      for (const std::string& part : parts) EXPECT_THAT(line, HasSubstr(part));
    }
  }
  for (const std::string& line : lines_of(ranks, 3)) EXPECT_THAT(line, StartsWith("loss "));
  expect_ends(ranks, 3);
}

TEST(WorldFailure, AKilledProcessIsNamedNowAndAtTheNextCall) {
  WorldRanks ranks(3, [](const World& world, const Say& say) {
    GPipe pipe(model([&](torch::Tensor x) {
                 if (world.rank() == 1) kill(getpid(), SIGKILL);
                 return x.relu();
               }),
               options(world));
    const auto begin = std::chrono::steady_clock::now();
    const std::string first = step(pipe);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    say(first);
    say(took.count() < 10 ? "soon" : "late");
    say(step(pipe));
  });
  for (const int64_t rank : {0, 2}) {
    EXPECT_THAT(ranks->next(rank), AllOf(StartsWith("failure: rank 1 ("), HasSubstr("is gone")));
    EXPECT_EQ(ranks->next(rank), "soon");
    EXPECT_THAT(ranks->next(rank), AllOf(StartsWith("failure: rank 1 ("), HasSubstr("is gone")));
    EXPECT_TRUE(ranks->ends(rank)) << rank;
  }
}

TEST(WorldFailure, AProcessThatEndsEarlyIsNamed) {
  WorldRanks ranks(3, [](const World& world, const Say& say) {
    GPipe pipe(plain_model(), options(world));
    say(step(pipe));
    if (world.rank() != 2) say(step(pipe));
  });
  for (const std::string& line : lines_of(ranks, 3)) EXPECT_THAT(line, StartsWith("loss "));
  for (const int64_t rank : {0, 1}) {
    EXPECT_THAT(ranks->next(rank), AllOf(StartsWith("failure: rank 2"), HasSubstr("left")));
  }
  expect_ends(ranks, 3);
}

TEST(WorldFailure, WhatProcessesCannotDoIsRefusedWithTheWayToDoIt) {
  WorldRanks ranks(2, [](const World& world, const Say& say) {
    const auto make = [&](const GPipeOptions& made) {
      return outcome([&]() -> std::string {
        GPipe pipe(plain_model(), made);
        return "made";
      });
    };
    say(make(GPipeOptions({1, 1, 1}).world(world)));
    say(make(GPipeOptions({3}).world(world)));
    say(make(GPipeOptions({2, 1}).graphs(true).world(world)));
    GPipe pipe(plain_model(), GPipeOptions({2, 1}).chunks(2).world(world));
    say(outcome([&]() -> std::string {
      (void)pipe->forward(torch::ones({8, 4}));
      return "went well";
    }));
    say(outcome([&]() -> std::string {
      pipe->step(world.rank() == 0 ? Tensors() : Tensors{torch::ones({8, 4})},
                 {torch::zeros({8, 4})}, loss);
      return "went well";
    }));
    say(step(pipe));
    say(outcome([&]() -> std::string {
      clip_grad_norm_(pipe->parameters(), 1);
      return "went well";
    }));
    say(outcome([&]() -> std::string {
      auto shared = nn::Linear(4, 4);
      nn::Sequential tied(nn::Linear(4, 4), nn::Linear(4, 4));
      tied->ptr(1)->as<nn::Linear>()->register_module("shared", shared);
      tied->ptr(0)->as<nn::Linear>()->register_module("shared", shared);
      GPipe other(tied, GPipeOptions({1, 1}).world(world));
      return "made";
    }));
  });
  const auto both = [&](const std::string& part) {
    for (const std::string& line : lines_of(ranks, 2)) EXPECT_THAT(line, HasSubstr(part));
  };
  both("the balance has 3 partitions, and there are 2 processes: say with GPipeOptions::placement");
  both("the balance has 1 partitions, and there are 2 processes");
  both("GPipeOptions::graphs are for CUDA devices");
  both("Train with step()");
  const std::vector<std::string> no_input = lines_of(ranks, 2);
  EXPECT_THAT(no_input[0], HasSubstr("step was given no input tensor"));
  EXPECT_THAT(no_input[1], AllOf(StartsWith("failure: rank 0"), HasSubstr("no input tensor")));
  both("loss ");
  both("call clip_grad_norm_ of the pipeline");
  both("in process 0 is also");
  expect_ends(ranks, 2);
}

}  // namespace
}  // namespace gpipe::distributed
