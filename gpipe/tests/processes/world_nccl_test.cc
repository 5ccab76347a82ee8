// Tests that pipelines over processes whose GPUs NCCL joins (GPIPE_DEVICE_LINKS=nccl) have the same
// bits as one process, and what happens when a rank fails. One GPU is enough: ranks share it if
// there are fewer GPUs than ranks. These tests have never run yet.
//
// The children must use the GPUs first: if a process has used them, its forked children cannot.

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/testing/device.h"
#include "gpipe/testing/processes/world_ranks.h"
#include "gpipe/testing/processes/world_training.h"
#include "gpipe/testing/sample_models.h"

namespace gpipe::distributed {
namespace {

using ::testing::AllOf;
using testing::device;
using ::testing::Each;
using ::testing::HasSubstr;
using testing::SampleModel;
using Say = WorldRanks::Say;

// A number of bytes that no GPU has.
constexpr int64_t kTooMuch = int64_t{1} << 44;

Spread by_nccl(int64_t processes, const std::string& schedule, int64_t stages) {
  Spread spread;
  spread.links = "nccl";
  spread.processes = processes;
  spread.schedule = schedule;
  spread.stages = stages;
  return spread;
}

void expect_one_processs_bits_of_all(const Spread& spread) {
  int64_t count = 0;
  for (const SampleModel& sample : testing::sample_models()) {
    if (sample.layers < spread.stages) continue;
    ++count;
    expect_one_processs_bits(sample, spread);
  }
  EXPECT_GE(count, 2);
}

TEST(WorldNccl, TwoRanks) { expect_one_processs_bits_of_all(by_nccl(2, "1f1b", 2)); }

TEST(WorldNccl, ThreeRanks) { expect_one_processs_bits_of_all(by_nccl(3, "zb-h1", 3)); }

// In a V schedule messages go both ways between two workers, and the two ends handle them in
// different orders.
TEST(WorldNccl, SeveralStagesInAProcess) { expect_one_processs_bits_of_all(by_nccl(2, "zb-v", 4)); }

TEST(WorldNccl, AnExceptionAndTheNextStep) { expect_an_exception_is_survived("nccl"); }

// The limit is longer than for links of sockets, because NCCL may take longer to end.
TEST(WorldNccl, AKilledProcess) { expect_a_killed_rank_is_named("nccl", std::chrono::seconds(10)); }

// The lines of two ranks after a step in which a layer of rank 1 calls `fail`, and after the next
// step.
std::vector<std::vector<std::string>> with_a_failure(const std::function<void(c10::Device)>& fail) {
  auto ranks = ranks_with("nccl", 2, [&](const World& world, const Say& say) {
    const c10::Device here = device(world.rank());
    bool fails = true;
    GPipe pipe(layers([&](int64_t k) {
                 if (k == 3 && std::exchange(fails, false)) fail(here);
               }),
               GPipeOptions({4, 4}).chunks(3).devices({here}).world(world));
    say(stepped(pipe, here));
    say(stepped(pipe, here));
  });
  std::vector<std::vector<std::string>> said{ranks.lines(), ranks.lines()};
  // All processes must end normally: an error in a destructor would end a process by a signal.
  ranks.expect_ends();
  return said;
}

TEST(WorldNccl, ARankWithoutMemory) {
  const auto said = with_a_failure(
      [](c10::Device here) { (void)at::empty({kTooMuch}, at::TensorOptions(here)); });
  EXPECT_THAT(said[0][1], HasSubstr("out of memory"));
  EXPECT_THAT(said[0][0], AllOf(HasSubstr("failure: rank 1"), HasSubstr("out of memory")));
  EXPECT_THAT(said[1], Each(HasSubstr("0x")));
}

// After an illegal access CUDA refuses all work of that process. The other rank hears why, and no
// rank hangs or dies.
TEST(WorldNccl, ARankWithAnIllegalAccess) {
  const auto said = with_a_failure([](c10::Device here) {
    constexpr uintptr_t kNowhere = 4096;
    const at::Tensor nowhere = at::from_blob(reinterpret_cast<void*>(kNowhere), {8}, {1}, nullptr,
                                             at::TensorOptions(here), here);
    nowhere.add_(1);
    (void)nowhere.cpu();
  });
  for (const std::vector<std::string>& lines : said) {
    EXPECT_THAT(lines[1], HasSubstr("illegal memory access"));
    EXPECT_THAT(lines[0], AllOf(HasSubstr("failure: rank 1"), HasSubstr("illegal memory access")));
  }
}

}  // namespace
}  // namespace gpipe::distributed
