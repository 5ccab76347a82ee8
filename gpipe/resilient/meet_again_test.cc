// Tests of meet() with real processes, which die and meet again under the launcher. One is of a
// ResilientRun, the guide's program.
#include "gpipe/resilient/meet_again.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "gpipe/distributed/control/failure.h"
#include "gpipe/distributed/sockets/sockets.h"
#include "gpipe/testing/seed.h"

namespace gpipe {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::chrono::seconds kDeadline{60};

int64_t now_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

// A run of a program under the launcher, and what it has written.
class Launched {
 public:
  explicit Launched(std::vector<std::string> flags, const std::vector<std::string>& arguments = {},
                    bool is_of_guide = false) {
    static int count = 0;
    base_ = ::testing::TempDir() + "/run_" + std::to_string(count++);
    flags.insert(flags.begin(), "gpipe/distributed/launch");
    flags.insert(flags.end(), {"--processes=4", "--"});
    if (is_of_guide) {
      flags.emplace_back("examples/guide/survives");
    } else {
      flags.insert(flags.end(), {"gpipe/resilient/meet_again_program", stop_file()});
    }
    flags.insert(flags.end(), arguments.begin(), arguments.end());
    pid_ = fork();
    if (pid_ != 0) return;
    for (const char* name : {"BUILD_WORKING_DIRECTORY", "RANK", "WORLD_SIZE"}) unsetenv(name);
    setenv("OMP_NUM_THREADS", "1", 1);
    const int file = open((base_ + ".out").c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0666);
    dup2(file, STDOUT_FILENO);
    dup2(file, STDERR_FILENO);
    std::vector<char*> words;
    for (std::string& flag : flags) words.push_back(flag.data());
    words.push_back(nullptr);
    execv(words[0], words.data());
    _exit(99);
  }
  ~Launched() {
    if (status_ < 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    if (::testing::Test::HasFailure()) std::cout << text() << std::endl;
  }

  std::string text() const {
    std::ifstream file(base_ + ".out", std::ios::binary);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
  }
  // The complete lines that contain this text.
  std::vector<std::string> lines(const std::string& with) const {
    std::vector<std::string> found;
    std::istringstream all(text());
    for (std::string line; std::getline(all, line);) {
      if (line.find(with) != std::string::npos && !all.eof()) found.push_back(line);
    }
    return found;
  }
  // Waits until `count` lines contain the text.
  bool has(std::size_t count, const std::string& with) const {
    const auto end = std::chrono::steady_clock::now() + kDeadline;
    while (lines(with).size() < count) {
      if (std::chrono::steady_clock::now() > end) {
        ADD_FAILURE() << "there are not " << count << " lines with '" << with << "'";
        return false;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return true;
  }
  // The last process that was started with this number.
  pid_t pid_of(int64_t number) const {
    const std::string key = "process " + std::to_string(number) + " pid ";
    const std::vector<std::string> found = lines(key);
    const std::string& line = found.at(found.size() - 1);
    return std::stoi(line.substr(line.find(key) + key.size()));
  }
  void send(int64_t number, int signal) const { ASSERT_EQ(kill(pid_of(number), signal), 0); }

  void tell_to_stop() const { std::ofstream(stop_file()) << "stop"; }
  // Ends the program, and returns the launcher's exit code.
  int stop() {
    tell_to_stop();
    return wait();
  }
  int wait() {
    const auto end = std::chrono::steady_clock::now() + kDeadline;
    while (waitpid(pid_, &status_, WNOHANG) != pid_) {
      if (std::chrono::steady_clock::now() > end) {
        ADD_FAILURE() << "the run does not end";
        return -1;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return WIFEXITED(status_) ? WEXITSTATUS(status_) : -WTERMSIG(status_);
  }

  // Waits until all ranks of a world of this size have made a step in a generation behind `after`.
  // Returns the generation, and the time of the last rank's step in *at.
  int64_t meets(int64_t size, int64_t after, int64_t* at = nullptr) const {
    const auto end = std::chrono::steady_clock::now() + kDeadline;
    while (std::chrono::steady_clock::now() < end) {
      std::map<int64_t, std::set<int64_t>> ranks;
      std::map<int64_t, int64_t> times;
      for (const std::string& line : lines("step generation ")) {
        long long generation = 0, rank = 0, of = 0, time = 0;
        const std::string part = line.substr(line.find("generation"));
        if (std::sscanf(part.c_str(), "generation %lld rank %lld of %lld loss %*s at %lld",
                        &generation, &rank, &of, &time) != 4) {
          continue;
        }
        if (generation <= after || of != size) continue;
        ranks[generation].insert(rank);
        times[generation] = std::max<int64_t>(times[generation], time);
        if (static_cast<int64_t>(ranks[generation].size()) < size) continue;
        if (at != nullptr) *at = times[generation];
        return generation;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    ADD_FAILURE() << "no world of " << size << " processes behind generation " << after;
    return -1;
  }
  // All steps of all worlds had the same loss, bit for bit.
  void expect_one_loss() const {
    std::set<std::string> losses;
    for (const std::string& line : lines("step generation ")) {
      const std::size_t begin = line.find(" loss ") + 6;
      losses.insert(line.substr(begin, line.find(' ', begin) - begin));
    }
    EXPECT_EQ(losses.size(), 1U) << ::testing::PrintToString(losses);
  }

 private:
  std::string stop_file() const { return base_ + ".stop"; }

  std::string base_;
  pid_t pid_ = -1;
  int status_ = -1;
};

TEST(MeetAgain, WithoutDeathsThereIsOneWorld) {
  Launched run({});
  run.meets(4, 0);
  EXPECT_EQ(run.stop(), 0);
  EXPECT_EQ(run.lines("world generation 1 ").size(), 4U);
  EXPECT_EQ(run.lines("from -1 -1 -1 -1").size(), 4U);
  EXPECT_EQ(run.lines("generation 2").size(), 0U);
  run.expect_one_loss();
}

// Each of the four processes is killed once, that of rank 0 among them. Each time the launcher
// starts it again, and all four meet.
TEST(MeetAgain, ARankThatIsKilledIsStartedAgainAndMeetsTheOthers) {
  Launched run({"--restarts=4"});
  int64_t generation = run.meets(4, 0);
  for (const int64_t number : {2, 0, 3, 1}) {
    run.send(number, SIGKILL);
    generation = run.meets(4, generation);
    ASSERT_GT(generation, 0);
  }
  EXPECT_EQ(run.lines("world generation 2 rank 2 of 4 from 0 1 3 -1").size(), 1U);
  EXPECT_EQ(run.lines("is started again, restart 4 of 4").size(), 1U);
  EXPECT_EQ(run.stop(), 0);
  run.expect_one_loss();
}

TEST(MeetAgain, ARankThatIsKilledBeforeTheFirstMeetingIsStartedAgain) {
  for (const std::string number : {"0", "2"}) {
    Launched run({"--restarts=1"}, {"early", number});
    EXPECT_EQ(run.meets(4, 0), 1);
    EXPECT_EQ(run.stop(), 0);
    EXPECT_EQ(run.lines("is started again, restart 1 of 1").size(), 1U);
    run.expect_one_loss();
  }
}

TEST(MeetAgain, WithoutRestartsTheOthersGoOn) {
  for (const int64_t number : {0, 3}) {
    Launched run({});
    const int64_t first = run.meets(4, 0);
    run.send(number, SIGKILL);
    const int64_t second = run.meets(3, first);
    run.send(number == 0 ? 1 : 0, SIGKILL);
    run.meets(2, second);
    EXPECT_EQ(run.stop(), 0);
    EXPECT_EQ(run.lines("go on without it").size(), 2U);
    run.expect_one_loss();
  }
}

TEST(MeetAgain, AtTheEndOneIsLeft) {
  Launched run({});
  int64_t generation = run.meets(4, 0);
  for (const int64_t number : {1, 0, 3}) {
    run.send(number, SIGKILL);
    generation = run.meets(number == 1 ? 3 : number == 0 ? 2 : 1, generation);
  }
  EXPECT_EQ(run.stop(), 0);
  run.expect_one_loss();
}

TEST(MeetAgain, TwoDieAtOnce) {
  Launched run({"--restarts=1"});
  const int64_t first = run.meets(4, 0);
  const pid_t a = run.pid_of(0);
  const pid_t b = run.pid_of(2);
  kill(a, SIGKILL);
  kill(b, SIGKILL);
  run.meets(3, first);
  EXPECT_EQ(run.stop(), 0);
  run.expect_one_loss();
}

TEST(MeetAgain, SparesTakeThePlacesOfTheDead) {
  Launched run({"--spares=2"});
  int64_t generation = run.meets(4, 0);
  for (const int64_t number : {1, 0}) {
    run.send(number, SIGKILL);
    generation = run.meets(4, generation);
  }
  run.send(3, SIGKILL);
  run.meets(3, generation);
  EXPECT_EQ(run.stop(), 0);
  EXPECT_EQ(run.lines("rank 3 of 4 from 0 2 3 -1 local rank 1").size(), 1U);
  EXPECT_EQ(run.lines("rank 3 of 4 from 1 2 3 -1 local rank 0").size(), 1U);
  run.expect_one_loss();
}

TEST(MeetAgain, SparesThatAreNotNeededEndWithTheRun) {
  Launched run({"--spares=1"});
  run.meets(4, 0);
  EXPECT_EQ(run.stop(), 0);
  EXPECT_THAT(run.text(), HasSubstr("the run has ended without rank 4: SIGTERM"));
  EXPECT_EQ(run.lines("world generation 1 ").size(), 4U);
}

TEST(MeetAgain, AllDieAtOnce) {
  Launched run({"--restarts=4"});
  const int64_t first = run.meets(4, 0);
  std::vector<pid_t> all;
  for (int64_t number = 0; number < 4; ++number) all.push_back(run.pid_of(number));
  for (const pid_t pid : all) kill(pid, SIGKILL);
  run.meets(4, first);
  EXPECT_EQ(run.stop(), 0);
  run.expect_one_loss();
}

// A second process dies while the others meet again. It dies at several moments between its
// question to the meeting place and the new world. The other two must meet.
TEST(MeetAgain, OneDiesDuringTheMeeting) {
  for (const int64_t dies_after : {0, 10, 40}) {
    for (const std::string who : {"0", "3"}) {
      Launched run({}, {std::to_string(dies_after), who});
      const int64_t first = run.meets(4, 0);
      run.send(1, SIGKILL);
      run.meets(2, first);
      EXPECT_EQ(run.stop(), 0);
      run.expect_one_loss();
      if (HasFailure()) return;
    }
  }
}

TEST(MeetAgain, AStoppedRankThatWakesUpIsToldThatItsWorldIsOver) {
  Launched run({});
  const int64_t first = run.meets(4, 0);
  run.send(2, SIGSTOP);
  run.meets(3, first);
  run.send(2, SIGCONT);
  run.has(1, "over: the run goes on without this process");
  run.has(1, "rank 2 (process " + std::to_string(run.pid_of(2)) + ") ended with exit code 3");
  EXPECT_EQ(run.stop(), 0);
  run.expect_one_loss();
}

TEST(MeetAgain, AStoppedRankThatEndsIsStartedAgainAndJoinsTheNextWorld) {
  Launched run({"--restarts=2"});
  const int64_t first = run.meets(4, 0);
  run.send(2, SIGSTOP);
  const int64_t second = run.meets(3, first);
  run.send(2, SIGCONT);
  run.has(1, "restart 1 of 2");
  run.has(2, "process 2 pid");
  run.send(0, SIGKILL);
  run.meets(4, second);
  EXPECT_EQ(run.stop(), 0);
  run.expect_one_loss();
}

// A process that aborts has most likely not caught an exception, so the others do not go on: the
// run ends, as without meet().
TEST(MeetAgain, AProcessThatAbortsEndsTheRun) {
  Launched run({"--restarts=2"});
  run.meets(4, 0);
  run.send(1, SIGABRT);
  EXPECT_EQ(run.wait(), 128 + SIGABRT);
  EXPECT_EQ(run.lines("over: rank 1 was ended by SIGABRT (signal 6)").size(), 3U);
  EXPECT_EQ(run.lines("restart 1").size(), 0U);
}

TEST(MeetAgain, ARankThatIsKilledWhenTheOthersAreDoneFailsTheRun) {
  Launched run({"--restarts=1"}, {"waits", "0"});
  run.meets(4, 0);
  run.tell_to_stop();
  for (int64_t number = 1; number < 4; ++number) {
    const pid_t pid = run.pid_of(number);
    const auto end = std::chrono::steady_clock::now() + kDeadline;
    while (kill(pid, 0) == 0 && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }
  // The launcher knows of these ends before it forwards another line.
  run.has(run.lines("waits").size() + 1, "waits");
  run.send(0, SIGKILL);
  EXPECT_EQ(run.wait(), 128 + SIGKILL);
  EXPECT_THAT(run.text(), Not(HasSubstr("started again")));
}

// The work of a rank that has left with 0 was that of its world. The next world goes on.
TEST(MeetAgain, ARankIsStartedAgainInAWorldBehindOneThatARankHasLeft) {
  Launched run({"--restarts=1"}, {"leaves", "3"});
  const int64_t second = run.meets(3, 0);
  run.send(0, SIGKILL);
  run.has(1, "restart 1 of 1");
  run.meets(3, second);
  EXPECT_EQ(run.stop(), 0);
}

// When the others have done the run's work, the launcher ends a process that is still stopped and
// has no part in the run any more.
TEST(MeetAgain, ARankThatStaysStoppedEndsWithTheRun) {
  Launched run({});
  const int64_t first = run.meets(4, 0);
  run.send(1, SIGSTOP);
  run.meets(3, first);
  EXPECT_EQ(run.stop(), 0);
  EXPECT_THAT(run.text(), HasSubstr("the run has ended without rank 1: SIGTERM"));
}

// Two replicas of two processes with a ZeroOptimizer. Process 3 dies, and process 2 is left over.
// The optimizer's states of process 2 were held by these two alone. Later process 0 dies, and
// process 2 takes its place.
TEST(ResilientReplicas, AProcessThatIsLeftOverWaitsForTheNextDeath) {
  const auto results = [](const Launched& run) {
    std::set<std::string> lines;
    for (const char* with : {" loss ", " parameters "}) {
      for (const std::string& line : run.lines(with)) lines.insert(line.substr(line.find(' ')));
    }
    return lines;
  };
  const auto kill_process = [](const Launched& run, int64_t number) {
    const std::string key = "[" + std::to_string(number) + "] pid ";
    const std::string line = run.lines(key).at(0);
    kill(std::stoi(line.substr(key.size())), SIGKILL);
  };
  const std::vector<std::string> arguments = {"400", "3", "replicas"};
  std::set<std::string> want;
  {
    Launched run({}, arguments, /*is_of_guide=*/true);
    ASSERT_EQ(run.wait(), 0);
    want = results(run);
  }
  ASSERT_EQ(want.size(), 401U);
  Launched run({}, arguments, /*is_of_guide=*/true);
  ASSERT_TRUE(run.has(1, "step 20 loss"));
  kill_process(run, 3);
  ASSERT_TRUE(run.has(1, "goes on with 2 processes"));
  EXPECT_THAT(run.text(), HasSubstr("1 process is left over: a world has a multiple of 2"));
  // By then the two processes hold new copies of all states.
  ASSERT_TRUE(run.has(1, "step 60 loss"));
  kill_process(run, 0);
  ASSERT_TRUE(run.has(2, "goes on with 2 processes"));
  EXPECT_EQ(run.wait(), 0);
  EXPECT_EQ(results(run), want);
}

distributed::Fault fault(distributed::FaultKind kind) {
  distributed::Fault result;
  result.kind = kind;
  return result;
}

TEST(MeetAgain, APlaceThatCannotBeReachedIsTriedForAsLongAsTheOthersMayWait) {
  const auto silence = fault(distributed::FaultKind::kSilence);
  const auto death = fault(distributed::FaultKind::kDeath);
  const std::chrono::milliseconds limit = std::chrono::seconds(7);
  const auto patience = [&](const std::vector<distributed::Fault>& faults) {
    return internal::patience_with_place(limit, faults) / std::chrono::seconds(1);
  };
  EXPECT_EQ(patience({silence, silence}), 12);
  EXPECT_EQ(patience({silence, death}), 44);  // the others wait for the process that starts instead
  EXPECT_EQ(patience({}), 44);
}

// The line breaks while the process waits for the first time, and the place is gone when it comes
// again.
TEST(MeetAgain, APlaceThatIsCutOffIsTriedAgainWithoutAWordIfNothingIsAnnounced) {
  int port = 0;
  distributed::Socket listener = distributed::listen_on("127.0.0.1", &port);
  const std::map<std::string, std::string> variables = {
      {"GPIPE_MEETING_PLACE", "127.0.0.1:" + std::to_string(port) + "/secret"},
      {"GPIPE_LAUNCHER", "1"},
      {"RANK", "0"},
      {"WORLD_SIZE", "2"},
      {"LOCAL_RANK", "0"},
      {"LOCAL_WORLD_SIZE", "2"},
      {"MASTER_ADDR", "127.0.0.1"},
      {"MASTER_PORT", "1"}};
  for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
  std::thread place([&] {
    pollfd visitor{listener.get(), POLLIN, 0};
    EXPECT_EQ(poll(&visitor, 1, 30'000), 1);
    distributed::Socket accepted = distributed::accept_on(listener);
    listener.close();
    // A line that breaks within a second counts as a launcher that has ended.
    std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    const linger at_once{1, 0};
    setsockopt(accepted.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    accepted.close();
  });
  WorldOptions options;
  options.announce = false;
  options.silence_limit = std::chrono::seconds(1);
  ::testing::internal::CaptureStderr();
  try {
    meet(options, {{fault(distributed::FaultKind::kSilence)}});
    ADD_FAILURE() << "they met";
  } catch (const WorldIsOver& over) {
    EXPECT_THAT(over.what(), HasSubstr("could not be reached for 6 s"));
  } catch (const std::exception& error) {
    ADD_FAILURE() << error.what();
  }
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  place.join();
  for (const auto& [name, value] : variables) unsetenv(name.c_str());
}

TEST(MeetAgain, WithoutAMeetingPlaceTheFirstWorldIsTheOnlyOne) {
  ::unsetenv("GPIPE_MEETING_PLACE");
  EXPECT_FALSE(can_meet_again());
  EXPECT_EQ(meet().world.size(), 1);
  EXPECT_THROW(meet(), std::logic_error);
}

// Starts a run in which ranks die after each other, each time when the others have met.
// `way`: "restarts", "spares", or "fewer". Returns the milliseconds from each death to the end of
// all ranks' first step.
std::vector<int64_t> die_one_by_one(const std::string& way, std::mt19937_64& random) {
  std::vector<int64_t> times;
  const int64_t most = way == "restarts" ? 5 : 2;
  Launched run(way == "fewer" ? std::vector<std::string>()
                              : std::vector<std::string>{"--" + way + "=" + std::to_string(most)});
  int64_t generation = run.meets(4, 0);
  std::vector<int64_t> left = {0, 1, 2, 3};
  for (int64_t death = 0; death < most && !::testing::Test::HasFailure(); ++death) {
    std::this_thread::sleep_for(std::chrono::milliseconds(random() % 100));
    const std::size_t which = random() % left.size();
    const int64_t killed_at = now_ms();
    run.send(left[which], SIGKILL);
    if (way != "restarts") left.erase(left.begin() + static_cast<std::ptrdiff_t>(which));
    int64_t at = 0;
    const auto size = static_cast<int64_t>(left.size());
    generation = run.meets(way == "spares" ? 4 : size, generation, &at);
    times.push_back(at - killed_at);
  }
  EXPECT_EQ(run.stop(), 0);
  run.expect_one_loss();
  return times;
}

// GPIPE_MEETINGS=100: at least so many deaths in each way. Prints how long the others take to go on
// after a death.
TEST(MeetAgain, RandomDeathsOneByOne) {
  const char* given = std::getenv("GPIPE_MEETINGS");
  const int64_t deaths = given == nullptr ? 4 : std::atoi(given);
  std::mt19937_64 random = testing::test_random();
  for (const std::string way : {"restarts", "spares", "fewer"}) {
    std::vector<int64_t> times;
    while (static_cast<int64_t>(times.size()) < deaths && !HasFailure()) {
      for (const int64_t time : die_one_by_one(way, random)) times.push_back(time);
    }
    std::sort(times.begin(), times.end());
    std::cout << way << ": " << times.size() << " deaths, median " << times[times.size() / 2]
              << " ms, worst " << times.back() << " ms" << std::endl;
  }
}

// Up to three processes die at once, or before all have met again. Some of them have only just been
// started. In the end all four must meet in one world.
TEST(MeetAgain, RandomDeathsThatOverlap) {
  const char* given = std::getenv("GPIPE_MEETINGS");
  const int64_t blows = given == nullptr ? 4 : std::atoi(given);
  std::mt19937_64 random = testing::test_random(1);
  std::set<pid_t> killed;
  Launched run({"--restarts=1000000"});
  int64_t generation = run.meets(4, 0);
  for (int64_t blow = 0; blow < blows && !HasFailure(); ++blow) {
    int64_t killed_at = 0;
    for (uint64_t deaths = 1 + random() % 3; deaths > 0; --deaths) {
      const pid_t pid = run.pid_of(static_cast<int64_t>(random() % 4));
      // The process that follows it has not said its pid yet.
      if (!killed.insert(pid).second) continue;
      killed_at = now_ms();
      kill(pid, SIGKILL);
      if (random() % 2 == 0) {
        std::this_thread::sleep_for(std::chrono::milliseconds(random() % 1500));
      }
    }
    // From here on no process dies, and all must meet in one world.
    int64_t at = 0;
    while (at < killed_at && generation > 0) generation = run.meets(4, generation, &at);
  }
  EXPECT_EQ(run.stop(), 0);
  run.expect_one_loss();
}

}  // namespace
}  // namespace gpipe
