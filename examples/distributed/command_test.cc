#include "examples/distributed/command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "gpipe/distributed/sockets/master_port.h"
#include "gpipe/distributed/wrong_usage.h"
#include "gpipe/gpipe.h"
#include "gpipe/testing/processes/rank_processes.h"
#include "gpipe/testing/processes/world_ranks.h"

namespace distributed {
namespace {

using gpipe::distributed::MasterPort;
using gpipe::distributed::RankProcesses;
using gpipe::distributed::WorldRanks;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr int64_t kRanks = 3;
constexpr int kWorkCode = 7;

struct Command {
  std::vector<const char*> flags;
  std::function<void(int64_t rank)> read = [](int64_t) {};
  std::function<void(const gpipe::World& world)> prepare = [](const gpipe::World&) {};
};

// How each process ends: its exit code, and its errors with | in place of line ends.
std::vector<std::string> ends(const Command& command) {
  const MasterPort port;
  RankProcesses ranks(kRanks, [&](int64_t rank, const RankProcesses::Say& say) {
    WorldRanks::become(rank, kRanks, port.number());
    std::vector<const char*> arguments = command.flags;
    arguments.insert(arguments.begin(), "program");
    ::testing::internal::CaptureStderr();
    const int code = run_command(
        static_cast<int>(arguments.size()), arguments.data(), "What it does.",
        [&] { command.read(rank); },
        [&](const gpipe::World& world) -> std::function<int()> {
          command.prepare(world);
          return [] { return kWorkCode; };
        });
    const std::string text = ::testing::internal::GetCapturedStderr();
    // Rank 0 first prints a line that names the launcher. Only the text from "error: " on is
    // compared.
    const std::string errors = text.substr(std::min(text.find("error: "), text.size()));
    say(std::to_string(code) + " " + errors);
  });
  std::vector<std::string> result;
  for (int64_t rank = 0; rank < kRanks; ++rank) result.push_back(ranks.next(rank));
  return result;
}

void make_pipe(const gpipe::World& world, int64_t chunks) {
  torch::nn::Sequential model(torch::nn::Linear(2, 2), torch::nn::Linear(2, 2),
                              torch::nn::Linear(2, 2));
  const gpipe::GPipe pipe(model, gpipe::GPipeOptions({1, 1, 1}).chunks(chunks).world(world));
}

TEST(RunCommand, WorksWhereNothingIsWrong) {
  Command command;
  command.prepare = [](const gpipe::World& world) { make_pipe(world, 2); };
  EXPECT_THAT(ends(command), Each("7 "));
}

TEST(RunCommand, SaysOnceWhatAllHaveFoundInTheirFlags) {
  Command command;
  command.flags = {"--nonsense=1"};
  EXPECT_THAT(ends(command), ElementsAre(StartsWith("2 error: "), "2 ", "2 "));
  EXPECT_THAT(ends(command).front(), HasSubstr("nonsense"));
}

TEST(RunCommand, SaysOnceWhatDoesNotFitTheNumberOfProcesses) {
  Command command;
  command.prepare = [](const gpipe::World& world) {
    throw std::invalid_argument("there are " + std::to_string(world.size()));
  };
  EXPECT_THAT(ends(command), ElementsAre("2 error: there are 3|", "2 ", "2 "));
}

TEST(RunCommand, SaysOnceWhatOneHasFoundInItsFlags) {
  Command command;
  command.read = [](int64_t rank) {
    if (rank == 1) throw std::invalid_argument("no such file");
  };
  EXPECT_THAT(ends(command), ElementsAre("2 error: rank 1: no such file|", "2 ", "2 "));
}

TEST(RunCommand, SaysOnceWhatOneHasFoundAfterTheOthersWereReady) {
  Command command;
  command.prepare = [](const gpipe::World& world) {
    if (world.rank() == 0) throw std::invalid_argument("no such file");
  };
  EXPECT_THAT(ends(command), ElementsAre("2 error: rank 0: no such file|", "2 ", "2 "));
}

TEST(RunCommand, SaysOnceWhatOneHasFoundWhileTheOthersMakeAPipeline) {
  Command command;
  command.prepare = [](const gpipe::World& world) {
    if (world.rank() == 2) throw std::invalid_argument("no such file");
    make_pipe(world, 2);
  };
  EXPECT_THAT(ends(command), ElementsAre("2 error: rank 2: no such file|", "2 ", "2 "));
}

TEST(RunCommand, SaysOnceWhatOneHasFoundInTheMakingOfAPipeline) {
  Command command;
  command.prepare = [](const gpipe::World& world) { make_pipe(world, world.rank() == 1 ? 0 : 2); };
  EXPECT_THAT(ends(command), ElementsAre(StartsWith("2 error: rank 1: chunks"), "2 ", "2 "));
}

TEST(RunCommand, SaysOnceWhatMustBeTheSameAndIsNot) {
  Command command;
  command.prepare = [](const gpipe::World& world) { make_pipe(world, world.rank() == 1 ? 3 : 2); };
  EXPECT_THAT(ends(command), ElementsAre(StartsWith("2 error: chunks of pipeline 0"), "2 ", "2 "));
}

TEST(RunCommand, SaysOnceWhichSettingsAreNotTheSame) {
  Command command;
  command.prepare = [](const gpipe::World& world) {
    const std::vector<std::string> settings = gpipe::distributed::settings_of_ranks(
        world, "seed " + std::to_string(world.rank() == 2 ? 5 : 3));
    if (settings[0] != settings[2]) throw std::invalid_argument(settings[0] + ", " + settings[2]);
  };
  EXPECT_THAT(ends(command), ElementsAre("2 error: seed 3, seed 5|", "2 ", "2 "));
  // Rank 1 finds another mistake before the settings are compared.
  command.prepare = [](const gpipe::World& world) {
    if (world.rank() == 1) throw std::invalid_argument("no such file");
    (void)gpipe::distributed::settings_of_ranks(world, "seed 3");
  };
  EXPECT_THAT(ends(command), ElementsAre("2 error: rank 1: no such file|", "2 ", "2 "));
  command.prepare = [](const gpipe::World& world) {
    if (gpipe::distributed::settings_of_ranks(world, "seed 3").size() == kRanks) return;
    throw std::runtime_error("not of all ranks");
  };
  EXPECT_THAT(ends(command), Each("7 "));
}

TEST(RunCommand, ErrorsOtherThanWrongUsageAreSaidByAll) {
  Command command;
  command.prepare = [](const gpipe::World& world) {
    if (world.rank() == 1) throw std::runtime_error("the disk is full");
    make_pipe(world, 2);
  };
  const std::vector<std::string> ended = ends(command);
  EXPECT_THAT(ended, Each(StartsWith("1 error: ")));
  EXPECT_EQ(ended[1], "1 error: the disk is full|");
}

TEST(RunCommand, AProcessThatCannotConnectSaysByItselfWhatIsWrong) {
  Command command;
  command.read = [](int64_t) { setenv("RANK", "7", /*overwrite=*/1); };
  EXPECT_THAT(ends(command), Each(AllOf(StartsWith("2 error: "), HasSubstr("RANK"))));
  command.read = [](int64_t) {
    setenv("RANK", "7", /*overwrite=*/1);
    throw std::invalid_argument("no such file");
  };
  EXPECT_THAT(ends(command), Each("2 error: no such file|"));
}

}  // namespace
}  // namespace distributed
