#include "gpipe/testing/processes/world_training.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/schedule/named_schedule.h"
#include "gpipe/testing/device.h"
#include "gpipe/testing/fake_accelerator/backend.h"
#include "gpipe/testing/processes/socket_link.h"

namespace gpipe::distributed {
namespace {

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
        const c10::Device here = device(world.process() + 1);
        GPipe together(sample.make(), GPipeOptions(options).devices({here}).world(world));
        const std::string text = trained(together, world, sample, spread.schedule, here);
        const std::string way = sent_by_sockets() > 0 ? "sockets" : "host";
        say(way == spread.links ? text : "it went by " + way);
      });
  const std::vector<std::string> alone = ranks.lines();
  EXPECT_THAT(alone, Each(alone.front()));
  EXPECT_THAT(alone.front(), HasSubstr("0x")) << "not a result";
  EXPECT_THAT(ranks.lines(), Each(alone.front())) << sample.name << ", " << spread.schedule;
  ranks.expect_ends();
}

void expect_only_own_devices_are_made_current(const std::string& links) {
  WorldRanks ranks = ranks_with(links, 2, [](const World& world, const WorldRanks::Say& say) {
    const c10::Device here = device(world.rank() + 1);
    GPipe pipe(torch::nn::Sequential(torch::nn::Linear(5, 5), torch::nn::Linear(5, 5)),
               GPipeOptions({1, 1}).chunks(4).devices({here}).world(world));
    const torch::Tensor rows = testing::copy_on(here, torch::ones({8, 5}));
    const LossFn loss = [](const Tensors& outputs, const Tensors& targets) {
      return torch::mse_loss(outputs[0], targets[0]);
    };
    say(outcome([&] { return bits(pipe->step({rows}, {rows}, loss).loss); }));
    std::string current;
    for (int k = 0; k < testing::fake::kDevices; ++k) {
      if (testing::fake::was_made_current(k)) current += testing::fake::device(k).str() + " ";
    }
    say(current);
  });
  EXPECT_THAT(ranks.lines(), Each(HasSubstr("0x")));
  EXPECT_THAT(ranks.lines(), ::testing::ElementsAre(device(1).str() + " ", device(2).str() + " "));
  ranks.expect_ends();
}

WorldRanks ranks_with(const std::string& links, int64_t size, const WorldRanks::Main& main) {
  setenv("GPIPE_DEVICE_LINKS", links.c_str(), /*overwrite=*/1);
  return WorldRanks(size, main);
}

std::string bits(double number) {
  char text[40];
  std::snprintf(text, sizeof text, "%a ", number);
  return text;
}

}  // namespace gpipe::distributed
