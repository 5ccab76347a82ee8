#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "gpipe/distributed/meet/environment.h"
#include "machine/cores.h"

namespace gpipe::distributed {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

using Map = std::map<std::string, std::string>;

// Tests run from the root of their runfiles.
const char* const kLauncher = "gpipe/distributed/launch";
// The limit of each wait, far longer than any test takes on a busy machine.
constexpr std::chrono::seconds kDeadline{60};

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  // If reading fails because a process has just ended, the text ends there.
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// Returns whether the condition became true in time.
bool wait_until(const std::function<bool()>& condition) {
  const auto end = std::chrono::steady_clock::now() + kDeadline;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

// The state of a process: R, S, T, Z, ... Also 'Z' if there is no such process.
char state_of(const std::string& pid) {
  const std::string stat = read_file("/proc/" + pid + "/stat");
  const std::size_t name_end = stat.rfind(") ");
  return name_end == std::string::npos ? 'Z' : stat[name_end + 2];
}

// A launcher that runs beside the test, whose outputs go to files; or, with a descriptor `output`,
// the standard output goes there.
class Launched {
 public:
  explicit Launched(std::vector<std::string> arguments, const Map& variables = {},
                    const std::string& input = "", int output = -1) {
    static int count = 0;
    folder_ = ::testing::TempDir() + "/launched_" + std::to_string(count++);
    std::ofstream(folder_ + ".in") << input;
    arguments.insert(arguments.begin(), kLauncher);
    pid_ = fork();
    if (pid_ != 0) return;
    for (const char* name : {"BUILD_WORKING_DIRECTORY", "RANK", "WORLD_SIZE"}) unsetenv(name);
    for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
    redirect(STDIN_FILENO, ".in", O_RDONLY);
    redirect(STDOUT_FILENO, ".out", O_WRONLY | O_CREAT | O_TRUNC);
    if (output >= 0) dup2(output, STDOUT_FILENO);
    redirect(STDERR_FILENO, ".err", O_WRONLY | O_CREAT | O_TRUNC);
    std::vector<char*> words;
    for (std::string& argument : arguments) words.push_back(argument.data());
    words.push_back(nullptr);
    execv(kLauncher, words.data());
    _exit(99);
  }
  ~Launched() {
    if (status_ >= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  Launched(const Launched&) = delete;
  Launched& operator=(const Launched&) = delete;

  pid_t pid() const { return pid_; }
  std::string output() const { return read_file(folder_ + ".out"); }
  std::string error() const { return read_file(folder_ + ".err"); }

  // Waits until the ranks have written this many lines.
  bool has_lines(std::size_t count) const {
    return wait_until([&] { return lines_of(output()).size() >= count; });
  }

  void send(int signal) const { ASSERT_EQ(kill(pid_, signal), 0); }

  // The launcher's exit code, or minus the signal that ended it.
  int wait() {
    EXPECT_TRUE(wait_until([&] { return waitpid(pid_, &status_, WNOHANG) == pid_; }))
        << "it does not end\n"
        << error();
    if (WIFSIGNALED(status_)) return -WTERMSIG(status_);
    return WEXITSTATUS(status_);
  }

 private:
  void redirect(int fd, const char* suffix, int flags) const {
    const int file = open((folder_ + suffix).c_str(), flags, 0666);
    if (file < 0 || dup2(file, fd) < 0) _exit(98);
    close(file);
  }

  std::string folder_;
  pid_t pid_ = -1;
  int status_ = -1;
};

// The launcher's arguments: `flags`, and a shell script that each rank runs.
std::vector<std::string> script(std::vector<std::string> flags, const std::string& text) {
  for (const char* word : {"--", "/bin/sh", "-c"}) flags.push_back(word);
  flags.push_back(text);
  return flags;
}

TEST(Launch, AllSucceed) {
  Launched launched(script({"--processes=3"}, "echo out; echo err >&2; printf end"));
  EXPECT_EQ(launched.wait(), 0);
  EXPECT_THAT(lines_of(launched.output()), UnorderedElementsAre("[0] out", "[1] out", "[2] out",
                                                                "[0] end", "[1] end", "[2] end"));
  EXPECT_THAT(lines_of(launched.error()), UnorderedElementsAre("[0] err", "[1] err", "[2] err"));
}

// A script whose rank 1 kills itself before it asks for a meeting, the first time that it starts.
// Rank 0 waits until rank 1 has started again; then each runs `rest`.
std::string dies_early(const std::string& rest) {
  static int count = 0;
  const std::string base = ::testing::TempDir() + "/dies_early_" + std::to_string(count++);
  const std::string died = base + ".died", again = base + ".again";
  return "if [ $RANK = 1 ]; then if [ -e " + died + " ]; then touch " + again + "; else touch " +
         died + "; kill -KILL $$; fi; fi; while [ ! -e " + again + " ]; do sleep 0.02; done; " +
         rest;
}

TEST(Launch, ARankThatIsKilledBeforeAnyHasAskedForAMeetingIsStartedAgain) {
  Launched launched(script({"--processes=2", "--restarts=1"}, dies_early("echo done")));
  EXPECT_EQ(launched.wait(), 0);
  EXPECT_THAT(lines_of(launched.output()), UnorderedElementsAre("[0] done", "[1] done"));
  EXPECT_THAT(launched.error(), HasSubstr("it is started again, restart 1 of 1"));
}

// A process that a killed rank has left behind may hold what its successor needs.
TEST(Launch, WhatAKilledRankHasLeftBehindIsKilledBeforeItIsStartedAgain) {
  const std::string file = ::testing::TempDir() + "/pid_of_the_child";
  unlink(file.c_str());  // an earlier run may have left it
  Launched launched(script({"--processes=1", "--restarts=1"},
                           "if [ ! -e " + file +
                               " ]; then sleep 1000 > /dev/null 2>&1 & echo $! > " + file +
                               "; kill -KILL $$; fi; tries=0; "
                               "while [ -e /proc/$(cat " +
                               file +
                               ") ] && [ $tries -lt 500 ]; do "
                               "sleep 0.02; tries=$((tries + 1)); done; "
                               "if [ -e /proc/$(cat " +
                               file + ") ]; then echo left; else echo gone; fi"));
  EXPECT_EQ(launched.wait(), 0) << launched.error();
  EXPECT_THAT(lines_of(launched.output()), UnorderedElementsAre("[0] gone"));
}

TEST(Launch, WithoutRestartsItSaysThatNoRankHadAskedForAMeeting) {
  Launched launched(script({"--processes=2", "--grace=0.2"}, dies_early("echo done")));
  EXPECT_EQ(launched.wait(), 128 + SIGKILL);
  EXPECT_THAT(
      launched.error(),
      HasSubstr("no rank has called gpipe::meet() yet, as gpipe::ResilientRun does, so the "
                "run ends (if the program calls it, --restarts=1 starts such a rank again)"));
  EXPECT_THAT(launched.error(), HasSubstr("the failure began with rank 1"));
}

TEST(Launch, ARankThatIsKilledOnceMoreBeforeAnyHasAskedEndsTheRun) {
  Launched launched(script({"--processes=2", "--restarts=1", "--grace=0.2"},
                           dies_early("if [ $RANK = 1 ]; then kill -KILL $$; fi; sleep 100")));
  EXPECT_EQ(launched.wait(), 128 + SIGKILL);
  EXPECT_THAT(launched.error(), HasSubstr("so the run ends: no restart is left"));
}

// A program that never asks for a meeting fails in the other ranks after a death.
TEST(Launch, AProgramThatDoesNotMeetAgainIsToldThatRestartsAreNotForIt) {
  Launched launched(script({"--processes=2", "--restarts=3", "--grace=0.2"},
                           dies_early("if [ $RANK = 0 ]; then exit 5; fi; sleep 100")));
  EXPECT_EQ(launched.wait(), 5);
  EXPECT_THAT(launched.error(), HasSubstr("no rank has called gpipe::meet(), and --restarts is for "
                                          "programs that do"));
}

// The rank was cut off from the others, and ends while they meet without it.
TEST(Launch, TheExitCodeOfARankThatTheOthersHaveGivenUpDoesNotEndTheRun) {
  const std::string file = ::testing::TempDir() + "/launcher_has_heard";
  Launched launched({"--processes=2", "--", "gpipe/distributed/launcher/silent_rank", file});
  EXPECT_EQ(launched.wait(), 0) << launched.error();
  EXPECT_THAT(lines_of(launched.output()), UnorderedElementsAre("[0] goes on with 1"));
  EXPECT_THAT(launched.error(), HasSubstr("ended with exit code 3; rank 0 goes on without it"));
}

// A rank has ended with 0 and has not asked, so the program does not go on after deaths.
TEST(Launch, RestartsDoNotCountForAProgramWithARankThatIsDone) {
  const std::string pid = ::testing::TempDir() + "/pid_of_rank_0";
  Launched launched(script({"--processes=2", "--restarts=3"},
                           "if [ $RANK = 0 ]; then echo $$ > " + pid + ".new; mv " + pid + ".new " +
                               pid + "; exit 0; fi; while [ ! -e " + pid +
                               " ] || [ -e /proc/$(cat " + pid +
                               ") ]; do sleep 0.02; done; kill -KILL $$"));
  EXPECT_EQ(launched.wait(), 128 + SIGKILL);
  EXPECT_THAT(launched.error(), Not(HasSubstr("started again")));
}

TEST(Launch, EachRankHasItsEnvironment) {
  Launched launched(script({"--processes=2"}, "env"),
                    {{"RANK", "7"}, {"TORCHELASTIC_RUN_ID", "outer"}, {"MINE", "kept"}});
  ASSERT_EQ(launched.wait(), 0);
  std::set<int64_t> ports;
  for (int64_t rank = 0; rank < 2; ++rank) {
    Map variables;
    const std::string prefix = "[" + std::to_string(rank) + "] ";
    for (const std::string& line : lines_of(launched.output())) {
      const std::size_t equals = line.find('=');
      if (line.rfind(prefix, 0) != 0 || equals == std::string::npos) continue;
      variables[line.substr(prefix.size(), equals - prefix.size())] = line.substr(equals + 1);
    }
    EXPECT_EQ(variables["MINE"], "kept");
    const auto cores = machine::usable_cores();
    EXPECT_EQ(variables["OMP_NUM_THREADS"], std::to_string(std::max<int64_t>(cores / 2, 1)));
    const Environment environment = read_environment(variables);
    EXPECT_EQ(environment.launcher, Launcher::kGPipe);
    EXPECT_EQ(environment.rank, rank);
    EXPECT_EQ(environment.size, 2);
    EXPECT_EQ(environment.local_rank, rank);
    EXPECT_EQ(environment.local_size, 2);
    EXPECT_EQ(environment.master_address, "127.0.0.1");
    EXPECT_FALSE(environment.store_is_the_launchers);
    ports.insert(environment.master_port);
  }
  EXPECT_THAT(ports, SizeIs(1));
}

TEST(Launch, AChosenNumberOfThreadsStays) {
  Launched launched(script({"--processes=2"}, "echo $OMP_NUM_THREADS"), {{"OMP_NUM_THREADS", "7"}});
  ASSERT_EQ(launched.wait(), 0);
  EXPECT_THAT(lines_of(launched.output()), UnorderedElementsAre("[0] 7", "[1] 7"));
}

TEST(Launch, GpusHaveAllQueuesUnlessTheirNumberIsChosen) {
  const auto queues = [](const Map& variables) {
    unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
    Launched launched(script({"--processes=1"}, "echo $CUDA_DEVICE_MAX_CONNECTIONS"), variables);
    EXPECT_EQ(launched.wait(), 0);
    return lines_of(launched.output());
  };
  EXPECT_THAT(queues({}), UnorderedElementsAre("[0] 32"));
  EXPECT_THAT(queues({{"CUDA_DEVICE_MAX_CONNECTIONS", "8"}}), UnorderedElementsAre("[0] 8"));
}

TEST(Launch, TheOthersOfAFailedRankMayEndByThemselves) {
  // Rank 1 fails. The others notice that it is gone and end within the grace, so nobody gets a
  // SIGTERM.
  const std::string file = ::testing::TempDir() + "/rank_1";
  Launched launched(script({"--processes=3"},
                           "if [ $RANK = 1 ]; then echo $$ >$F.new; mv $F.new $F; exit 3; fi; "
                           "until [ -e $F ]; do sleep 0.01; done; "
                           "while kill -0 $(cat $F) 2>/dev/null; do sleep 0.01; done; "
                           "echo stopped by myself; exit 4"),
                    {{"F", file}});
  EXPECT_EQ(launched.wait(), 3);
  EXPECT_THAT(lines_of(launched.output()),
              UnorderedElementsAre("[0] stopped by myself", "[2] stopped by myself"));
  EXPECT_THAT(launched.error(),
              AllOf(ContainsRegex("rank 1 .process [0-9]+. ended with exit code 3"),
                    HasSubstr("have 30 s to end by themselves"),
                    HasSubstr("ended with exit code 4"), Not(HasSubstr("SIGTERM"))));
}

TEST(Launch, TheOthersOfAFailedRankAreTerminatedAfterTheGrace) {
  const std::string file = ::testing::TempDir() + "/ready_";
  Launched launched(script({"--processes=3", "--grace=0.1"},
                           "if [ $RANK = 1 ]; then "
                           "until [ -e ${F}0 ] && [ -e ${F}2 ]; do sleep 0.01; done; "
                           "echo why; exit 3; fi; "
                           "trap 'echo term; exit 0' TERM; >$F$RANK; sleep 1000 & wait"),
                    {{"F", file}});
  EXPECT_EQ(launched.wait(), 3);
  EXPECT_THAT(lines_of(launched.output()), UnorderedElementsAre("[1] why", "[0] term", "[2] term"));
  EXPECT_THAT(launched.error(),
              AllOf(ContainsRegex("rank 1 .* ended with exit code 3; the others have 0.1 s"),
                    HasSubstr("ranks 0, 2 did not end by themselves: SIGTERM"),
                    HasSubstr("the first that ended was rank 1, which ended with exit code 3; its "
                              "output, [1], says why")));
}

// If all ranks are called wrongly, only one of them says so (rank 2 here, which is not the first
// that ends). Rank 0 stands for a rank that waits for the others to connect.
TEST(Launch, TheRankThatSaysWhyIsNamed) {
  const std::string file = ::testing::TempDir() + "/silent";
  Launched launched(script({"--processes=3"},
                           "if [ $RANK = 1 ]; then echo $$ >$F.new; mv $F.new $F; exit 2; fi; "
                           "until [ -e $F ]; do sleep 0.01; done; "
                           "while kill -0 $(cat $F) 2>/dev/null; do sleep 0.01; done; "
                           "[ $RANK = 2 ] && echo why >&2 && exit 2; exec sleep 1000"),
                    {{"F", file}});
  EXPECT_EQ(launched.wait(), 2);
  EXPECT_THAT(launched.error(),
              AllOf(ContainsRegex("rank 1 .* exit code 2; the others have 5 s to end"),
                    HasSubstr("rank 0 did not end by itself: SIGTERM"),
                    HasSubstr("the first that ended was rank 1, which ended with exit code 2 and "
                              "wrote nothing to stderr; the output of rank 2, [2], says why")));
}

TEST(Launch, NoRankIsNamedThatWroteNothing) {
  Launched launched(script({"--processes=2"}, "exit 1"));
  EXPECT_EQ(launched.wait(), 1);
  EXPECT_THAT(launched.error(), ContainsRegex("the first that ended was rank [01], which ended "
                                              "with exit code 1; no rank that failed wrote why"));
}

// Rank 0 has written something, but the launcher ends it. So it has not failed by itself, and the
// message must not name its output as the reason.
TEST(Launch, NoRankIsNamedThatWasEndedForAnother) {
  Launched launched(script({"--processes=2", "--grace=0.2"},
                           "[ $RANK = 1 ] && exit 1; echo an old warning >&2; exec sleep 1000"));
  EXPECT_EQ(launched.wait(), 1);
  EXPECT_THAT(launched.error(), HasSubstr("the first that ended was rank 1, which ended with exit "
                                          "code 1; no rank that failed wrote why"));
}

TEST(Launch, ARankThatIgnoresSigtermIsKilled) {
  const std::string file = ::testing::TempDir() + "/ignores";
  Launched launched(script({"--processes=2", "--grace=0", "--kill_after=0.2"},
                           "if [ $RANK = 0 ]; then "
                           "until [ -e $F ]; do sleep 0.01; done; exit 5; fi; "
                           "trap '' TERM; >$F; while :; do sleep 0.01; done"),
                    {{"F", file}});
  EXPECT_EQ(launched.wait(), 5);
  EXPECT_THAT(launched.error(),
              AllOf(HasSubstr("rank 1 did not end within 0.2 s of SIGTERM: SIGKILL"),
                    ContainsRegex("rank 1 .* was ended by SIGKILL"), Not(HasSubstr("memory"))));
}

TEST(Launch, AKilledRankIs137) {
  Launched launched(
      script({"--processes=2", "--grace=0"}, "[ $RANK = 1 ] && kill -9 $$; sleep 1000"));
  EXPECT_EQ(launched.wait(), 137);
  EXPECT_THAT(launched.error(), ContainsRegex("rank 1 .* was ended by SIGKILL .signal 9.; not by "
                                              "this launcher: .* memory ran out"));
  EXPECT_THAT(launched.error(), HasSubstr("the failure began with rank 1, which was ended by SIG"));
}

TEST(Launch, ARankThatASignalEndsIsNamedBeforeThoseThatOnlyReportIt) {
  // While the launcher is stopped, rank 1 is killed and rank 0 ends because of that. The system
  // reports rank 0 first, because it was started first. The launcher must name rank 1.
  const std::string file = ::testing::TempDir() + "/rank_1_is";
  Launched launched(
      script({"--processes=2"},
             "if [ $RANK = 1 ]; then echo $$ >$F.new; mv $F.new $F; "
             "until [ -e $F.stopped ]; do sleep 0.01; done; kill -9 $$; fi; "
             "until [ -e $F ]; do sleep 0.01; done; kill -STOP $PPID; >$F.stopped; "
             "while grep -q '^State:.[^Z]' /proc/$(cat $F)/status; do sleep 0.01; done; "
             "(sleep 0.2; kill -CONT $PPID) & exit 1"),
      {{"F", file}});
  EXPECT_EQ(launched.wait(), 137);
  EXPECT_THAT(launched.error(), HasSubstr("the failure began with rank 1, which was ended by SIG"));
}

TEST(Launch, CtrlCIsPassedOnToAllAndTheirChildren) {
  // The shell waits for a child of its own. Both must get the signal.
  Launched launched(
      script({"--processes=2"},
             "trap 'echo stopping; exit 7' INT; "
             "(trap 'echo child; exit' INT; echo ready; while :; do sleep 0.01; done)"));
  ASSERT_TRUE(launched.has_lines(2));
  launched.send(SIGINT);
  EXPECT_EQ(launched.wait(), 7);
  const std::vector<std::string> lines = lines_of(launched.output());
  EXPECT_THAT(lines, UnorderedElementsAre("[0] ready", "[1] ready", "[0] child", "[1] child",
                                          "[0] stopping", "[1] stopping"));
  EXPECT_THAT(launched.error(), HasSubstr("SIGINT (signal 2) is passed on"));
}

TEST(Launch, ASignalWithoutAHandlerIsTheExitCode) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    Launched launched(script({"--processes=2"}, "echo ready; exec sleep 1000"));
    ASSERT_TRUE(launched.has_lines(2));
    launched.send(signal);
    EXPECT_EQ(launched.wait(), 128 + signal);
    EXPECT_THAT(launched.error(), HasSubstr("no rank had failed before all were told to stop"));
  }
}

// When its ranks have ended, the launcher waits until their output is read. Ctrl-C ends that.
TEST(Launch, ASignalEndsTheWaitForAReaderThatDoesNotRead) {
  const std::string file = ::testing::TempDir() + "/pid_of_the_writer";
  unlink(file.c_str());  // an earlier run may have left it
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  // The pipe holds 64 KiB.
  Launched launched(script({"--processes=1"}, "echo $$ > " + file + ".new; mv " + file + ".new " +
                                                  file + "; exec head -c 300000 /dev/zero"),
                    {}, "", ends[1]);
  ASSERT_TRUE(wait_until([&] { return !read_file(file).empty(); }));
  const std::string pid = lines_of(read_file(file)).front();
  // The launcher has taken the rank's end.
  ASSERT_TRUE(wait_until([&] { return access(("/proc/" + pid).c_str(), F_OK) != 0; }));
  EXPECT_NE(state_of(std::to_string(launched.pid())), 'Z') << "the output was lost";
  launched.send(SIGINT);
  EXPECT_EQ(launched.wait(), 0) << launched.error();
  for (const int end : ends) close(end);
}

TEST(Launch, ASecondSignalKills) {
  Launched launched(script({"--processes=2"},
                           "trap 'echo ignored' INT; echo ready; while :; do sleep 0.01; done"));
  ASSERT_TRUE(launched.has_lines(2));
  launched.send(SIGINT);
  ASSERT_TRUE(launched.has_lines(4));
  launched.send(SIGINT);
  EXPECT_EQ(launched.wait(), 137);
  EXPECT_THAT(launched.error(), HasSubstr("all processes are killed"));
}

TEST(Launch, ATerminalThatGoesAwayIsToldTwice) {
  // When a terminal closes, the shell and the system both send SIGHUP. The second one must not kill
  // the rank, which is saving.
  Launched launched(script({"--processes=1"},
                           "trap 'echo once; sleep 0.3; echo saved; exit 0' HUP; echo ready; "
                           "while :; do sleep 0.01; done"));
  ASSERT_TRUE(launched.has_lines(1));
  launched.send(SIGHUP);
  ASSERT_TRUE(launched.has_lines(2));
  launched.send(SIGHUP);
  EXPECT_EQ(launched.wait(), 0);
  EXPECT_THAT(launched.output(), HasSubstr("[0] saved"));
}

TEST(Launch, Usr1IsPassedOnAsOftenAsItComes) {
  Launched launched(script({"--processes=2"},
                           "trap 'echo got' USR1; trap 'exit 6' TERM; echo ready; "
                           "while :; do sleep 0.01; done"));
  ASSERT_TRUE(launched.has_lines(2));
  launched.send(SIGUSR1);
  ASSERT_TRUE(launched.has_lines(4));
  launched.send(SIGUSR1);
  ASSERT_TRUE(launched.has_lines(6));
  launched.send(SIGTERM);
  EXPECT_EQ(launched.wait(), 6);
  EXPECT_THAT(launched.error(), HasSubstr("SIGUSR1 (signal 10) is passed on to all processes"));
}

TEST(Launch, ASignalThatIsPassedOnAndNotHandledIsNobodysFailure) {
  Launched launched(script({"--processes=2"}, "echo ready; exec sleep 1000"));
  ASSERT_TRUE(launched.has_lines(2));
  launched.send(SIGUSR1);
  EXPECT_EQ(launched.wait(), 128 + SIGUSR1);
  EXPECT_THAT(launched.error(),
              AllOf(ContainsRegex("the first that ended was rank [01], which was ended by SIGUSR1"),
                    HasSubstr("it was passed on, and ends a process that does not handle it"),
                    Not(HasSubstr("the failure began"))));
}

// Ranks 1 and 2 end with 0 at once, as if they were called with --help. The message about rank 0,
// which then fails, must name them.
TEST(Launch, ARankThatEndedWellBeforeTheFirstFailureIsNamed) {
  const std::string file = ::testing::TempDir() + "/done";
  Launched launched(script({"--processes=3"},
                           "if [ $RANK != 0 ]; then echo $$ >$F.new$RANK; mv $F.new$RANK $F$RANK; "
                           "exit 0; fi; "
                           "for r in 1 2; do until [ -e $F$r ]; do sleep 0.01; done; "
                           "while kill -0 $(cat $F$r) 2>/dev/null; do sleep 0.01; done; done; "
                           "echo lost >&2; exit 4"),
                    {{"F", file}});
  EXPECT_EQ(launched.wait(), 4);
  EXPECT_THAT(launched.error(),
              AllOf(HasSubstr("the first that failed was rank 0, which ended with exit code 4; its "
                              "output, [0], says why"),
                    HasSubstr("before it ranks 1, 2 ended with exit code 0"),
                    Not(HasSubstr("the first that ended"))));
}

TEST(Launch, CtrlZStopsAll) {
  Launched launched(script({"--processes=2"}, "echo $$; exec sleep 1000"));
  ASSERT_TRUE(launched.has_lines(2));
  std::vector<std::string> pids = {std::to_string(launched.pid())};
  for (const std::string& line : lines_of(launched.output())) pids.push_back(line.substr(4));
  const auto all_are = [&](const std::string& states) {
    return wait_until([&] {
      for (const std::string& pid : pids) {
        if (states.find(state_of(pid)) == std::string::npos) return false;
      }
      return true;
    });
  };
  launched.send(SIGTSTP);
  EXPECT_TRUE(all_are("T"));
  launched.send(SIGCONT);
  EXPECT_TRUE(all_are("RS"));
  launched.send(SIGTERM);
  EXPECT_EQ(launched.wait(), 128 + SIGTERM);
}

TEST(Launch, NobodySurvivesAKilledLauncher) {
  // Each rank writes its own process number and that of a child. The system would not end the child
  // with the rank; the guardian must.
  Launched launched(
      script({"--processes=3"}, "trap '' TERM HUP INT; sleep 1000 & echo $$; echo $!; wait"));
  ASSERT_TRUE(launched.has_lines(6));
  launched.send(SIGKILL);
  EXPECT_EQ(launched.wait(), -SIGKILL);
  for (const std::string& line : lines_of(launched.output())) {
    const std::string pid = line.substr(4);
    EXPECT_TRUE(wait_until([&] { return state_of(pid) == 'Z'; })) << line;
  }
}

TEST(Launch, WhatARankLeavesBehindIsEnded) {
  Launched launched(script({"--processes=2"}, "sleep 1000 & echo $!"));
  EXPECT_EQ(launched.wait(), 0);
  EXPECT_THAT(launched.error(), HasSubstr("ranks 0, 1 left processes behind: SIGTERM"));
  for (const std::string& line : lines_of(launched.output())) {
    EXPECT_EQ(state_of(line.substr(4)), 'Z') << line;
  }
}

TEST(Launch, LongLinesAreNotMixed) {
  const std::string write_lines =
      "line=$(head -c 100000 /dev/zero | tr '\\0' $RANK); "
      "for i in 1 2 3 4 5; do echo $line; echo $line >&2; done";
  Launched launched(script({"--processes=8"}, write_lines));
  EXPECT_EQ(launched.wait(), 0);
  for (const std::string& text : {launched.output(), launched.error()}) {
    std::map<char, int> count;
    for (const std::string& line : lines_of(text)) {
      ASSERT_EQ(line.size(), 100'004U);
      EXPECT_EQ(line, "[" + std::string(1, line[1]) + "] " + std::string(100'000, line[1]));
      ++count[line[1]];
    }
    EXPECT_THAT(count, SizeIs(8));
    for (const auto& [rank, lines] : count) EXPECT_EQ(lines, 5) << rank;
  }
}

TEST(Launch, WritesLogsToo) {
  const std::string folder = ::testing::TempDir() + "/logs/new";
  Launched launched(script({"--processes=2", "--log_dir=" + folder},
                           "echo out $RANK; printf partial; echo err $RANK >&2"));
  EXPECT_EQ(launched.wait(), 0);
  EXPECT_EQ(read_file(folder + "/rank_0.out"), "out 0\npartial");
  EXPECT_EQ(read_file(folder + "/rank_1.out"), "out 1\npartial");
  EXPECT_EQ(read_file(folder + "/rank_1.err"), "err 1\n");
  EXPECT_THAT(launched.output(), HasSubstr("[1] out 1\n"));
}

TEST(Launch, OnlyRank0ReadsTheInputIfAsked) {
  Launched with(script({"--processes=2", "--stdin"}, "cat"), {}, "typed\n");
  EXPECT_EQ(with.wait(), 0);
  EXPECT_EQ(with.output(), "[0] typed\n");
  Launched without(script({"--processes=2"}, "cat"), {}, "typed\n");
  EXPECT_EQ(without.wait(), 0);
  EXPECT_EQ(without.output(), "");
}

TEST(Launch, AMissingProgramIsOneError) {
  Launched launched({"--processes=8", "--", "./no_such_program"});
  EXPECT_EQ(launched.wait(), 127);
  EXPECT_EQ(launched.output(), "");
  EXPECT_THAT(lines_of(launched.error()), SizeIs(1));
  EXPECT_THAT(launched.error(), HasSubstr("error: there is no program ./no_such_program"));
}

TEST(Launch, RelativePathsBeginWhereTheUserIs) {
  const std::string folder = ::testing::TempDir();
  std::ofstream(folder + "/here.sh") << "#!/bin/sh\npwd\n";
  ASSERT_EQ(std::system(("chmod +x " + folder + "/here.sh").c_str()), 0);
  Launched launched({"--processes=1", "--log_dir=logs_here", "--", "./here.sh"},
                    {{"BUILD_WORKING_DIRECTORY", folder}});
  EXPECT_EQ(launched.wait(), 0) << launched.error();
  char resolved[4096];
  ASSERT_NE(realpath(folder.c_str(), resolved), nullptr);
  EXPECT_EQ(launched.output(), "[0] " + std::string(resolved) + "\n");
  EXPECT_EQ(read_file(folder + "/logs_here/rank_0.out"), std::string(resolved) + "\n");
}

TEST(Launch, ArgumentsAreTheProgramsEvenIfTheyLookLikeFlags) {
  Launched launched({"--processes", "1", "--", "echo", "--processes=2", "--", "a  b"});
  EXPECT_EQ(launched.wait(), 0);
  EXPECT_EQ(launched.output(), "[0] --processes=2 -- a  b\n");
}

TEST(Launch, AReaderThatHasGoneDoesNotEndTheWork) {
  const std::string file = ::testing::TempDir() + "/worked";
  Launched launched({"--processes=1", "--", "/bin/sh", "-c",
                     std::string(kLauncher) + " --processes=2 -- /bin/sh -c 'seq 50000; touch " +
                         file + "$RANK' | head -n 1"});
  EXPECT_EQ(launched.wait(), 0);
  EXPECT_THAT(lines_of(launched.output()), SizeIs(1));
  EXPECT_TRUE(wait_until([&] {
    return access((file + "0").c_str(), F_OK) == 0 && access((file + "1").c_str(), F_OK) == 0;
  }));
}

TEST(Launch, BindsToShares) {
  Launched launched(script({"--processes=2", "--bind_cores"},
                           "grep Cpus_allowed_list /proc/self/status | cut -f 2"));
  EXPECT_EQ(launched.wait(), 0) << launched.error();
  Launched alone(script({"--processes=1"}, "grep Cpus_allowed_list /proc/self/status | cut -f 2"));
  EXPECT_EQ(alone.wait(), 0);
  // If there is one core, both ranks have it; otherwise each has fewer than all.
  const bool single = alone.output().find_first_of(",-") == std::string::npos;
  for (const std::string& line : lines_of(launched.output())) {
    EXPECT_EQ(line.substr(4) == alone.output().substr(4, alone.output().size() - 5), single);
  }
}

TEST(Launch, ManyProcesses) {
  Launched launched(script({"--processes=200"}, "echo $LOCAL_RANK"));
  EXPECT_EQ(launched.wait(), 0) << launched.error();
  const std::vector<std::string> lines = lines_of(launched.output());
  EXPECT_THAT(std::set<std::string>(lines.begin(), lines.end()), SizeIs(200));
}

TEST(Launch, WrongUsage) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> rows = {
      {{"--processes=0", "--", "true"}, "--processes=0: give a number from 1 to 1024"},
      {{"--processes=1025", "--", "true"}, "--processes=1025"},
      {{"--processes=two", "--", "true"}, "whole number"},
      {{"--", "true"}, "--processes=N is missing"},
      {{"--processes=2", "--"}, "the program is missing"},
      {{"--processes=2"}, "the program is missing"},
      {{"--processes=2", "true"}, "come after a --"},
      {{"--proceses=2", "--", "true"}, "did you mean --processes?"},
      {{"--processes=2", "--grace=-1", "--", "true"}, "--grace: give seconds"},
      {{"--processes=2", "--kill_after=nan", "--", "true"}, "--kill_after: give seconds"},
      {{"--processes=2", "--log_dir=/proc/none", "--", "true"}, "--log_dir=/proc/none"}};
  for (const auto& [arguments, message] : rows) {
    Launched launched(arguments);
    EXPECT_EQ(launched.wait(), 2) << message;
    EXPECT_THAT(launched.error(), HasSubstr(message));
    EXPECT_THAT(launched.output(), IsEmpty());
  }
}

}  // namespace
}  // namespace gpipe::distributed
