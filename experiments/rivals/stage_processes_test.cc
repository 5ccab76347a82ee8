#include "experiments/rivals/stage_processes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/types.h>

#include <csignal>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

#include "gpipe/distributed/launcher/child_process.h"

namespace gpipe::experiments {
namespace {

using Json = nlohmann::ordered_json;
using ::testing::HasSubstr;

std::vector<std::string> shell(const std::string& script) { return {"sh", "-c", script}; }

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// The error with which the answers of `others` end.
std::string failure_of(StageProcesses& others) {
  try {
    others.add_answers(Json::object(), {});
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

class StageProcessesTest : public ::testing::Test {
 protected:
  // Ignores SIGPIPE, as command/run.h does.
  void SetUp() override { std::signal(SIGPIPE, SIG_IGN); }
};

TEST_F(StageProcessesTest, EachKnowsItsRankAndHowToMeet) {
  StageProcesses others(
      shell("while read line; do echo "
            "\"{\\\"rank\\\": $RANK$LOCAL_RANK, \\\"size\\\": $WORLD_SIZE$LOCAL_WORLD_SIZE, "
            "\\\"port\\\": $MASTER_PORT, \\\"told\\\": $line}\"; done"),
      3);
  EXPECT_EQ(variable("RANK") + variable("LOCAL_RANK"), "00");
  EXPECT_EQ(variable("WORLD_SIZE") + variable("LOCAL_WORLD_SIZE"), "33");
  EXPECT_EQ(variable("MASTER_ADDR"), "127.0.0.1");
  const int64_t port = std::stoll(variable("MASTER_PORT"));
  for (const char* line : {"1.5", "2.5"}) {
    others.tell(line);
    const Json sum =
        others.add_answers({{"rank", 0}, {"size", 33}, {"port", port}, {"told", 0.25}, {"loss", 7}},
                           {"rank", "size", "port", "told", "not there"});
    EXPECT_EQ(sum, (Json{{"rank", 11 + 22},
                         {"size", 3 * 33},
                         {"port", 3 * port},
                         {"told", 0.25 + 2 * std::stod(line)},
                         {"loss", 7}}));
    EXPECT_TRUE(sum["port"].is_number_integer());
  }
}

TEST_F(StageProcessesTest, OneThatHasEndedIsNamed) {
  StageProcesses failed(shell("[ $RANK = 1 ] && echo {} || exit 3"), 3);
  failed.tell("1");
  EXPECT_EQ(failure_of(failed), "rank 2 ended with exit code 3");
  StageProcesses killed(shell("kill -9 $$"), 2);
  EXPECT_THAT(failure_of(killed), HasSubstr("rank 1 was ended by SIGKILL"));
  killed.tell("1");  // No process reads this line, which must not be an error.
}

TEST_F(StageProcessesTest, NoneIsLeft) {
  pid_t hearing = 0, deaf = 0;
  {
    const std::string tell_number = "echo \"{\\\"pid\\\": $$}\"; ";
    StageProcesses first(shell(tell_number + "read line"), 2);
    StageProcesses second(shell(tell_number + "exec sleep 1000"), 2);
    hearing = first.add_answers({{"pid", 0}}, {"pid"})["pid"].get<pid_t>();
    deaf = second.add_answers({{"pid", 0}}, {"pid"})["pid"].get<pid_t>();
    EXPECT_EQ(kill(hearing, 0), 0);
    EXPECT_EQ(kill(deaf, 0), 0);
  }
  EXPECT_EQ(kill(hearing, 0), -1);
  EXPECT_EQ(kill(deaf, 0), -1);
}

TEST_F(StageProcessesTest, AProgramThatIsNotThereIsAnError) {
  EXPECT_THROW(StageProcesses({"/nowhere/program"}, 2), distributed::StartError);
}

TEST_F(StageProcessesTest, StartedProcessesStartNoOthers) {
  // The first process marks the environment of the process that it starts, and not its own. A
  // process with the mark starts no others.
  StageProcesses first(
      shell("echo \"{\\\"marks\\\": $(env | grep -c ^GPIPE_RIVALS_STAGE_PROCESS=)}\""), 2);
  EXPECT_EQ(first.add_answers({{"marks", 0}}, {"marks"})["marks"], 1);
  EXPECT_EQ(variable("GPIPE_RIVALS_STAGE_PROCESS"), "");
  setenv("GPIPE_RIVALS_STAGE_PROCESS", "1", 1);
  StageProcesses second({"/nowhere/program"}, 2);
  unsetenv("GPIPE_RIVALS_STAGE_PROCESS");
  EXPECT_EQ(failure_of(second), "");
}

}  // namespace
}  // namespace gpipe::experiments
