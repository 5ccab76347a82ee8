#include "gpipe/distributed/any_rank.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "gpipe/testing/processes/world_ranks.h"

namespace gpipe::distributed {
namespace {

using ::testing::Each;
using ::testing::Not;
using Say = WorldRanks::Say;

TEST(AnyRank, IsTheSameOnAllRanks) {
  WorldRanks ranks(3, [](const World& world, const Say& say) {
    std::string said;
    for (int64_t teller = -1; teller < 3; ++teller) {
      said += any_rank(world, world.rank() == teller) ? "yes " : "no ";
    }
    say(said + (any_rank(world, true) ? "yes" : "no"));
  });
  EXPECT_THAT(ranks.lines(), Each("no yes yes yes yes"));
  ranks.expect_ends();
}

volatile std::sig_atomic_t was_told = 0;

// Only one rank gets the signal, at a random moment of a step. All ranks end after the same number
// of steps.
TEST(AnyRank, ASignalToOneRankEndsAllAtOneStep) {
  for (const int64_t told : {0, 2}) {
    WorldRanks ranks(3, [told](const World& world, const Say& say) {
      std::signal(SIGUSR1, [](int) { was_told = 1; });
      std::thread teller;
      if (world.rank() == told) {
        teller = std::thread([] {
          std::this_thread::sleep_for(std::chrono::milliseconds(20));
          kill(getpid(), SIGUSR1);
        });
      }
      int64_t steps = 0;
      while (!any_rank(world, was_told != 0)) ++steps;
      if (teller.joinable()) teller.join();
      say(std::to_string(steps));
    });
    const std::vector<std::string> lines = ranks.lines();
    EXPECT_THAT(lines, Each(lines[0]));
    EXPECT_THAT(lines[0], Not("0"));
    ranks.expect_ends();
  }
}

TEST(AnyRank, AloneIsWhatItIsGiven) {
  EXPECT_TRUE(any_rank(World(), true));
  EXPECT_FALSE(any_rank(World(), false));
}

}  // namespace
}  // namespace gpipe::distributed
