#include "gpipe/testing/processes/world_training.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <utility>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/schedule/named_schedule.h"
#include "gpipe/testing/device.h"
#include "gpipe/testing/function_layer.h"

namespace gpipe::distributed {
namespace {

namespace nn = torch::nn;
using ::testing::AllOf;
using testing::device;
using ::testing::Each;
using ::testing::HasSubstr;
using testing::SampleModel;

constexpr int64_t kRows = 7;
constexpr int64_t kChunks = 4;

// The rows of this process's replica.
Tensors share_of(const World& world, c10::Device where, Tensors tensors) {
  for (torch::Tensor& tensor : tensors) {
    const RowRange rows = world.rows(tensor.size(0), kChunks);
    tensor = tensor.slice(0, rows.begin, rows.end);
  }
  return testing::on(where, tensors);
}

std::string trained(GPipe pipe, const World& world, const SampleModel& sample,
                    const std::string& schedule, c10::Device where) {
  torch::optim::Adam optimizer(pipe->local_parameters(), 0.01);
  const auto there = [&](const Tensors& tensors) { return share_of(world, where, tensors); };
  std::string text;
  for (int64_t k = 0; k < 3; ++k) {
    optimizer.zero_grad();
    torch::manual_seed(7 + k);
    text += bits(pipe->step(there(sample.inputs(kRows + k)), there(sample.targets(kRows + k)),
                            sample.loss, StepOptions().schedule(schedule_by_name(schedule)))
                     .loss);
    text += bits(pipe->clip_grad_norm_(0.1));
    optimizer.step();
  }
  torch::manual_seed(3);
  text += bits(
      pipe->evaluate(there(sample.inputs(kRows)), there(sample.targets(kRows)), sample.loss).loss);
  return text + pipe->parameter_hash();
}

// NCCL refuses two ranks of one host on one GPU. So NCCL is told that each rank is a host of its
// own, and the ranks reach each other by the loopback interface.
void share_gpus(int64_t rank) {
  setenv("NCCL_HOSTID", ("gpipe-" + std::to_string(rank)).c_str(), /*overwrite=*/1);
  setenv("NCCL_SOCKET_IFNAME", "lo", /*overwrite=*/1);
  for (const char* const other_ways : {"NCCL_MNNVL_ENABLE", "NCCL_RAS_ENABLE"}) {
    setenv(other_ways, "0", /*overwrite=*/1);
  }
  setenv("NCCL_IB_DISABLE", "1", /*overwrite=*/1);
}

}  // namespace

void expect_one_processs_bits(const SampleModel& sample, const Spread& spread) {
  WorldRanks ranks = ranks_with(
      spread.links, spread.replicas * spread.processes,
      [&](const World& connected, const WorldRanks::Say& say) {
        const World world = connected.grid(spread.replicas, spread.processes);
        const GPipeOptions options =
            GPipeOptions(testing::all_balances(sample.layers, spread.stages).back())
                .chunks(kChunks)
                .groups(spread.replicas > 1 ? spread.replicas : 0)
                .placement(placement_by_name(spread.schedule, spread.stages))
                .deferred_batch_norm(true)
                .cpu_threads_per_stage(1);
        GPipe alone(sample.make(), GPipeOptions(options).devices(
                                       std::vector<c10::Device>(spread.stages, device(0))));
        say(trained(alone, World(), sample, spread.schedule, device(0)));
        const c10::Device here = device(world.rank() + 1);
        GPipe together(sample.make(), GPipeOptions(options).devices({here}).world(world));
        const std::string text = trained(together, world, sample, spread.schedule, here);
        const std::string used = spread.used_links ? spread.used_links() : spread.links;
        say(used == spread.links ? text : "it went by " + used);
      });
  const std::vector<std::string> alone = ranks.lines();
  EXPECT_THAT(alone, Each(alone.front()));
  EXPECT_THAT(alone.front(), HasSubstr("0x")) << "not a result";
  EXPECT_THAT(ranks.lines(), Each(alone.front())) << sample.name << ", " << spread.schedule;
  ranks.expect_ends();
}

void expect_an_exception_is_survived(const std::string& links) {
  auto ranks = ranks_with(links, 2, [](const World& world, const WorldRanks::Say& say) {
    bool throws = true;
    GPipe pipe(layers([&](int64_t k) {
                 if (k == 3 && throws) throw std::runtime_error("a layer's own");
               }),
               GPipeOptions({4, 4}).chunks(3).devices({device(world.rank())}).world(world));
    say(stepped(pipe, device(world.rank())));
    throws = false;
    say(stepped(pipe, device(world.rank())));
  });
  const std::vector<std::string> first = ranks.lines();
  EXPECT_THAT(first[0], AllOf(HasSubstr("failure: "), HasSubstr("a layer's own")));
  EXPECT_THAT(first[1], HasSubstr("a layer's own"));
  const std::vector<std::string> second = ranks.lines();
  EXPECT_THAT(second[0], HasSubstr("0x"));
  EXPECT_EQ(second[1], second[0]);
  ranks.expect_ends();
}

void expect_a_killed_rank_is_named(const std::string& links, std::chrono::milliseconds limit) {
  auto ranks = ranks_with(links, 2, [](const World& world, const WorldRanks::Say& say) {
    GPipe pipe(layers([&](int64_t k) {
                 if (k != 2) return;
                 say("killed");
                 std::raise(SIGKILL);
               }),
               GPipeOptions({4, 4}).chunks(3).devices({device(world.rank())}).world(world));
    say(stepped(pipe, device(world.rank())));
  });
  EXPECT_EQ(ranks->next(1), "killed");
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_THAT(ranks->next(0), AllOf(HasSubstr("failure: rank 1"), HasSubstr("killed")));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, limit);
  EXPECT_TRUE(ranks->ends(0));
}

nn::Sequential layers(const std::function<void(int64_t)>& in_forward) {
  torch::manual_seed(5);
  nn::Sequential model;
  for (int64_t k = 0; k < 4; ++k) {
    model->push_back(nn::Linear(5, 5));
    model->push_back(testing::layer<torch::Tensor, torch::Tensor>([in_forward, k](torch::Tensor x) {
      in_forward(k);
      return torch::tanh(x);
    }));
  }
  return model;
}

std::string stepped(GPipe pipe, c10::Device where) {
  const torch::Tensor rows = testing::copy_on(where, torch::linspace(-1, 1, 30).view({6, 5}));
  return outcome([&] { return bits(pipe->step({rows}, {rows}, squares()).loss); });
}

LossFn squares() {
  return [](const Tensors& outputs, const Tensors& targets) {
    return torch::mse_loss(outputs[0], targets[0]);
  };
}

WorldRanks ranks_with(const std::string& links, int64_t size, const WorldRanks::Main& main) {
  setenv("GPIPE_DEVICE_LINKS", links.c_str(), /*overwrite=*/1);
  return WorldRanks(size, [main](const World& world, const WorldRanks::Say& say) {
    // GPUs are counted in the forked processes only, because a fork of a process that has counted
    // its GPUs cannot use them.
    if (testing::gpu_count() < world.size()) share_gpus(world.rank());
    main(world, say);
  });
}

std::string bits(double number) {
  char text[40];
  std::snprintf(text, sizeof text, "%a ", number);
  return text;
}

}  // namespace gpipe::distributed
