#include "gpipe/saving/snapshot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/utils.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/testing/live_memory.h"
#include "gpipe/testing/processes/world_ranks.h"
#include "gpipe/testing/tied_product.h"
#include "gpipe/zero_optimizer.h"

namespace gpipe {
namespace {

using distributed::outcome;
using distributed::WorldRanks;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using Balance = std::vector<int64_t>;
using Optimizer = std::unique_ptr<torch::optim::Optimizer>;
using Make = Optimizer (*)(GPipe& pipe);

Optimizer adam(GPipe& pipe) {
  return std::make_unique<torch::optim::Adam>(pipe->local_parameters(),
                                              torch::optim::AdamOptions(0.05));
}
Optimizer adamw(GPipe& pipe) {
  return std::make_unique<torch::optim::AdamW>(
      pipe->local_parameters(), torch::optim::AdamWOptions(0.05).weight_decay(0.1).amsgrad(true));
}
Optimizer zero(GPipe& pipe) {
  return std::make_unique<ZeroOptimizer>(pipe, [](std::vector<at::Tensor> parameters) {
    return std::make_unique<torch::optim::Adam>(std::move(parameters),
                                                torch::optim::AdamOptions(0.05));
  });
}

// A pipeline with all that a snapshot must hold: batch norm has buffers, dropout draws random
// numbers, and the first and last layer share a weight.
GPipe pipeline(const World& world, Balance balance, int64_t width = 5) {
  torch::manual_seed(1);
  const torch::nn::Linear first(4, width);
  return {
      torch::nn::Sequential(first, torch::nn::BatchNorm1d(width), torch::nn::Dropout(0.5),
                            torch::nn::Linear(width, width), testing::TiedProduct(first->weight)),
      GPipeOptions(std::move(balance))
          .cpu_threads_per_stage(1)
          .chunks(4)
          .groups(4)
          .deferred_batch_norm(true)
          .world(world)};
}

void train(GPipe& pipe, torch::optim::Optimizer& optimizer, int64_t first, int64_t last) {
  const RowRange here = pipe->world().rows(8, pipe->chunks());
  for (int64_t step = first; step < last; ++step) {
    pipe->zero_grad();
    const at::Tensor input = at::linspace(-1, 1 + 0.1 * static_cast<double>(step), 32)
                                 .view({8, 4})
                                 .slice(0, here.begin, here.end);
    const at::Tensor target = at::linspace(0, 1, 32).view({8, 4}).slice(0, here.begin, here.end);
    pipe->step({input}, {target}, [](const Tensors& outputs, const Tensors& targets) {
      return torch::nn::functional::mse_loss(outputs[0], targets[0]);
    });
    optimizer.step();
  }
}

// The hash of the parameters after six steps without a loss.
std::string undisturbed(Make make) {
  GPipe pipe = pipeline(World(), {5});
  const Optimizer optimizer = make(pipe);
  torch::manual_seed(7);
  train(pipe, *optimizer, 0, 6);
  return pipe->parameter_hash();
}

Snapshot after_three_steps(const World& world, Balance balance, Make make) {
  GPipe pipe = pipeline(world, std::move(balance));
  const Optimizer optimizer = make(pipe);
  torch::manual_seed(7);
  train(pipe, *optimizer, 0, 3);
  return take_snapshot(pipe, *optimizer, {3, 24, {}, "some flags"});
}

std::string hash_of_the_rest(const World& world, Balance balance, Make make, const Snapshot& held) {
  GPipe pipe = pipeline(world, std::move(balance));
  const Optimizer optimizer = make(pipe);
  torch::manual_seed(99);
  const Progress progress = load_snapshot(pipe, *optimizer, held);
  if (progress.step != 3 || progress.rows != 24 || progress.settings != "some flags") {
    return "another progress";
  }
  train(pipe, *optimizer, 3, 6);
  return pipe->parameter_hash();
}

std::string bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

TEST(Snapshot, LetsARunGoOnUnderAnotherBalance) {
  for (const Make make : {adam, adamw, zero}) {
    const Snapshot snapshot = after_three_steps(World(), {5}, make);
    EXPECT_EQ(snapshot.progress().step, 3);
    EXPECT_EQ(hash_of_the_rest(World(), {3, 2}, make, snapshot), undisturbed(make));
    EXPECT_EQ(hash_of_the_rest(World(), {1, 1, 1, 2}, make, snapshot), undisturbed(make));
  }
}

TEST(Snapshot, HasTheFilesOfACheckpoint) {
  const std::string path = ::testing::TempDir() + "/snapshot" + std::to_string(getpid());
  GPipe pipe = pipeline(World(), {3, 2});
  const Optimizer optimizer = adam(pipe);
  train(pipe, *optimizer, 0, 2);
  save_checkpoint(pipe, *optimizer, {2, 16}, path);
  const Snapshot snapshot = take_snapshot(pipe, *optimizer, {2, 16});
  int64_t bytes = 0;
  for (const auto& [name, image] : snapshot.images()) {
    const std::string file = bytes_of(path + "/" + name);
    // A snapshot does not count the eight bytes of a file that say the length of its header.
    bytes += static_cast<int64_t>(file.size()) - 8;
    ASSERT_EQ(file.size(), 8 + image.header.size() + image.data.nbytes()) << name;
    EXPECT_EQ(file.substr(8, image.header.size()), image.header);
    EXPECT_EQ(
        file.substr(8 + image.header.size()),
        std::string(static_cast<const char*>(image.data.const_data_ptr()), image.data.nbytes()));
  }
  EXPECT_EQ(snapshot.files().size(), 3);
  EXPECT_EQ(snapshot.bytes(), bytes);
}

TEST(Snapshot, KeepsItsValuesWhileTheRunGoesOn) {
  GPipe pipe = pipeline(World(), {5});
  const Optimizer optimizer = adam(pipe);
  torch::manual_seed(7);
  train(pipe, *optimizer, 0, 3);
  const Snapshot snapshot = take_snapshot(pipe, *optimizer, {3, 24, {}, "some flags"});
  train(pipe, *optimizer, 3, 6);
  const std::string hash = pipe->parameter_hash();
  // The same pipeline goes back to the snapshot and makes the three steps again, with the same
  // result.
  load_snapshot(pipe, *optimizer, snapshot);
  train(pipe, *optimizer, 3, 6);
  EXPECT_EQ(pipe->parameter_hash(), hash);
}

// Before the first step the optimizer has no states yet.
TEST(Snapshot, PlansTheMemoryOfTheStatesThatCome) {
  for (const Make make : {adam, adamw, zero}) {
    GPipe pipe = pipeline(World(), {5}, /*width=*/200);
    const Optimizer optimizer = make(pipe);
    std::vector<int64_t> planned, taken;
    for (int64_t step = 0; step < 2; ++step) {
      internal::take_snapshot(pipe, *optimizer, {step, 8 * step},
                              [&](const Snapshot& snapshot, int64_t planned_bytes) {
                                taken.push_back(snapshot.bytes());
                                planned.push_back(planned_bytes);
                              });
      train(pipe, *optimizer, step, step + 1);
    }
    EXPECT_LT(taken[0], taken[1] / 2);
    EXPECT_NEAR(static_cast<double>(planned[0]), static_cast<double>(taken[1]), 0.01 * taken[1]);
    EXPECT_EQ(planned[1], taken[1]);
  }
}

TEST(Snapshot, IsCheckedAsACheckpointIs) {
  const Snapshot snapshot = after_three_steps(World(), {5}, adam);
  GPipe wider = pipeline(World(), {5}, 6);
  const Optimizer of_wider = adam(wider);
  const std::string before = wider->parameter_hash();
  EXPECT_THAT([&] { load_snapshot(wider, *of_wider, snapshot); },
              ThrowsMessage<c10::ValueError>(HasSubstr("F32 [5, 4]")));
  EXPECT_EQ(wider->parameter_hash(), before);
  GPipe pipe = pipeline(World(), {5});
  const Optimizer other = adamw(pipe);
  EXPECT_THAT([&] { load_snapshot(pipe, *other, snapshot); },
              ThrowsMessage<c10::ValueError>(HasSubstr("AdamW")));
  EXPECT_THAT([&] { load_snapshot(pipe, *other, Snapshot()); },
              ThrowsMessage<c10::ValueError>(HasSubstr("an empty snapshot")));
  torch::optim::LBFGS lbfgs(pipe->parameters());
  EXPECT_THAT([&] { take_snapshot(pipe, lbfgs, {}); },
              ThrowsMessage<c10::NotImplementedError>(HasSubstr("LBFGS")));
  // A byte that changes in memory is noticed.
  internal::CheckpointImages damaged = snapshot.images();
  damaged.at("model.safetensors").data = damaged.at("model.safetensors").data.clone();
  damaged.at("model.safetensors").data[0] += 1;
  EXPECT_THAT([&] { load_snapshot(pipe, *other, Snapshot(damaged)); },
              ThrowsMessage<std::runtime_error>(HasSubstr("when it was saved")));
}

TEST(Snapshot, PartnersAreOnOtherHostsIfTheyCan) {
  EXPECT_EQ(internal::partner_distance({"a", "a", "a"}), 1);
  EXPECT_EQ(internal::partner_distance({"a", "b", "c"}), 1);
  EXPECT_EQ(internal::partner_distance({"a", "a", "b", "b"}), 2);
  EXPECT_EQ(internal::partner_distance({"a", "a", "b", "b", "c", "c"}), 2);
  EXPECT_EQ(internal::partner_distance({"a", "a", "a", "b"}), 1);
}

// Four processes take a snapshot. Then one after the other plays a new process, which holds
// nothing. Each time the run must end with the same bits.
TEST(WorldSnapshot, GivesNewProcessesWhatPartnersHold) {
  const std::string want = undisturbed(adam);
  WorldRanks ranks(4, [](const World& world, const WorldRanks::Say& say) {
    const Snapshot held = after_three_steps(world, {1, 1, 1, 2}, adam);
    for (int64_t lost = 0; lost < 4; ++lost) {
      say(hash_of_the_rest(world, {1, 1, 1, 2}, adam, world.rank() == lost ? Snapshot() : held));
    }
    // Now two processes that are not partners are new, and the model is cut otherwise.
    say(hash_of_the_rest(world, {2, 1, 1, 1}, adam, world.rank() % 2 == 0 ? Snapshot() : held));
  });
  for (int turn = 0; turn < 5; ++turn) EXPECT_THAT(ranks.lines(), Each(want));
  ranks.expect_ends();
}

TEST(WorldSnapshot, PlansTheMemoryForItsPartnerToo) {
  WorldRanks ranks(4, [](const World& world, const WorldRanks::Say& say) {
    for (const Make make : {adam, zero}) {
      for (const World& layout : {world.grid(1, 4), world.grid(2, 2)}) {
        GPipe pipe = pipeline(layout, layout.replicas() == 1 ? Balance{1, 1, 1, 2} : Balance{3, 2},
                              /*width=*/200);
        const Optimizer optimizer = make(pipe);
        int64_t planned = 0, taken = 0;
        const auto arrived = [&](const Snapshot& snapshot, int64_t planned_bytes) {
          if (planned == 0) planned = planned_bytes;
          taken = snapshot.bytes();
        };
        internal::take_snapshot(pipe, *optimizer, {}, arrived);
        train(pipe, *optimizer, 0, 1);
        internal::take_snapshot(pipe, *optimizer, {1, 8}, arrived);
        const double share = static_cast<double>(planned) / static_cast<double>(taken);
        say(share > 0.95 && share < 1.05
                ? "as planned"
                : std::to_string(planned) + " of " + std::to_string(taken));
      }
    }
  });
  for (int turn = 0; turn < 4; ++turn) EXPECT_THAT(ranks.lines(), Each("as planned"));
  ranks.expect_ends();
}

// Of four processes one is lost, and its partner and another one leave. The state of the lost one,
// which only its partner holds, and those of the others must stay.
TEST(WorldSnapshot, ProcessesThatLeaveHandOverWhatOnlyTheyHold) {
  const std::string want = undisturbed(adam);
  WorldRanks ranks(4, [](const World& world, const WorldRanks::Say& say) {
    const Snapshot taken = after_three_steps(world, {1, 1, 1, 2}, adam);
    const bool is_new = world.rank() == 1;  // its partner is rank 2
    const Snapshot held = internal::hand_over(world, is_new ? Snapshot() : taken, 2);
    say(hash_of_the_rest(world, {2, 1, 1, 1}, adam, world.rank() < 2 ? held : Snapshot()));
  });
  EXPECT_THAT(ranks.lines(), Each(want));
  ranks.expect_ends();
}

TEST(WorldSnapshot, SaysWhichStateIsLost) {
  WorldRanks ranks(4, [](const World& world, const WorldRanks::Say& say) {
    const Snapshot held = after_three_steps(world, {1, 1, 1, 2}, adam);
    const bool is_new = world.rank() == 1 || world.rank() == 2;  // 2 is the partner of 1
    say(outcome([&] {
      return hash_of_the_rest(world, {1, 1, 1, 2}, adam, is_new ? Snapshot() : held);
    }));
  });
  EXPECT_THAT(ranks.lines(), Each(HasSubstr("no process holds model-00002-of-00004.safetensors, "
                                            "optimizer-00002-of-00004.safetensors")));
}

// Two replicas of two processes each. Each replica has all files, so nothing is sent, unless a
// ZeroOptimizer keeps each state in one replica only.
TEST(WorldSnapshot, OverReplicasOnlyWhatExistsOnceIsSent) {
  const std::string want = undisturbed(adam);
  WorldRanks ranks(4, [](const World& world, const WorldRanks::Say& say) {
    const World grid = world.grid(2, 2);
    for (const Make make : {adam, zero}) {
      const Snapshot held = after_three_steps(grid, {3, 2}, make);
      say(std::to_string(held.files().size()));
      const bool is_new = make == zero ? world.rank() == 1 : world.rank() < 2;
      say(hash_of_the_rest(grid, {3, 2}, make, is_new ? Snapshot() : held));
      say(hash_of_the_rest(world.grid(1, 4), {1, 1, 2, 1}, make, is_new ? Snapshot() : held));
    }
  });
  EXPECT_THAT(ranks.lines(), Each("3"));  // the progress, a model's part and a part of states
  EXPECT_THAT(ranks.lines(), Each(want));
  EXPECT_THAT(ranks.lines(), Each(want));
  // There are the three files as above, and the states of the process whose partner this one is.
  EXPECT_THAT(ranks.lines(), Each("4"));
  EXPECT_THAT(ranks.lines(), Each(want));
  EXPECT_THAT(ranks.lines(), Each(want));
  ranks.expect_ends();
}

TEST(WorldSnapshot, AReplicaGetsOnlyTheStatesThatItKeeps) {
  WorldRanks ranks(4, [](const World& world, const WorldRanks::Say& say) {
    testing::count_live_memory();
    GPipe pipe = pipeline(world.grid(4, 1), {5}, /*width=*/200);
    const Optimizer optimizer = zero(pipe);
    train(pipe, *optimizer, 0, 1);
    const Snapshot held = take_snapshot(pipe, *optimizer, {1, 8});
    testing::reset_peak_bytes();
    const int64_t before = testing::live_bytes();
    load_snapshot(pipe, *optimizer, held);
    const int64_t taken = testing::peak_bytes() - before;
    // The weight of 160 kB has 320 kB of states, in one replica.
    const auto& owned = static_cast<ZeroOptimizer&>(*optimizer).owned_parameters();
    const bool has_states = std::any_of(owned.begin(), owned.end(), [](const at::Tensor& each) {
      return each.dim() == 2 && each.size(1) == 200;
    });
    say(has_states || taken < 300'000 ? "little" : std::to_string(taken) + " bytes");
  });
  EXPECT_THAT(ranks.lines(), Each("little"));
  ranks.expect_ends();
}

}  // namespace
}  // namespace gpipe
