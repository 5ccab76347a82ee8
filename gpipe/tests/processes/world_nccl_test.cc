// Tests that pipelines over processes whose GPUs NCCL joins (GPIPE_DEVICE_LINKS=nccl) have the same
// bits as through the host. This test has never run yet, because it needs two GPUs.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/cuda.h>
#include <torch/nn.h>
#include <torch/optim.h>

#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/schedule/named_schedule.h"
#include "gpipe/testing/processes/world_ranks.h"

namespace gpipe::distributed {
namespace {

namespace nn = torch::nn;
using ::testing::Each;
using ::testing::MatchesRegex;
using Say = WorldRanks::Say;

constexpr const char* kTooFew = "fewer than two GPUs";

const LossFn kSquares = [](const Tensors& outputs, const Tensors& targets) {
  return torch::mse_loss(outputs[0], targets[0]);
};

std::string trained(const World& world, const std::string& schedule, int64_t stages) {
  const c10::Device here(c10::kCUDA, static_cast<c10::DeviceIndex>(world.rank()));
  torch::manual_seed(5);
  nn::Sequential model;
  for (int64_t k = 0; k < 8; ++k) {
    model->push_back(nn::Linear(64, 64));
    model->push_back(nn::Tanh());
  }
  GPipe pipe(model, GPipeOptions(std::vector<int64_t>(stages, 16 / stages))
                        .chunks(4)
                        .placement(placement_by_name(schedule, stages))
                        .devices({here})
                        .world(world));
  torch::optim::SGD optimizer(pipe->local_parameters(), 0.1);
  for (int64_t k = 0; k < 5; ++k) {
    optimizer.zero_grad();
    const torch::Tensor rows = torch::linspace(-1, 1, (30 + k) * 64, here).view({30 + k, 64});
    (void)pipe->step({rows}, {rows}, kSquares, StepOptions().schedule(schedule_by_name(schedule)));
    optimizer.step();
  }
  return pipe->parameter_hash();
}

// The children must use the GPUs first: if a process has used them, its forked children cannot.
TEST(WorldNccl, HasTheBitsOfTheWayByTheHost) {
  for (const auto& [schedule, stages] :
       std::vector<std::pair<std::string, int64_t>>{{"1f1b", 2}, {"zb-v", 4}}) {
    std::vector<std::string> hashes;
    for (const char* const links : {"host", "nccl"}) {
      setenv("GPIPE_DEVICE_LINKS", links, /*overwrite=*/1);
      WorldRanks ranks(2, [&](const World& world, const Say& say) {
        if (torch::cuda::device_count() < 2) return say(kTooFew);
        say(outcome([&] { return trained(world, schedule, stages); }));
      });
      const std::vector<std::string> lines = ranks.lines();
      EXPECT_THAT(lines, Each(lines.front()));
      // One failure in all processes, by either way, must not pass.
      if (lines.front() == kTooFew) GTEST_SKIP() << kTooFew;
      EXPECT_THAT(lines, Each(MatchesRegex("[0-9a-f]{16}"))) << "not hashes";
      hashes.push_back(lines.front());
      ranks.expect_ends();
    }
    EXPECT_EQ(hashes[1], hashes[0]) << schedule;
  }
}

}  // namespace
}  // namespace gpipe::distributed
