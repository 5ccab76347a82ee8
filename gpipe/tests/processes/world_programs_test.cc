// Runs random programs (gpipe/testing/programs) over real processes, and many more over messages
// within one process. The results of each process are compared with the plain model, bit by bit.
//
//   GPIPE_TEST_SEED          from which seed on programs are drawn
//   GPIPE_PROGRAMS           how many, for each number of processes
//   GPIPE_LOOPBACK_PROGRAMS  how many over messages within a process

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <cstdint>
#include <iostream>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/checkpoint.h"
#include "gpipe/gpipe.h"
#include "gpipe/testing/device.h"
#include "gpipe/testing/function_layer.h"
#include "gpipe/testing/number_from.h"
#include "gpipe/testing/processes/loopback_processes.h"
#include "gpipe/testing/processes/world_ranks.h"
#include "gpipe/testing/programs/compare.h"
#include "gpipe/testing/programs/layer.h"
#include "gpipe/testing/programs/program.h"

namespace gpipe::distributed {
namespace {

using testing::number_from;
using testing::programs::Outcome;
using testing::programs::Program;
using Say = WorldRanks::Say;

std::string name_of(Outcome::Kind kind) {
  switch (kind) {
    case Outcome::kEqual:
      return "equal";
    case Outcome::kEqualButSums:
      return "equal up to the order of sums";
    case Outcome::kInvalid:
      return "invalid";
    case Outcome::kRefused:
      return "refused";
    case Outcome::kDifferent:
      return "different";
    case Outcome::kEqualButCopies:
      return "equal except for copies between processes";
    case Outcome::kUnrepeatable:  // on GPUs only
      return "unrepeatable";
    case Outcome::kThrows:
      break;
  }
  return "threw";
}

// The first `count` programs that can run on this world.
std::vector<Program> programs_for(const World& world, uint64_t count) {
  std::vector<Program> programs;
  for (uint64_t seed = number_from("GPIPE_TEST_SEED", 20261125); programs.size() < count; ++seed) {
    // Layers that change their gradient in place are left out. Such a layer also changes the
    // gradient of the tensor's other routes if they share memory, and over processes they do not
    // (docs/guide/24-processes.md).
    Program program = testing::programs::random_program(
        seed, {"ScaleGradientInPlace", "gradient_scaled_in_place"});
    if (testing::programs::can_run(program, world)) programs.push_back(std::move(program));
  }
  return programs;
}

void run_programs(int64_t processes, uint64_t count) {
  const World asked(/*processes=*/nullptr, /*rank=*/0, processes);  // made for its size alone
  const std::vector<Program> programs = programs_for(asked, count);
  WorldRanks ranks(processes, [&](const World& world, const Say& say) {
    for (const Program& program : programs) {
      const Outcome outcome = testing::programs::run(program, world);
      say(name_of(outcome.kind) + (outcome.failed() ? ": " + outcome.what : ""));
    }
  });
  std::map<std::string, uint64_t> counts;
  for (const Program& program : programs) {
    // The lines of all processes, because if the result of one differs, the others fail, too.
    std::string failures;
    for (int64_t rank = 0; rank < processes; ++rank) {
      const std::string line = ranks->next(rank);
      const std::string word = line.substr(0, line.find(':'));
      ++counts[word];
      static const std::set<std::string> fine = {"equal",
                                                 "equal up to the order of sums",
                                                 "equal except for copies between processes",
                                                 "invalid",
                                                 "refused",
                                                 "unrepeatable"};
      if (fine.count(word) != 0) continue;
      failures += "rank " + std::to_string(rank) + ": " + line + "\n";
    }
    ASSERT_EQ(failures, "") << "seed " << program.seed << "\n"
                            << testing::programs::to_text(program);
  }
  std::cout << count << " programs over " << processes << " processes, counted in each:";
  for (const auto& [word, times] : counts) std::cout << " " << times << " " << word;
  std::cout << "\n";
  // At least half of the outcomes must be "equal". With fewer the test would show less than it
  // seems to.
  EXPECT_GE(counts["equal"], count * static_cast<uint64_t>(processes) / 2);
  ranks.expect_ends();
}

// Two layers in two processes have registered the same weight. One process owns the weight and gets
// the whole gradient. The other process has a copy, which gets no gradient and has the owner's
// values in each call.
TEST(WorldPrograms, CopiesOfATiedWeight) {
  Program program;
  program.layers.resize(2);
  for (testing::programs::Layer& layer : program.layers) {
    layer.text = "Tied()";
    layer.make = [](testing::programs::Workshop& workshop) {
      const torch::Tensor weight = workshop.tied_parameter(0, {3});
      auto module = testing::layer<torch::Tensor, torch::Tensor>(
          [weight](torch::Tensor x) { return torch::sin(x * weight); });
      module->register_parameter("weight", weight);
      return torch::nn::AnyModule(module);
    };
  }
  program.inputs = {testing::programs::Input{{3}, false, true}};
  program.balance = {1, 1};
  program.checkpoints = {Checkpoint::kNever, Checkpoint::kAlways};
  program.chunks = 3;
  program.rows = 6;
  program.calls = 3;
  program.optimizer = testing::programs::Optimizer::kMomentum;
  for (const auto entry : {testing::programs::Entry::kStep, testing::programs::Entry::kStepGPipe}) {
    program.entry = entry;
    // Which process owns the tied weight depends on the seed.
    for (program.seed = 4; program.seed < 8; ++program.seed) {
      WorldRanks ranks(2, [&](const World& world, const Say& say) {
        const Outcome outcome = testing::programs::run(program, world);
        say(name_of(outcome.kind) + (outcome.failed() ? ": " + outcome.what : ""));
      });
      EXPECT_THAT(ranks.lines(), ::testing::Each("equal")) << "seed " << program.seed;
      ranks.expect_ends();
    }
  }
}

// How many programs to run: fewer on the fake accelerator, which is slow because it checks each
// access to memory.
uint64_t programs(uint64_t on_cpu) { return testing::for_gpus() ? on_cpu / 4 : on_cpu; }

TEST(WorldPrograms, TwoProcesses) { run_programs(2, number_from("GPIPE_PROGRAMS", programs(200))); }
TEST(WorldPrograms, ThreeProcesses) {
  run_programs(3, number_from("GPIPE_PROGRAMS", programs(200)));
}

TEST(WorldPrograms, FourProcesses) { run_programs(4, number_from("GPIPE_PROGRAMS", programs(40))); }

TEST(WorldPrograms, MessagesWithinAProcess) {
  // The number of threads is as in the tests with processes, because sums depend on it.
  at::set_num_threads(1);
  const auto loopback = std::make_shared<LoopbackProcesses>();
  const World world(loopback, /*rank=*/0, /*size=*/1);
  const uint64_t count = number_from("GPIPE_LOOPBACK_PROGRAMS", programs(500));
  std::map<std::string, uint64_t> counts;
  for (const Program& program : programs_for(world, count)) {
    const Outcome outcome = testing::programs::run(program, world);
    ++counts[name_of(outcome.kind)];
    ASSERT_FALSE(outcome.failed()) << "seed " << program.seed << ": " << outcome.what << "\n"
                                   << testing::programs::to_text(program);
  }
  std::cout << count << " programs, " << loopback->moved() << " messages:";
  for (const auto& [word, times] : counts) std::cout << " " << times << " " << word;
  std::cout << "\n";
  EXPECT_GE(counts["equal"], count / 2);
  EXPECT_GT(loopback->moved(), static_cast<int64_t>(count));
}

// All settings are compared in one round trip, and another one ends the call.
TEST(WorldPrograms, APipelineIsMadeInTwoRoundTrips) {
  const auto loopback = std::make_shared<LoopbackProcesses>();
  const GPipe pipe(torch::nn::Sequential(torch::nn::Linear(2, 2), torch::nn::Linear(2, 2)),
                   GPipeOptions({1, 1}).chunks(2).world(World(loopback, /*rank=*/0, /*size=*/1)));
  EXPECT_EQ(loopback->round_trips(), 2);
}

}  // namespace
}  // namespace gpipe::distributed
