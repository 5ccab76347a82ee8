// Tests that all processes learn it if one process fails, or does something different from the
// others.
#include <c10/core/InferenceMode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/serialize.h>
#include <torch/types.h>
#include <torch/utils.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iterator>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "gpipe/clip_grad.h"
#include "gpipe/distributed/control/failure.h"
#include "gpipe/distributed/sockets/master_port.h"
#include "gpipe/gpipe.h"
#include "gpipe/testing/function_layer.h"
#include "gpipe/testing/log_capture.h"
#include "gpipe/testing/processes/rank_processes.h"
#include "gpipe/testing/processes/world_ranks.h"
#include "meta/meta_scope.h"
#include "skip/skippable.h"

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

// A model whose layer 1 calls `f`.
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

std::string step(GPipe& pipe, const StepOptions& step_options = {}) {
  return outcome([&] {
    return "loss " +
           std::to_string(
               pipe->step({torch::ones({8, 4})}, {torch::zeros({8, 4})}, loss, step_options).loss);
  });
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
  const std::vector<std::string> first = ranks.lines();
  EXPECT_THAT(first[1], StartsWith("exception: boom (in the forward of stage 1, micro-batch 1"));
  for (const int64_t rank : {0, 2}) {
    EXPECT_THAT(first[rank], AllOf(StartsWith("failure: rank 1 ("),
                                   HasSubstr("threw in stage 1, micro-batch 1, layer 1 ('1'): "
                                             "boom")));
    EXPECT_EQ(first[rank].find("also"), std::string::npos) << first[rank];
  }
  for (int round = 0; round < 2; ++round) {
    const std::vector<std::string> then = ranks.lines();
    EXPECT_THAT(then[0], StartsWith("loss "));
    EXPECT_EQ(then[1], then[0]);
    EXPECT_EQ(then[2], then[0]);
  }
  ranks.expect_ends();
}

TEST(WorldFailure, AnObserverThatThrowsIsNamed) {
  WorldRanks ranks(2, [](const World& world, const Say& say) {
    GPipe pipe(plain_model(), GPipeOptions({2, 1}).chunks(2).cpu_threads_per_stage(1).world(world));
    say(step(pipe, StepOptions().on_event([](const Event& event) {
      if (event.action.stage == 1) throw std::runtime_error("boom");
    })));
  });
  const std::vector<std::string> lines = ranks.lines();
  EXPECT_THAT(lines[0], HasSubstr("threw in stage 1, micro-batch 0, the observer of "
                                  "StepOptions::on_event: boom"));
  EXPECT_EQ(lines[1], "exception: boom");
  ranks.expect_ends();
}

// The first `count` lines that each rank says; `call_limit` is the limit for coming to a call.
std::vector<std::vector<std::string>> said(
    int64_t size, size_t count, const WorldRanks::Main& main,
    std::chrono::milliseconds call_limit = std::chrono::minutes(5)) {
  WorldOptions limited = WorldRanks::quick();
  limited.call_limit = call_limit;
  WorldRanks ranks(size, main, limited);
  std::vector<std::vector<std::string>> lines(static_cast<size_t>(size));
  for (int64_t rank = 0; rank < size; ++rank) {
    for (size_t k = 0; k < count; ++k) {
      lines[static_cast<size_t>(rank)].push_back(ranks->next(rank));
    }
  }
  ranks.expect_ends();
  return lines;
}

// A process may connect again, and two Worlds may live at the same time, although only one store
// can listen at the port.
TEST(WorldFailure, AProcessMayConnectAgain) {
  const auto lines = said(2, 3, [](const World& world, const Say& say) {
    GPipe pipe(plain_model(), GPipeOptions({2, 1}).cpu_threads_per_stage(1).world(world));
    for (int round = 0; round < 2; ++round) {
      const World again = World::from_environment(WorldRanks::quick());
      GPipe other(plain_model(), GPipeOptions({1, 2}).cpu_threads_per_stage(1).world(again));
      say(step(other));
    }
    say(step(pipe));
  });
  for (const auto& of_rank : lines) {
    for (const std::string& line : of_rank) EXPECT_THAT(line, StartsWith("loss "));
  }
}

// A call of all processes within another one must be refused, because the inner call would wait for
// the outer one.
TEST(WorldFailure, ACallWithinACallIsRefused) {
  const auto lines = said(3, 5, [](const World& world, const Say& say) {
    GPipe* pipe_when_made = nullptr;
    const auto hash_once = [&, called = false]() mutable {
      if (pipe_when_made == nullptr || std::exchange(called, true)) return;
      (void)(*pipe_when_made)->parameter_hash();
    };
    auto in_layer = hash_once;
    GPipe pipe(model([&](torch::Tensor x) {
                 in_layer();
                 return x.relu();
               }),
               options(world));
    pipe_when_made = &pipe;
    say(step(pipe));
    auto in_observer = hash_once;
    say(step(pipe, StepOptions().on_event([&](const Event&) { in_observer(); })));
    auto in_generator = hash_once;
    say(step(pipe, StepOptions().schedule([&](int64_t stages, int64_t micro_batches) {
      in_generator();
      return Schedule::gpipe(stages, micro_batches);
    })));
    say(outcome([&]() -> std::string {
      GPipe other(
          [] {
            const MetaScope meta;
            return plain_model();
          }(),
          options(world));
      other->materialize([&](const std::string&, at::Tensor& tensor, at::Generator) {
        tensor.zero_();
        (void)pipe->parameter_hash();
      });
      return "went well";
    }));
    say(step(pipe));
  });
  EXPECT_THAT(lines[1][0], HasSubstr("from inside a layer of a pipeline"));
  EXPECT_THAT(lines[0][0], AllOf(StartsWith("failure: rank 1"), HasSubstr("from inside a layer")));
  EXPECT_THAT(lines[0][1], HasSubstr("from inside a layer of a pipeline"));
  for (const auto& of_rank : lines) {
    EXPECT_THAT(of_rank[2], HasSubstr("a call of all processes within another one"));
    EXPECT_THAT(of_rank[3], HasSubstr("a call of all processes within another one"));
    EXPECT_THAT(of_rank[4], StartsWith("loss "));
  }
}

TEST(WorldFailure, AllLearnThatTheConstructorOrMaterializeFailedOnOneRankAndMayTryAgain) {
  struct Layer : nn::Module {
    explicit Layer(bool is_bad) : is_bad(is_bad) {
      weight = register_parameter("weight", torch::ones({4}));
    }
    torch::Tensor forward(torch::Tensor x) { return x * weight; }
    void to(torch::Device device, bool non_blocking) override {
      if (is_bad) throw std::runtime_error("no room");
      nn::Module::to(device, non_blocking);
    }
    bool is_bad;
    torch::Tensor weight;
  };
  const auto lines = said(3, 5, [](const World& world, const Say& say) {
    const bool odd = world.rank() == 1;
    const auto make = [&](bool is_bad) {
      return outcome([&]() -> std::string {
        torch::manual_seed(1);
        GPipe pipe(
            nn::Sequential(nn::Linear(4, 4), std::make_shared<Layer>(is_bad), nn::Linear(4, 4)),
            options(world));
        return step(pipe);
      });
    };
    say(make(odd));
    say(make(false));
    GPipe pipe(
        [] {
          const MetaScope meta;
          return nn::Sequential(nn::Linear(4, 4), nn::Linear(4, 4), nn::Linear(4, 4));
        }(),
        options(world));
    const auto fill = [&](bool is_bad) {
      return outcome([&]() -> std::string {
        pipe->materialize([&](const std::string&, at::Tensor& tensor, at::Generator) {
          if (is_bad) throw std::runtime_error("no such file");
          tensor.fill_(0.5);
        });
        // If the function threw in an earlier call, parameters may have had memory but no values.
        // They must have values now.
        return c10::str(pipe->local_parameters().front().sum().item<float>());
      });
    };
    say(fill(odd));
    say(fill(false));
    say(step(pipe));
  });
  EXPECT_THAT(lines[1][0], HasSubstr("no room"));
  EXPECT_THAT(lines[1][2], HasSubstr("no such file"));
  for (const size_t rank : {0, 2}) {
    EXPECT_THAT(lines[rank][0], AllOf(StartsWith("failure: rank 1"), HasSubstr("no room")));
    EXPECT_THAT(lines[rank][2], AllOf(StartsWith("failure: rank 1"), HasSubstr("no such file")));
  }
  for (const auto& of_rank : lines) {
    EXPECT_THAT(of_rank[1], StartsWith("loss "));
    EXPECT_EQ(of_rank[3], "8");
    EXPECT_THAT(of_rank[4], StartsWith("loss "));
  }
}

TEST(WorldFailure, MaterializesFunctionMustWriteIntoItsTensor) {
  const auto lines = said(2, 1, [](const World& world, const Say& say) {
    GPipe pipe(
        [] {
          const MetaScope meta;
          return nn::Sequential(nn::Linear(4, 4), nn::Linear(4, 4));
        }(),
        GPipeOptions({1, 1}).world(world));
    say(outcome([&]() -> std::string {
      pipe->materialize([](const std::string&, at::Tensor& tensor, at::Generator) {
        tensor = torch::zeros_like(tensor);
      });
      return "went well";
    }));
  });
  EXPECT_THAT(lines[0][0], HasSubstr("another tensor in the place of '0.weight'"));
  EXPECT_THAT(lines[1][0], HasSubstr("another tensor in the place of '1.weight'"));
}

// The loss takes longer than the limit for coming to a call. That is not an error, because a
// process that computes within a call has come to it.
TEST(WorldFailure, TheLimitOfACallIsNotOneForItsWork) {
  const auto lines = said(
      2, 2,
      [](const World& world, const Say& say) {
        GPipe pipe(plain_model(), GPipeOptions({2, 1}).cpu_threads_per_stage(1).world(world));
        const auto slow = [](torch::Tensor output, torch::Tensor target) {
          std::this_thread::sleep_for(std::chrono::seconds(2));
          return torch::mse_loss(output, target);
        };
        say(outcome([&] {
          return "loss " +
                 std::to_string(
                     pipe->evaluate({torch::ones({8, 4})}, {torch::zeros({8, 4})}, slow).loss);
        }));
        say(step(pipe));
      },
      /*call_limit=*/std::chrono::milliseconds(500));
  for (const auto& of_rank : lines) {
    EXPECT_THAT(of_rank[0], StartsWith("loss "));
    EXPECT_THAT(of_rank[1], StartsWith("loss "));
  }
}

TEST(WorldFailure, WhatAllShouldClipByIsCompared) {
  const auto lines = said(2, 3, [](const World& world, const Say& say) {
    GPipe pipe(plain_model(), GPipeOptions({2, 1}).cpu_threads_per_stage(1).world(world));
    say(step(pipe));
    const double most = world.rank() == 0 ? 1 : 1 + 1e-15;
    say(outcome([&] { return std::to_string(pipe->clip_grad_norm_(most)); }));
    say(step(pipe));
  });
  for (const auto& of_rank : lines) {
    EXPECT_THAT(of_rank[1], AllOf(HasSubstr("the arguments of clip_grad_norm_ of pipeline 0"),
                                  HasSubstr("rank 0 has '1, 2, false'"), HasSubstr("rank 1")));
    EXPECT_THAT(of_rank[2], StartsWith("loss "));
  }
}

TEST(WorldFailure, EachTypeOfNormIsThatOfOneProcess) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const std::vector<double> types = {0, 0.5, 1, 2, 3.5, kInfinity, -1};
  const auto lines = said(2, 2 * types.size(), [&](const World& world, const Say& say) {
    GPipe alone(plain_model(), GPipeOptions({2, 1}).chunks(2).cpu_threads_per_stage(1));
    GPipe pipe(plain_model(), GPipeOptions({2, 1}).chunks(2).cpu_threads_per_stage(1).world(world));
    for (const double type : types) {
      for (GPipe* const each : {&alone, &pipe}) {
        (*each)->zero_grad();
        (void)outcome([&] { return step(*each); });
        say(outcome([&] { return absl::StrFormat("%a", (*each)->clip_grad_norm_(1, type)); }));
      }
    }
  });
  for (const auto& of_rank : lines) {
    for (size_t k = 0; k < types.size(); ++k) {
      EXPECT_EQ(of_rank[2 * k + 1], of_rank[2 * k]) << types[k];
    }
    EXPECT_EQ(of_rank[0], absl::StrFormat("%a", 4.0)) << "two weights and two biases";
    EXPECT_THAT(of_rank.back(), HasSubstr("norm_type must be at least 0, got -1"));
  }
}

// The local parameters of each process have another norm, so clipping them by themselves is a
// mistake. The warning must come once.
TEST(WorldFailure, LocalParametersThatAreClippedByThemselvesAreWarnedOfOnce) {
  const auto lines = said(2, 3, [](const World& world, const Say& say) {
    const testing::LogCapture log;
    const auto warnings = [&] { return absl::StrJoin(log.warnings(), "\n"); };
    GPipe pipe(plain_model(), GPipeOptions({2, 1}).cpu_threads_per_stage(1).world(world));
    (void)step(pipe);
    const std::vector<torch::Tensor> all = pipe->local_parameters();
    clip_grad_norm_({all[0]}, 1);  // one layer by its own norm, which is not a mistake
    (void)pipe->clip_grad_norm_(1);
    say(warnings());
    clip_grad_norm_(all, 1);
    clip_grad_norm_(all, 1);
    say(warnings());
    say(std::to_string(log.warnings().size()));
  });
  for (const auto& of_rank : lines) {
    EXPECT_EQ(of_rank[0], "");
    EXPECT_THAT(of_rank[1], HasSubstr("Call clip_grad_norm_ of the pipeline, in all processes"));
    EXPECT_EQ(of_rank[2], "1");
  }
}

// The norms and hashes of 18,000 parameters do not fit into one message. They must be those of one
// process.
TEST(WorldFailure, NormsAndHashesOfManyParameters) {
  struct Many : nn::Module {
    Many() {
      for (int k = 0; k < 18'000; ++k) {
        register_parameter("p" + std::to_string(k), torch::full({1}, 0.5));
      }
    }
    torch::Tensor forward(torch::Tensor x) { return x * named_parameters(false)["p7"]; }
  };
  const auto lines = said(2, 2, [](const World& world, const Say& say) {
    const auto run = [&](const World& over) {
      torch::manual_seed(1);
      GPipe pipe(nn::Sequential(nn::Linear(4, 4), std::make_shared<Many>()),
                 GPipeOptions({1, 1}).cpu_threads_per_stage(1).world(over));
      for (at::Tensor& parameter : pipe->local_parameters()) {
        parameter.mutable_grad() = torch::ones_like(parameter);
      }
      return outcome(
          [&] { return std::to_string(pipe->clip_grad_norm_(1)) + " " + pipe->parameter_hash(); });
    };
    say(run(World()));
    say(run(world));
  });
  for (const auto& of_rank : lines) EXPECT_EQ(of_rank[1], of_rank[0]);
  EXPECT_THAT(lines[0][0], StartsWith("134."));  // sqrt(18020)
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
  const std::vector<std::string> lines = ranks.lines();
  EXPECT_THAT(lines[2], StartsWith("exception: no such class"));
  for (const int64_t rank : {0, 1}) {
    EXPECT_THAT(lines[rank], HasSubstr("rank 2"));
    EXPECT_THAT(lines[rank], HasSubstr("in stage 2, micro-batch 0, the loss function: no such"));
  }
  ranks.expect_ends();
}

TEST(WorldFailure, AWrongInputOnOneRankReachesAll) {
  WorldRanks ranks(3, [](const World& world, const Say& say) {
    GPipe pipe(plain_model(), options(world));
    // The number of targets is wrong, which only the last process notices.
    say(outcome([&]() -> std::string {
      pipe->step({torch::ones({8, 4})}, {torch::ones({world.rank() == 2 ? 7 : 8, 4})}, loss);
      return "went well";
    }));
    say(step(pipe));
  });
  const std::vector<std::string> lines = ranks.lines();
  EXPECT_THAT(lines[2], StartsWith("value error: the targets have 7 rows"));
  EXPECT_THAT(lines[0], AllOf(StartsWith("failure: rank 2"), HasSubstr("the targets have 7 rows")));
  EXPECT_EQ(lines[1], lines[0]);
  for (const std::string& line : ranks.lines()) EXPECT_THAT(line, StartsWith("loss "));
  ranks.expect_ends();
}

// A difference between ranks is an error on all ranks, which names both values. It is not a failure
// of the run: the next call works.
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
    const auto weight = [](const Tensors&) { return 2.0; };
    say(step(pipe, odd ? StepOptions().weight(weight) : StepOptions()));
    say(step(pipe, odd ? StepOptions().schedule(Schedule::gpipe(3, 4)) : StepOptions()));
    say(step(pipe,
             StepOptions().schedule(odd ? Schedule::gpipe(3, 4) : Schedule::one_f_one_b(3, 4))));
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
      {"chunks of pipeline 0", " has '4'", "rank 1 has '2'"},
      {"the layers of pipeline 0", "rank 1"},
      {"the mode must be the same on all ranks: it is training on rank 0, and evaluation on rank "
       "1"},
      {"StepOptions::reduction", "kMean on rank 0", "kSum on rank 1"},
      {"StepOptions::weight must be the same on all ranks: it is not given on rank 0, and given on "
       "rank 1"},
      {"whether StepOptions have a schedule", "no on rank 0", "yes on rank 1"},
      {"the schedule must be the same on all ranks: action 3 of worker 0",
       "is B0.0, the backward of stage 0 for micro-batch 0, on rank 0, and F0.3, the forward of "
       "stage 0 for micro-batch 3, on rank 1"},
      {"8 rows on rank 0, which has the first stage, and 6 on rank 1"},
      {"the begin of step of pipeline 0", "the begin of evaluate of pipeline 0"}};
  for (const std::vector<std::string>& parts : expected) {
    for (const std::string& line : ranks.lines()) {
      for (const std::string& part : parts) EXPECT_THAT(line, HasSubstr(part));
    }
  }
  for (const std::string& line : ranks.lines()) EXPECT_THAT(line, StartsWith("loss "));
  ranks.expect_ends();
}

struct StashImpl : nn::Module, skip::Skippable {
  StashImpl() : Skippable({"skip"}, {}) {}
  torch::Tensor forward(torch::Tensor x) {
    x = x * 1;
    stash("skip", x);
    return x;
  }
};
TORCH_MODULE(Stash);

struct PopAddImpl : nn::Module, skip::Skippable {
  PopAddImpl() : Skippable({}, {"skip"}) {}
  torch::Tensor forward(torch::Tensor x) { return x + pop("skip"); }
};
TORCH_MODULE(PopAdd);

// In one process a tensor's two routes share memory, so a change in place is seen on both. Over
// processes each route has its own memory, so the change must be refused. That holds even if no
// gradient is wanted, and so nothing counts changes.
TEST(WorldFailure, AChangeInPlaceOfWhatAlsoWentAnotherWayIsRefused) {
  const auto lines = said(3, 3, [](const World& world, const Say& say) {
    nn::Sequential model(Stash(), testing::layer<torch::Tensor, torch::Tensor>([](torch::Tensor x) {
                           return x.add_(1);
                         }),
                         PopAdd());
    GPipe pipe(model, GPipeOptions({1, 1, 1}).chunks(2).world(world));
    const auto forward = [&] {
      return outcome([&]() -> std::string {
        (void)pipe->forward(torch::ones({4, 2}));
        return "went well";
      });
    };
    {
      const torch::NoGradGuard no_grad;
      say(forward());
    }
    {
      const c10::InferenceMode inference;
      say(forward());
    }
    say(outcome([&]() -> std::string {
      (void)pipe->evaluate({torch::ones({4, 2})}, {torch::ones({4, 2})}, loss);
      return "went well";
    }));
  });
  for (const auto& of_rank : lines) {
    for (const std::string& line : of_rank) {
      EXPECT_THAT(line, HasSubstr("changed a tensor in place that also went another way"));
    }
  }
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

// The error file must name the failure that ended the run. torchrun must not print an earlier
// failure from which all ranks have recovered.
TEST(WorldFailure, TheErrorFileSaysWhyTheyDidNotGoOn) {
  MasterPort port;
  const std::string path = ::testing::TempDir() + "/reason" + std::to_string(getpid()) + ".json";
  RankProcesses ranks(3, [&](int64_t rank, const Say& say) {
    WorldRanks::become(rank, 3, port.number());
    if (rank == 0) setenv("TORCHELASTIC_ERROR_FILE", path.c_str(), /*overwrite=*/1);
    const World world = World::from_environment(WorldRanks::quick());
    GPipe pipe(model([&](torch::Tensor x) {
                 if (rank == 1) throw std::runtime_error("boom");
                 return x.relu();
               }),
               options(world));
    const std::string first = step(pipe);
    if (rank == 2) kill(getpid(), SIGKILL);
    say(first);
    say(step(pipe));
  });
  for (const int64_t rank : {0, 1}) {
    EXPECT_THAT(ranks.next(rank), HasSubstr("boom"));
    EXPECT_THAT(ranks.next(rank), AllOf(StartsWith("failure: rank 2 ("), HasSubstr("is gone")));
    EXPECT_TRUE(ranks.ends(rank));
  }
  std::ifstream file(path);
  std::string reason;
  std::getline(file, reason);
  EXPECT_THAT(reason, HasSubstr("rank 2 ("));
  std::remove(path.c_str());
}

// Two threads make a call, and both calls fail. The second call must not begin before the failure
// of the first is written to the error file; otherwise the file would be a mixture of both.
TEST(WorldFailure, ACallThatCannotBeginEndsBeforeAnotherOneBegins) {
  MasterPort port;
  const std::string path = ::testing::TempDir() + "/held" + std::to_string(getpid()) + ".json";
  RankProcesses ranks(2, [&](int64_t rank, const Say& say) {
    WorldRanks::become(rank, 2, port.number());
    setenv("TORCHELASTIC_ERROR_FILE", path.c_str(), /*overwrite=*/1);
    const World world = World::from_environment(WorldRanks::quick());
    GPipe pipe(plain_model(), GPipeOptions({2, 1}).cpu_threads_per_stage(1).world(world));
    say(step(pipe));
    if (rank == 1) return;  // once rank 0 knows that rank 1 has left, no call can begin
    std::this_thread::sleep_for(std::chrono::seconds(1));
    // The error file is a pipe here, so a thread that writes it waits for a reader.
    const std::string draft = path + "." + std::to_string(getpid());
    mkfifo(draft.c_str(), 0600);
    std::string of_first;
    std::string of_second;
    std::thread first([&] { of_first = step(pipe); });
    std::thread second([&] { of_second = step(pipe); });
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    std::ifstream file(draft);
    const std::string content(std::istreambuf_iterator<char>(file), {});
    first.join();
    second.join();
    say(of_first);
    say(of_second);
    // What was read from the pipe must be one whole record, even if the other thread has written
    // the file again since.
    const auto record = nlohmann::json::parse(content, nullptr, /*allow_exceptions=*/false);
    say(record.is_discarded() ? "not one record: " + content : "one record");
  });
  for (const int64_t rank : {0, 1}) EXPECT_THAT(ranks.next(rank), StartsWith("loss "));
  for (int thread = 0; thread < 2; ++thread) {
    EXPECT_THAT(ranks.next(0), AllOf(StartsWith("failure: rank 1"), HasSubstr("left")));
  }
  EXPECT_EQ(ranks.next(0), "one record");
  for (const int64_t rank : {0, 1}) EXPECT_TRUE(ranks.ends(rank));
  std::remove(path.c_str());
}

TEST(WorldFailure, AProcessThatEndsEarlyIsNamed) {
  WorldRanks ranks(3, [](const World& world, const Say& say) {
    GPipe pipe(plain_model(), options(world));
    say(step(pipe));
    if (world.rank() != 2) say(step(pipe));
  });
  for (const std::string& line : ranks.lines()) EXPECT_THAT(line, StartsWith("loss "));
  for (const int64_t rank : {0, 1}) {
    EXPECT_THAT(ranks->next(rank), AllOf(StartsWith("failure: rank 2"), HasSubstr("left")));
  }
  ranks.expect_ends();
}

// In a forked child calls of all processes must be refused, and objects can be destroyed, e.g. when
// the child returns from main.
TEST(WorldFailure, AForkedChildHasNoPartInIt) {
  MasterPort port;
  RankProcesses ranks(3, [&](int64_t rank, const Say& say) {
    WorldRanks::become(rank, 3, port.number());
    auto world = std::make_unique<World>(World::from_environment(WorldRanks::quick()));
    auto pipe = std::make_unique<GPipe>(plain_model(), options(*world));
    say(step(*pipe));
    const pid_t child = fork();
    if (child == 0) {
      const std::string called = outcome([&] { return (*pipe)->parameter_hash(); });
      const std::string constructed = outcome([&] {
        const GPipe other(plain_model(), options(*world));
        return std::string("made");
      });
      pipe.reset();
      world.reset();
      const std::string expected = "exception: this World was made before fork()";
      _exit(called.find(expected) == 0 && constructed.find(expected) == 0 ? 0 : 1);
    }
    int status = 0;
    pid_t ended = 0;
    for (int i = 0; i < 1000 && ended == 0; ++i) {
      ended = waitpid(child, &status, WNOHANG);
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    if (ended == 0) {
      kill(child, SIGKILL);
      waitpid(child, nullptr, 0);
    }
    say(ended == 0 ? "the child hangs" : "the child ends with " + std::to_string(status));
    // The pipeline of the parent still works.
    say(step(*pipe));
  });
  for (int64_t rank = 0; rank < 3; ++rank) {
    const std::string first = ranks.next(rank);
    EXPECT_THAT(first, StartsWith("loss "));
    EXPECT_EQ(ranks.next(rank), "the child ends with 0");
    EXPECT_EQ(ranks.next(rank), first);
    EXPECT_TRUE(ranks.ends(rank));
  }
}

TEST(WorldFailure, WhatProcessesCannotDoIsRefusedWithTheWayToDoIt) {
  WorldRanks ranks(2, [](const World& world, const Say& say) {
    const auto make = [&](const GPipeOptions& pipe_options) {
      return outcome([&]() -> std::string {
        GPipe pipe(plain_model(), pipe_options);
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
      std::ostringstream stream;
      torch::save(pipe, stream);
      return "went well";
    }));
    say(outcome([&]() -> std::string {
      (void)pipe->sequential();
      return "made";
    }));
    say(outcome([&]() -> std::string {
      auto first = nn::Linear(4, 4);
      auto second = nn::Linear(4, 4);
      second->weight.set_data(first->weight.data().t());
      GPipe other(nn::Sequential(first, second), GPipeOptions({1, 1}).world(world));
      return "made";
    }));
    say(outcome([&]() -> std::string {
      clip_grad_norm_(pipe->parameters(), 1);
      return "went well";
    }));
    say(outcome([&]() -> std::string {
      auto shared = nn::BatchNorm1d(4);  // with buffers
      nn::Sequential tied(nn::Linear(4, 4), nn::Linear(4, 4));
      tied->ptr(1)->as<nn::Linear>()->register_module("shared", shared);
      tied->ptr(0)->as<nn::Linear>()->register_module("shared", shared);
      GPipe other(tied, GPipeOptions({1, 1}).world(world));
      return "made";
    }));
  });
  const auto both = [&](const std::string& part) {
    for (const std::string& line : ranks.lines()) EXPECT_THAT(line, HasSubstr(part));
  };
  both("the balance has 3 partitions, and there are 2 processes: say with GPipeOptions::placement");
  both("the balance has 1 partitions, and there are 2 processes");
  both("GPipeOptions::graphs are for a pipeline in one process");
  both("Train with step()");
  const std::vector<std::string> no_input = ranks.lines();
  EXPECT_THAT(no_input[0], HasSubstr("step was given no input tensor"));
  EXPECT_THAT(no_input[1], AllOf(StartsWith("failure: rank 0"), HasSubstr("no input tensor")));
  both("loss ");
  both("torch::save of a pipeline over several processes");
  both("sequential() of a pipeline over several processes");
  both("'1.weight' in process 1 has the same memory as '0.weight' in process 0");
  both("call clip_grad_norm_ of the pipeline");
  both("in process 0 is also");
  ranks.expect_ends();
}

// Layer 1 is in another process than layer 0, and uses a parameter or buffer of layer 0 without
// being a TiedLayer. The error must name that tensor.
TEST(WorldFailure, WhatALayerUsesOfAnotherProcessIsNamed) {
  using Function = std::function<torch::Tensor(torch::Tensor)>;
  using MakeFunction = std::function<Function(nn::BatchNorm1d)>;
  const std::string parameter = "uses the parameter '0.weight' of shape [4]";
  const std::vector<std::pair<MakeFunction, std::string>> cases = {
      {[](const auto& first) -> Function {
         return [=](const torch::Tensor& x) { return x.matmul(first->weight.diag()); };
       },
       parameter},
      {[](const auto& first) -> Function {
         return [=](const torch::Tensor& x) { return x * first->weight; };
       },
       parameter},
      {[](const auto& first) -> Function {
         return [=](const torch::Tensor& x) { return x * first->weight[0].template item<float>(); };
       },
       parameter},
      {[](const auto& first) -> Function {
         return [=](torch::Tensor x) { return nn::BatchNorm1d(first)->forward(std::move(x)); };
       },
       "uses the buffer '0.num_batches_tracked' of shape []"},
      {[](const auto& first) -> Function {
         return [=](const torch::Tensor& x) { return x * first->running_var; };
       },
       "uses the buffer '0.running_var' of shape [4]"},
      // This view of the weight was taken earlier, and would keep the values of the first step.
      {[](const auto& first) -> Function {
         return [row = first->weight.view({1, 4})](const torch::Tensor& x) { return x * row; };
       },
       parameter},
      {[](const auto& first) -> Function {
         return [part = first->weight.detach()[2]](const torch::Tensor& x) { return x * part; };
       },
       parameter},
      // A layer that uses the weight's shape but not its values is not refused.
      {[](const auto& first) -> Function {
         return
             [=](const torch::Tensor& x) { return x + torch::empty_like(first->weight).size(0); };
       },
       "loss "},
      // If the layer throws for another reason, its own error is reported as it is.
      {[](const auto& first) -> Function {
         return [=](const torch::Tensor& x) {
           (void)torch::empty_like(first->weight);
           return x.view({7});
         };
       },
       "shape '[7]' is invalid"},
  };
  WorldRanks ranks(2, [&](const World& world, const Say& say) {
    for (const auto& [make, text] : cases) {
      torch::manual_seed(1);
      const nn::BatchNorm1d first(4);
      GPipe pipe(nn::Sequential(first, testing::layer<torch::Tensor, torch::Tensor>(make(first)),
                                nn::Linear(4, 4)),
                 GPipeOptions({1, 2}).chunks(2).world(world));
      say(outcome([&] {
        return "loss " +
               std::to_string(
                   pipe->evaluate({torch::ones({8, 4})}, {torch::zeros({8, 4})}, loss).loss);
      }));
      say(step(pipe));
    }
    const nn::BatchNorm1d first(4);
    GPipe pipe(nn::Sequential(first, nn::Linear(4, 4)), GPipeOptions({1, 1}).world(world));
    say(outcome([&] {
      const LossFn with_weight = [&](const Tensors& outputs, const Tensors&) {
        return (outputs[0] * first->weight).mean();
      };
      return std::to_string(pipe->step({torch::ones({8, 4})}, {}, with_weight).loss);
    }));
  });
  for (const auto& [make, text] : cases) {
    for (const char* const call : {"evaluate", "step"}) {
      const std::string in_process_1 = ranks.lines()[1];
      EXPECT_THAT(in_process_1, HasSubstr(text)) << call;
      if (!absl::StartsWith(text, "uses ")) continue;
      EXPECT_THAT(in_process_1, AllOf(HasSubstr("layer 1 ('1'), in process 1, uses"),
                                      HasSubstr("that layer 0 ('0') has registered in process 0"),
                                      HasSubstr(text.find("buffer") == std::string::npos
                                                    ? "gpipe::TiedLayer"
                                                    : "Put both into one process")))
          << call;
    }
  }
  EXPECT_THAT(ranks.lines()[1],
              AllOf(HasSubstr("the loss function, in process 1, uses the parameter '0.weight'"),
                    HasSubstr("Compute what needs it in the last layer")));
  ranks.expect_ends();
}

}  // namespace
}  // namespace gpipe::distributed
