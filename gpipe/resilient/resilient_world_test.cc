// Tests of a ResilientRun over processes of which some kill themselves in a phase, so that one is
// left, which goes on alone.
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/utils.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/distributed/failure.h"
#include "gpipe/gpipe.h"
#include "gpipe/resilient/resilient_run.h"
#include "gpipe/saving/saving.h"
#include "gpipe/testing/processes/world_ranks.h"

namespace gpipe {
namespace {

using distributed::DistributedFailure;
using distributed::Fault;
using distributed::FaultKind;
using distributed::WorldRanks;
using Say = WorldRanks::Say;

constexpr int64_t kSteps = 8;

std::string new_path() {
  static int count = 0;
  return ::testing::TempDir() + "/resilient_world" + std::to_string(getpid()) + "-" +
         std::to_string(count++);
}

torch::nn::Sequential make_model() {
  torch::manual_seed(1);
  return torch::nn::Sequential(torch::nn::Linear(4, 4), torch::nn::Dropout(0.5),
                               torch::nn::Linear(4, 4));
}

ResilientParts parts_of(const torch::nn::Sequential& model, const World& world) {
  std::vector<int64_t> balance(static_cast<size_t>(world.size()), 1);
  balance.back() += 3 - world.size();
  ResilientParts parts;
  parts.pipe =
      GPipe(model, GPipeOptions(balance).chunks(2).groups(1).cpu_threads_per_stage(1).world(world));
  parts.optimizer = std::make_shared<torch::optim::Adam>(parts.pipe->local_parameters());
  return parts;
}

ResilientParts make(const World& world) { return parts_of(make_model(), world); }

void train(ResilientParts& parts, int64_t step) {
  parts.optimizer->zero_grad();
  const at::Tensor rows = at::linspace(0, 1 + static_cast<double>(step), 16).view({4, 4});
  parts.pipe->step({rows}, {rows}, [](const Tensors& outputs, const Tensors& targets) {
    return torch::nn::functional::mse_loss(outputs[0], targets[0]);
  });
  parts.optimizer->step();
}

[[noreturn]] void die() {
  (void)raise(SIGKILL);
  std::abort();
}

ResilientOptions steps(int64_t snapshot_every, const std::string& path = "") {
  ResilientOptions options;
  options.steps = kSteps;
  options.snapshot_every = snapshot_every;
  options.path = path;
  options.save_every = 3;
  options.world.announce = false;
  return options;
}

// Meets as `world` first, and then alone. `lost`: how many meetings fail before that.
ResilientRun::Meet meets(const World& world, int64_t lost = 0) {
  return [first = std::make_shared<World>(world), lost](const WorldOptions&,
                                                        const MeetAgainOptions&) mutable {
    if (first) return Meeting{std::exchange(*std::exchange(first, nullptr), World()), 1, {}};
    if (lost-- > 0) {
      Fault fault;
      fault.kind = FaultKind::kDeath;
      fault.rank = 0;
      throw DistributedFailure({fault});
    }
    return Meeting{World(), 2, {}};
  };
}

std::string undisturbed() {
  ResilientParts parts = make(World());
  for (int64_t step = 0; step < kSteps; ++step) train(parts, step);
  return parts.pipe->parameter_hash();
}

// Both holders of a state die before the first checkpoint is written. The state is that of make().
TEST(ResilientWorld, BeginsAnewIfTheFirstSnapshotIsLost) {
  const std::string path = new_path();
  WorldRanks ranks(3, [&](const World& world, const Say& say) {
    ResilientOptions options = steps(10, path);
    options.on_phase = [&, rank = world.rank()](const std::string& phase) {
      if (rank != 0 && phase == "save") die();
    };
    ResilientRun run(options, meets(world), /*is_resilient=*/true);
    say(distributed::outcome([&] {
      std::string hash;
      run.run(make, train,
              [&](ResilientParts& parts, int64_t) { hash = parts.pipe->parameter_hash(); });
      return std::to_string(run.counts().recoveries) + " " + hash;
    }));
    say(undisturbed());
  });
  const std::string result = ranks->next(0);
  EXPECT_EQ(result, "1 " + ranks->next(0));
  EXPECT_TRUE(ranks->ends(0));
}

// A program under another launcher must not look like one that goes on after deaths.
TEST(ResilientWorld, SaysOnceThatADeathEndsARunWithoutAMeetingPlace) {
  WorldRanks ranks(2, [](const World& world, const Say& say) {
    ResilientOptions options = steps(3);
    options.world.announce = true;
    ResilientRun run(options, meets(world), /*is_resilient=*/false);
    std::stringstream lines;
    std::streambuf* const error = std::cerr.rdbuf(lines.rdbuf());
    run.run(make, train);
    std::cerr.rdbuf(error);
    const std::string all = lines.str();
    say(all.substr(0, all.find(';')) + " " + std::to_string(run.counts().snapshots));
  });
  EXPECT_EQ(ranks->next(0),
            "ResilientRun: no snapshots are taken, and a death ends the run: no launcher keeps a "
            "meeting place 0");
  EXPECT_EQ(ranks->next(1), " 0");
}

// Layers of the kept model that rank 1 had have no values on rank 0.
TEST(ResilientWorld, RefusesAModelThatIsKept) {
  WorldRanks ranks(2, [&](const World& world, const Say& say) {
    const torch::nn::Sequential model = make_model();
    ResilientRun run(steps(10), meets(world), /*is_resilient=*/true);
    say(distributed::outcome([&, rank = world.rank()] {
      run.run([&](const World& met) { return parts_of(model, met); },
              [&](ResilientParts& parts, int64_t step) {
                if (rank == 1 && step == 2) die();
                train(parts, step);
              });
      return std::string("has run");
    }));
  });
  EXPECT_EQ(ranks->next(0),
            "value error: ResilientRun: make() returned a pipeline with a parameter of the world "
            "before, '0.weight', which is trained, or has no values in this process; make the "
            "model anew in make()");
  EXPECT_TRUE(ranks->ends(0));
}

TEST(ResilientWorld, WritesTheCheckpointDuringWhichAProcessDied) {
  const std::string path = new_path();
  WorldRanks ranks(2, [&](const World& world, const Say& say) {
    ResilientOptions options = steps(3, path);
    int64_t saves = 0;
    options.on_phase = [&, rank = world.rank()](const std::string& phase) {
      if (phase == "save" && ++saves == 2 && rank == 1) die();
    };
    ResilientRun run(options, meets(world), /*is_resilient=*/true);
    run.run(make, [&](ResilientParts& parts, int64_t step) {
      if (step >= 3) {
        say("step " + std::to_string(step) + " behind the checkpoint of " +
            std::to_string(read_progress(path).step));
      }
      train(parts, step);
    });
  });
  EXPECT_EQ(ranks->next(0), "step 3 behind the checkpoint of 3");
  EXPECT_EQ(ranks->next(0), "step 4 behind the checkpoint of 3");
}

// The lines that rank 1 prints after rank 0 has died at the end of step 2, before its line of that
// step.
std::string lines_after_death(bool logs_first, int64_t lost_meetings) {
  WorldRanks ranks(2, [&](const World& world, const Say& say) {
    ResilientRun run(steps(10), meets(world, lost_meetings), /*is_resilient=*/true);
    std::stringstream lines;
    std::streambuf* const output = std::cout.rdbuf(lines.rdbuf());
    run.run(make, [&, rank = world.rank()](ResilientParts& parts, int64_t step) {
      if (step >= 4) return train(parts, step);
      if (logs_first) run.log("begin " + std::to_string(step));
      train(parts, step);
      if (rank == 0 && step == 2) die();
      run.log("end " + std::to_string(step));
    });
    std::cout.rdbuf(output);
    std::string all = lines.str();
    std::replace(all.begin(), all.end(), '\n', ',');
    say(all);
  });
  return ranks->next(1);
}

TEST(ResilientWorld, PrintsTheLinesThatRank0HasNotPrinted) {
  EXPECT_EQ(lines_after_death(false, 0), "end 2,end 3,");
  EXPECT_EQ(lines_after_death(false, 1), "end 2,end 3,");
  EXPECT_EQ(lines_after_death(true, 0), "begin 2,end 2,begin 3,end 3,");
}

}  // namespace
}  // namespace gpipe
