#include "gpipe/distributed/wrong_usage.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "gpipe/distributed/control/agreement.h"
#include "gpipe/internal/processes/processes.h"
#include "gpipe/testing/processes/world_ranks.h"

namespace gpipe::distributed {
namespace {

using ::testing::Each;
using Say = WorldRanks::Say;

TEST(WrongUsage, IsOneTextOrSaysWhoseItIs) {
  EXPECT_EQ(wrong_usage_text({"", ""}), "");
  EXPECT_EQ(wrong_usage_text({"--steps=x", "--steps=x"}), "--steps=x");
  EXPECT_EQ(wrong_usage_text({"", "no file"}), "rank 1: no file");
  EXPECT_EQ(wrong_usage_text({"no file", "no folder", "no file", ""}),
            "rank 0, 2: no file\nrank 1: no folder");
}

TEST(WrongUsage, IsTheSameEverywhere) {
  WorldRanks ranks(3, [](const World& world, const Say& say) {
    say(wrong_usage(world, ""));
    say(wrong_usage(world, "wrong"));
    say(wrong_usage(world, world.rank() == 2 ? "missing" : ""));
  });
  for (const char* text : {"", "wrong", "rank 2: missing"}) EXPECT_THAT(ranks.lines(), Each(text));
  ranks.expect_ends();
}

// A call that all processes make together, and that is not wrong_usage().
std::string compare(const World& world) {
  internal::Processes& processes = *world.processes();
  internal::in_call(&processes, [&] {
    processes.agree("the balance", "1, 1, 1");
    return true;
  });
  return "they agree";
}

TEST(WrongUsage, IsHeardByThoseAtAnotherCall) {
  WorldRanks ranks(3, [](const World& world, const Say& say) {
    if (world.rank() == 1) return say(wrong_usage(world, "missing"));
    try {
      say(compare(world));
    } catch (const Disagreement&) {
      say(wrong_usage(world, ""));
    }
  });
  EXPECT_THAT(ranks.lines(), Each("rank 1: missing"));
  ranks.expect_ends();
}

TEST(WrongUsage, ARankThatHasFoundNothingDoesNotComeAgain) {
  WorldRanks ranks(2, [](const World& world, const Say& say) {
    try {
      say(world.rank() == 1 ? wrong_usage(world, "") : compare(world));
    } catch (const Disagreement&) {
      say("disagree");
    }
    say(compare(world));
  });
  EXPECT_THAT(ranks.lines(), Each("disagree"));
  EXPECT_THAT(ranks.lines(), Each("they agree"));
  ranks.expect_ends();
}

TEST(WrongUsage, IsLeftForTorchrun) {
  WorldRanks ranks(2, [](const World& world, const Say& say) {
    const std::string file = ::testing::TempDir() + "/error" + std::to_string(world.rank());
    setenv("TORCHELASTIC_ERROR_FILE", file.c_str(), /*overwrite=*/1);
    const auto exists = [&] { return std::filesystem::exists(file) ? "there" : "none"; };
    (void)wrong_usage(world, "");
    say(exists());
    (void)wrong_usage(world, world.rank() == 0 ? "missing" : "");
    say(exists());
    (void)compare(world);
    say(exists());
  });
  EXPECT_THAT(ranks.lines(), Each("none"));
  EXPECT_THAT(ranks.lines(), Each("there"));
  EXPECT_THAT(ranks.lines(), Each("there"));
  ranks.expect_ends();
}

TEST(WrongUsage, OfOneProcessIsItsOwn) {
  EXPECT_EQ(wrong_usage(World(), "wrong"), "wrong");
  EXPECT_EQ(wrong_usage(World(), ""), "");
}

}  // namespace
}  // namespace gpipe::distributed
