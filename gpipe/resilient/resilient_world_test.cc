// Tests of a ResilientRun over processes of which some kill themselves in a phase, so that one is
// left, which goes on alone.
#include <ATen/CPUGeneratorImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/utils.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <iostream>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gpipe/distributed/failure.h"
#include "gpipe/distributed/sockets/master_port.h"
#include "gpipe/gpipe.h"
#include "gpipe/resilient/resilient_run.h"
#include "gpipe/saving/checkpoint_files.h"
#include "gpipe/saving/saving.h"
#include "gpipe/testing/processes/world_ranks.h"

namespace {
// Called when a process has sent its part of a snapshot and has its partner's.
std::function<void()> when_parts_are_there;
}  // namespace

// CRC-32 instead of zlib's in the whole program, whether zlib is linked as an archive or shared.
// The metadata of a snapshot, whose first key is "format", are the last that it fingerprints, once
// the parts have arrived.
uLong crc32_z(uLong crc, const Bytef* data, z_size_t bytes) {
  constexpr std::string_view kFirst = "format=";
  if (when_parts_are_there != nullptr && data != nullptr && bytes > kFirst.size() &&
      std::equal(kFirst.begin(), kFirst.end(), data)) {
    std::exchange(when_parts_are_there, nullptr)();
  }
  if (data == nullptr) return 0;
  uint32_t rest = ~static_cast<uint32_t>(crc);
  for (const Bytef* byte = data; byte != data + bytes; ++byte) {
    rest ^= *byte;
    for (int bit = 0; bit < 8; ++bit) rest = (rest >> 1) ^ ((rest & 1) != 0 ? 0xEDB88320U : 0);
  }
  return static_cast<uint32_t>(~rest);
}

namespace gpipe {
namespace {

using distributed::DistributedFailure;
using distributed::Fault;
using distributed::FaultKind;
using distributed::WorldRanks;
using ::testing::HasSubstr;
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
            "before, '0.weight', which has been trained or changed, or has no values in this "
            "process; make the model anew in make()");
  EXPECT_TRUE(ranks->ends(0));
}

// Rank 1 dies before step 5, after a snapshot of step 0 and a checkpoint of step 3. Compares the
// result of rank 0 with an undisturbed run, and returns how many steps it has repeated.
int64_t repeated_after_death(const std::function<void(const std::string& path)>& before_death) {
  const std::string path = new_path();
  WorldRanks ranks(2, [&](const World& world, const Say& say) {
    ResilientRun run(steps(10, path), meets(world), /*is_resilient=*/true);
    std::string hash;
    run.run(
        make,
        [&, rank = world.rank()](ResilientParts& parts, int64_t step) {
          if (rank == 1 && step == 5) {
            before_death(path);
            die();
          }
          train(parts, step);
        },
        [&](ResilientParts& parts, int64_t) { hash = parts.pipe->parameter_hash(); });
    say(std::to_string(run.counts().repeated_steps) + " " + hash);
    say(undisturbed());
  });
  const std::string result = ranks->next(0);
  const std::string undisturbed_hash = ranks->next(0);
  EXPECT_EQ(undisturbed_hash.size(), 16U) << undisturbed_hash;
  EXPECT_EQ(result.substr(result.find(' ') + 1), undisturbed_hash);
  return std::atoll(result.c_str());
}

TEST(ResilientWorld, GoesOnFromACheckpointThatIsNewerThanTheSnapshot) {
  EXPECT_EQ(repeated_after_death([](const std::string&) {}), 2);  // from step 3, not from step 0
}

TEST(ResilientWorld, GoesOnFromASnapshotIfTheNewerCheckpointIsDamaged) {
  EXPECT_EQ(repeated_after_death([](const std::string& path) {
              std::filesystem::resize_file(path + "/" + internal::part_name("optimizer", 1, 2), 9);
            }),
            5);
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

// A world of three loses its rank 1, which is started again and comes behind the others. Then rank
// 0 dies while the snapshot that follows is complete on the others. It has the same values as the
// one before, and so the same fingerprint, but other processes hold its files: what rank 0 and the
// process that is gone held before is now on rank 1.
TEST(ResilientWorld, RecoversFromTheFilesOfTwoEqualSnapshots) {
  const distributed::MasterPort second, third;
  std::array<int, 2> pipe_ends{};
  ASSERT_EQ(pipe(pipe_ends.data()), 0);
  const auto world_of = [](int64_t rank, int64_t size, const distributed::MasterPort& port) {
    WorldRanks::become(rank, size, port.number());
    return World::from_environment(WorldRanks::quick());
  };
  WorldRanks ranks(3, [&](const World& first, const Say& say) {
    const int64_t number = first.rank();
    auto worlds = std::make_shared<std::vector<std::function<Meeting()>>>();
    worlds->push_back([world = std::make_shared<World>(first)] {
      return Meeting{std::exchange(*world, World()), 1, {-1, -1, -1}};
    });
    worlds->push_back([&, number]() -> Meeting {
      return {world_of(number == 1 ? 2 : number / 2, 3, second), 2, {0, 2, -1}};
    });
    worlds->push_back([&, number]() -> Meeting {
      return {world_of(number == 1 ? 1 : 0, 2, third), 3, {1, 2}};
    });
    bool has_lost = false;
    const auto run_once = [&](bool is_replaced) {
      ResilientOptions options = steps(2);
      options.on_phase = [&](const std::string& phase) {
        if (phase != "snapshot" || !has_lost) return;
        when_parts_are_there = [&] {
          char byte = 0;
          if (number != 0) {
            ASSERT_EQ(write(pipe_ends[1], &byte, 1), 1);
            return;
          }
          for (int others = 0; others < 2; ++others) ASSERT_EQ(read(pipe_ends[0], &byte, 1), 1);
          die();
        };
      };
      std::string hash;
      ResilientRun run(
          options,
          [&, is_replaced](const WorldOptions&, const MeetAgainOptions&) {
            if (is_replaced && has_lost) throw std::runtime_error("is gone");
            const auto next = worlds->front();
            worlds->erase(worlds->begin());
            return next();
          },
          /*is_resilient=*/true);
      run.run(
          make,
          [&](ResilientParts& parts, int64_t step) {
            if (step == 3 && !std::exchange(has_lost, true)) {
              Fault fault;
              fault.kind = FaultKind::kDeath;
              throw DistributedFailure({fault});
            }
            train(parts, step);
          },
          [&](ResilientParts& parts, int64_t) { hash = parts.pipe->parameter_hash(); });
      return hash;
    };
    if (number == 1) {
      EXPECT_THROW(run_once(/*is_replaced=*/true), std::runtime_error);
      internal::runs_of_process() = 0;
    }
    say(distributed::outcome([&] { return run_once(/*is_replaced=*/false); }));
    say(undisturbed());
  });
  const std::string result = ranks->next(2);
  EXPECT_EQ(result.size(), 16U) << result;  // a hash
  EXPECT_EQ(result, ranks->next(2));
  EXPECT_EQ(ranks->next(1), result);
}

// A layer that drops by a generator of its own.
struct OwnDropImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& input) {
    return input * at::empty_like(input).bernoulli_(0.8, generator);
  }
  at::Generator generator = at::detail::createCPUGenerator(7);
};
TORCH_MODULE(OwnDrop);

// Only rank 1 has the layer, and only it can see that a new process would draw from the start.
TEST(ResilientWorld, RefusesALayersGeneratorThatGoesOnFromStepToStep) {
  for (const bool seeds : {false, true}) {
    WorldRanks ranks(2, [&](const World& world, const Say& say) {
      OwnDrop drop{nullptr};
      ResilientRun run(steps(10), meets(world), /*is_resilient=*/true);
      say(distributed::outcome([&] {
        run.run(
            [&](const World& met) {
              drop = OwnDrop();
              return parts_of(
                  torch::nn::Sequential(torch::nn::Linear(4, 4), drop, torch::nn::Linear(4, 4)),
                  met);
            },
            [&](ResilientParts& parts, int64_t step) {
              if (seeds) drop->generator.set_current_seed(static_cast<uint64_t>(step));
              train(parts, step);
            });
        return std::string("has run");
      }));
    });
    const std::string first = ranks->next(0), second = ranks->next(1);
    if (seeds) {
      EXPECT_EQ(first + ", " + second, "has run, has run");
      continue;
    }
    EXPECT_THAT(second, HasSubstr("ResilientRun: layer 1 gives its operators a generator"));
    EXPECT_THAT(first, HasSubstr("layer 1 gives its operators a generator"));
  }
}

// A process that is started again while the others make their second run begins with the first.
TEST(ResilientWorld, RefusesAProcessThatMakesAnotherRun) {
  WorldRanks ranks(2, [&](const World& world, const Say& say) {
    internal::runs_of_process() = world.rank() == 0 ? 1 : 0;
    ResilientRun run(steps(10), meets(world), /*is_resilient=*/true);
    say(distributed::outcome([&] {
      run.run(make, train);
      return std::string("has run");
    }));
  });
  for (const int64_t rank : {0, 1}) {
    EXPECT_EQ(ranks->next(rank),
              "value error: ResilientRun: rank 0 is in run 2 of its process, and rank 1 in run 1: "
              "a process that is started again begins with its first run, so make one "
              "ResilientRun in a program");
  }
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
