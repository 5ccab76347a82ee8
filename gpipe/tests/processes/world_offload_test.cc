// Tests schedules with offloads over processes with a device each, on the fake accelerator, by way
// of the host and by links between the devices: bits and memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/schedule/offloads.h"
#include "gpipe/testing/device.h"
#include "gpipe/testing/fake_accelerator/allocator.h"
#include "gpipe/testing/fake_accelerator/backend.h"
#include "gpipe/testing/processes/socket_link.h"
#include "gpipe/testing/processes/world_ranks.h"
#include "gpipe/testing/processes/world_training.h"

namespace gpipe::distributed {
namespace {

namespace nn = torch::nn;
using testing::device;
using ::testing::Each;
using testing::fake::allocator;

constexpr int64_t kSide = 128;
constexpr int64_t kRows = 2048;  // in four micro-batches, whose activations are larger than weights

// Three steps. Returns losses and the parameters' hash; sets `*most` to what the third step takes
// beyond what the first device holds before it.
std::string trained(const World& world, const std::vector<c10::Device>& devices,
                    const Schedule& schedule, size_t* most) {
  torch::manual_seed(1);
  nn::Sequential model;
  for (int k = 0; k < 8; ++k) {
    model->push_back(nn::Linear(kSide, kSide));
    model->push_back(nn::Tanh());
  }
  GPipe pipe(model, GPipeOptions({8, 8})
                        .devices(devices)
                        .chunks(4)
                        .checkpoint(Checkpoint::kNever)
                        .cpu_threads_per_stage(1)
                        .world(world));
  torch::optim::SGD optimizer(pipe->local_parameters(), 0.1);
  const Tensors rows = {testing::copy_on(
      devices.front(), torch::linspace(-1, 1, kRows * kSide).view({kRows, kSide}))};
  const int number = devices.front().index();
  std::string text;
  for (int k = 0; k < 3; ++k) {
    optimizer.zero_grad();
    const size_t before = allocator().in_use(number);
    allocator().reset_peak(number);
    text += bits(pipe->step(rows, rows, squares(), StepOptions().schedule(schedule)).loss);
    *most = allocator().peak(number) - before;
    optimizer.step();
  }
  return text + pipe->parameter_hash();
}

// GPIPE_DEVICE_LINKS
class WorldOffload : public ::testing::TestWithParam<const char*> {};

TEST_P(WorldOffload, SameBitsInLessMemory) {
  const Schedule low = Schedule::from_text(
      "stages 2\nmicro_batches 4\n"
      "worker 0: F0.0 O0.0 F0.1 O0.1 F0.2 O0.2 F0.3 B0.3 L0.2 B0.2 L0.1 B0.1 L0.0 B0.0\n"
      "worker 1: F1.0 O1.0 F1.1 O1.1 F1.2 O1.2 F1.3 B1.3 L1.2 B1.2 L1.1 B1.1 L1.0 B1.0\n");
  const Schedule plain = without_offloads(low);
  const std::string links = GetParam();
  auto ranks = ranks_with(links, 2, [&](const World& world, const WorldRanks::Say& say) {
    say(outcome([&]() -> std::string {
      const c10::Device here = device(world.rank() + 1);
      size_t most = 0, with_offloads = 0;
      const std::string alone = trained(World(), {device(0), device(0)}, plain, &most);
      const std::string together = trained(world, {here}, plain, &most);
      const std::string offloaded = trained(world, {here}, low, &with_offloads);
      if (alone.find("0x") == std::string::npos) return "no result: " + alone;
      if (together != alone) return "without offloads " + together + ", alone " + alone;
      const std::vector<std::string> races = testing::fake::runtime().take_races();
      if (!races.empty()) return "race: " + races.front();
      if (offloaded != alone) return "with offloads " + offloaded + ", alone " + alone;
      if (with_offloads > most * 4 / 5) {
        return std::to_string(with_offloads) + " bytes with offloads, without " +
               std::to_string(most);
      }
      return sent_by_sockets() > 0 ? "sockets" : "host";
    }));
  });
  EXPECT_THAT(ranks.lines(), Each(links));
  ranks.expect_ends();
}

INSTANTIATE_TEST_SUITE_P(Links, WorldOffload, ::testing::Values("host", "sockets"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace gpipe::distributed
