// Tests of Session with real processes that find each other.
#include "gpipe/distributed/meet/session.h"

#include <ATen/Functions.h>
#include <c10/util/Logging.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gpipe/distributed/control/control.h"
#include "gpipe/distributed/meet/c10d.h"
#include "gpipe/distributed/sockets/master_port.h"
#include "gpipe/distributed/sockets/sockets.h"
#include "gpipe/runtime/bytes.h"
#include "gpipe/testing/processes/rank_processes.h"

namespace gpipe::distributed {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::StartsWith;
using Milliseconds = std::chrono::milliseconds;
using Say = RankProcesses::Say;
using Map = std::map<std::string, std::string>;

Map variables(int64_t rank, int64_t size, int port) {
  return {{"RANK", std::to_string(rank)},       {"WORLD_SIZE", std::to_string(size)},
          {"LOCAL_RANK", std::to_string(rank)}, {"LOCAL_WORLD_SIZE", std::to_string(size)},
          {"MASTER_ADDR", "127.0.0.1"},         {"MASTER_PORT", std::to_string(port)}};
}

SessionOptions quick(Milliseconds limit = std::chrono::seconds(30)) {
  SessionOptions options;
  options.rendezvous_limit = limit;
  options.announce = false;
  return options;
}

// The addresses on which this process listens, as /proc/net/tcp has them: "0100007F" is 127.0.0.1.
std::multiset<std::string> listens_on() {
  std::set<std::string> own;
  for (int descriptor = 0; descriptor < 1000; ++descriptor) {
    char target[64] = "";
    const std::string link = "/proc/self/fd/" + std::to_string(descriptor);
    if (readlink(link.c_str(), target, sizeof target - 1) > 0) own.insert(target);
  }
  std::multiset<std::string> addresses;
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream file(table);
    std::string line;
    while (std::getline(file, line)) {
      std::istringstream words(line);
      std::vector<std::string> word(10);
      for (std::string& w : word) words >> w;
      if (word[3] != "0A" || own.count("socket:[" + word[9] + "]") == 0) continue;
      addresses.insert(word[1].substr(0, word[1].find(':')));
    }
  }
  return addresses;
}

TEST(Session, ProcessesFindEachOther) {
  const MasterPort port;
  RankProcesses ranks(4, [&](int64_t rank, const Say& say) {
    auto session = Session::connect(read_environment(variables(rank, 4, port.number())), quick());
    auto group = session->connect_group("tensors");
    session->control().agree("balance", "3,3,2");
    if (rank == 3) session->store()->set("key", std::string("a\0b", 3));
    session->control().agree("set", "");
    const auto value = session->store()->get("key");
    say(value ? std::to_string(value->size()) : "no value");
    say(session->store()->get("no key") ? "a value" : "none");
    session->store()->add("sum", rank);
    session->control().agree("added", "");
    say(std::to_string(session->store()->add("sum", 0)));
    // Messages go around the ring of ranks in both directions.
    const int64_t next = (rank + 1) % 4;
    const int64_t before = (rank + 3) % 4;
    const at::Tensor sent = at::full({5}, static_cast<double>(rank), at::kByte);
    const at::Tensor room = at::empty({9}, at::kByte);
    for (const int32_t tag : {0, 1}) {
      auto receive = group->receive(room, tag == 0 ? before : next, tag);
      auto send = group->send(sent, tag == 0 ? next : before, tag);
      if (!receive->wait() || !send->wait()) say("canceled");
      say(std::to_string(room[4].item<int>()));
    }
    // The process listens on loopback addresses only: for the two devices of Gloo, and on rank 0
    // for the store.
    std::string addresses;
    for (const std::string& address : listens_on()) addresses += address + " ";
    say(addresses);
    session->control().agree("end", "");
  });
  for (int64_t rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(ranks.next(rank), "3");
    EXPECT_EQ(ranks.next(rank), "none");
    EXPECT_EQ(ranks.next(rank), "6");
    EXPECT_EQ(ranks.next(rank), std::to_string((rank + 3) % 4));
    EXPECT_EQ(ranks.next(rank), std::to_string((rank + 1) % 4));
    EXPECT_EQ(ranks.next(rank), rank == 0 ? "0100007F 0100007F 0100007F " : "0100007F 0100007F ");
    EXPECT_TRUE(ranks.ends(rank));
  }
}

// Messages to a rank that has died must throw. By default a write to a closed connection brings
// SIGPIPE, which would end the process without a message.
TEST(Session, MessagesToARankThatHasDiedThrow) {
  for (const bool sends : {true, false}) {
    const MasterPort port;
    RankProcesses ranks(2, [&](int64_t rank, const Say& say) {
      std::signal(SIGPIPE, SIG_DFL);
      auto session = Session::connect(read_environment(variables(rank, 2, port.number())), quick());
      auto group = session->connect_group("tensors");
      session->control().agree("connected", "");
      if (rank == 1) kill(getpid(), SIGKILL);
      const at::Tensor bytes = at::zeros({9}, at::kByte);
      std::vector<std::unique_ptr<Transfer>> transfers;
      const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
      try {
        // The loop does not pause, so that some write comes before Gloo's thread notices the end.
        while (std::chrono::steady_clock::now() < end) {
          transfers.push_back(sends ? group->send(bytes, 1, 0) : group->receive(bytes, 1, 0));
        }
        say("went on");
      } catch (const std::exception&) {
        say("threw");
      }
      _exit(0);  // the session's destructor would wait for the other rank
    });
    EXPECT_EQ(ranks.next(0), "threw") << (sends ? "send" : "receive");
    EXPECT_EQ(ranks.how_it_ends(0), "");
  }
}

TEST(Session, AnotherNumberOfThreadsIsAnErrorOnAllRanks) {
  const MasterPort port;
  RankProcesses ranks(3, [&](int64_t rank, const Say& say) {
    SessionOptions options = quick();
    options.threads_per_operator = rank == 2 ? 4 : 1;
    try {
      Session::connect(read_environment(variables(rank, 3, port.number())), options);
    } catch (const Disagreement& error) {
      say(error.what());
    }
  });
  std::set<std::string> texts;
  for (int64_t rank = 0; rank < 3; ++rank) texts.insert(ranks.next(rank));
  EXPECT_THAT(texts, SizeIs(1));
  EXPECT_THAT(*texts.begin(),
              AllOf(StartsWith("the number of threads per operator (OMP_NUM_THREADS or "
                               "at::set_num_threads()) must be the same on all ranks: rank "),
                    HasSubstr("rank 2 has '4'"), HasSubstr(" has '1'")));
}

// Two processes have rank 1. Either may come first: that one connects, and the other is told that
// its rank is taken.
TEST(Session, TwoProcessesWithOneRankAreTold) {
  const MasterPort port;
  RankProcesses processes(3, [&](int64_t process, const Say& say) {
    const int64_t rank = process == 0 ? 0 : 1;
    sigset_t end;
    sigemptyset(&end);
    sigaddset(&end, SIGUSR1);
    sigprocmask(SIG_BLOCK, &end, nullptr);
    try {
      auto session = Session::connect(read_environment(variables(rank, 2, port.number())), quick());
      say("connected");
      // The session, and on rank 0 the store, must live until both processes with rank 1 have come.
      int signal = 0;
      sigwait(&end, &signal);
    } catch (const std::exception& error) {
      say(error.what());
    }
  });
  EXPECT_EQ(processes.next(0), "connected");
  const std::vector<std::string> lines = {processes.next(1), processes.next(2)};
  EXPECT_THAT(lines, ::testing::UnorderedElementsAre(
                         "connected", AllOf(StartsWith("another process is rank 1 already: give"),
                                            HasSubstr("rank 1 (RANK) of 2"))));
  for (int64_t process = 0; process < 3; ++process) {
    processes.send(process, SIGUSR1);
    EXPECT_TRUE(processes.ends(process));
  }
}

TEST(Session, SaysWhoDidNotCome) {
  const MasterPort port;
  RankProcesses ranks(2, [&](int64_t rank, const Say& say) {
    try {
      Session::connect(read_environment(variables(rank, 4, port.number())),
                       quick(Milliseconds(5000)));
    } catch (const std::runtime_error& error) {
      say(error.what());
    }
    sleep(1);
  });
  // Ranks 0 and 1 must give the same text, because either of them may learn it from the other one.
  EXPECT_THAT(ranks.next(0), HasSubstr("ranks 2, 3 did not connect in time"));
  EXPECT_THAT(ranks.next(1), HasSubstr("ranks 2, 3 did not connect in time"));
}

// A rank is late for several attempts of the other rank. Attempts at the same time must connect,
// although the ranks have made different numbers of them, and so must the session after it.
TEST(Session, ARankThatIsLateConnectsAtItsNextAttempt) {
  for (const int64_t late : {0, 1}) {
    const MasterPort port;
    RankProcesses ranks(2, [&](int64_t rank, const Say& say) {
      if (rank == late) usleep(2'500'000);
      std::unique_ptr<Session> first;
      int64_t failed = 0;
      const auto attempt = [&] {
        return Session::connect(read_environment(variables(rank, 2, port.number())),
                                quick(Milliseconds(1000)));
      };
      for (; !first && failed < 20; ++failed) {
        try {
          first = attempt();
        } catch (const std::exception&) {
        }
      }
      if (!first) return say("never");
      first->control().agree("first", "");
      const auto second = attempt();
      second->control().agree("second", "");
      say("connected");
    });
    EXPECT_EQ(ranks.next(0), "connected") << "rank " << late << " is late";
    EXPECT_EQ(ranks.next(1), "connected") << "rank " << late << " is late";
  }
}

// Rank 0 leaves while rank 1 connects, and keeps its store, as it does for another session. Rank 1
// must not be counted in it any more, or its next attempt would be a second process with its rank.
TEST(Session, ARankThatDoesNotConnectIsNotCountedAfterRank0HasLeft) {
  const MasterPort port;
  RankProcesses ranks(2, [&](int64_t rank, const Say& say) {
    if (rank == 1) {
      try {
        Session::connect(read_environment(variables(1, 2, port.number())), quick());
      } catch (const DistributedFailure& failure) {
        say(failure.what());
      }
      return;
    }
    int number = port.number();
    const auto store =
        serve_store(listen_on("127.0.0.1", &number), {"127.0.0.1", number}, "gpipe/0/");
    {
      int own_port = 0;
      ControlOptions options;
      options.size = 2;
      options.token = "token";
      options.listener = listen_on("127.0.0.1", &own_port);
      Control control(std::move(options));
      store->under("token/")->set("rank/0", internal::to_bytes("127.0.0.1", own_port));
      store->set("token/1/1", "token");
      control.wait_until_connected(std::chrono::steady_clock::now() + std::chrono::seconds(30));
    }
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (store->add("come/1", 0) != 0 && std::chrono::steady_clock::now() < end) usleep(10'000);
    say("counted " + std::to_string(store->add("come/1", 0)));
  });
  EXPECT_THAT(ranks.next(1), HasSubstr("it ended after 0 calls, but is needed for"));
  EXPECT_EQ(ranks.next(0), "counted 0");
}

TEST(Session, SaysThatThereIsNoStore) {
  const MasterPort port;
  RankProcesses ranks(1, [&](int64_t, const Say& say) {
    try {
      Session::connect(read_environment(variables(1, 2, port.number())), quick(Milliseconds(500)));
    } catch (const std::runtime_error& error) {
      say(error.what());
    }
  });
  EXPECT_THAT(ranks.next(0), AllOf(StartsWith("rank 1 found no store at 127.0.0.1:" +
                                              std::to_string(port.number()) + ": "),
                                   HasSubstr("was rank 0 started")));
}

TEST(Session, APortThatIsTakenIsNamed) {
  int port = 0;
  const Socket other = listen_on("127.0.0.1", &port);
  try {
    Session::connect(read_environment(variables(0, 2, port)), quick());
    FAIL() << "nothing was thrown";
  } catch (const std::runtime_error& error) {
    EXPECT_THAT(error.what(),
                AllOf(StartsWith("cannot listen on 127.0.0.1:" + std::to_string(port)),
                      HasSubstr("MASTER_PORT")));
  }
}

TEST(Session, ADeathWhileAGroupConnectsIsTold) {
  const MasterPort port;
  RankProcesses ranks(3, [&](int64_t rank, const Say& say) {
    auto session = Session::connect(read_environment(variables(rank, 3, port.number())), quick());
    if (rank == 1) {
      session->control().agree("connecting tensors", "");  // connect_group() begins with this call
      usleep(100000);
      say(std::to_string(microseconds_now()));
      raise(SIGKILL);
    }
    try {
      session->connect_group("tensors");
    } catch (const DistributedFailure& failure) {
      say(std::to_string(microseconds_now()));
      say(failure.what());
      _exit(0);  // the destructor would wait for Gloo
    }
  });
  const int64_t killed = std::stoll(ranks.next(1));
  std::set<std::string> texts;
  for (int64_t rank : {0, 2}) {
    EXPECT_LT(std::stoll(ranks.next(rank)) - killed, 1000000);
    texts.insert(ranks.next(rank));
  }
  EXPECT_THAT(texts, SizeIs(1));
  EXPECT_THAT(*texts.begin(), AllOf(StartsWith("rank 1 ("), HasSubstr(") is gone: ")));
}

TEST(Session, ANewSessionMayFollow) {
  const MasterPort port;
  RankProcesses ranks(3, [&](int64_t rank, const Say& say) {
    for (int i = 0; i < 3; ++i) {
      auto session = Session::connect(read_environment(variables(rank, 3, port.number())), quick());
      auto group = session->connect_group("tensors");
      session->control().agree("end", std::to_string(i));
      say("well");
    }
  });
  for (int i = 0; i < 3; ++i) {
    for (int64_t rank = 0; rank < 3; ++rank) EXPECT_EQ(ranks.next(rank), "well");
  }
}

// A child of rank 0 lives on when rank 0 is killed. It must not keep the port of rank 0's store,
// where a run that is started again listens.
TEST(Session, AChildOfADeadProcessDoesNotKeepItsPort) {
  const MasterPort port;
  int children[2];  // children live as long as a process has the writing end open
  ASSERT_EQ(pipe(children), 0);
  int begun[2];
  ASSERT_EQ(pipe(begun), 0);
  RankProcesses ranks(2, [&](int64_t rank, const Say& say) {
    auto session = Session::connect(read_environment(variables(rank, 2, port.number())), quick());
    session->control().agree("begin", "");
    if (rank == 0) {
      const pid_t child = fork();
      if (child == 0) {
        close(children[1]);
        char byte = 0;
        if (write(begun[1], &byte, 1) != 1) _exit(1);
        _exit(read(children[0], &byte, 1) == 0 ? 0 : 1);
      }
      say("forked");
      raise(SIGKILL);
    }
    try {
      session->control().throw_failure("a symptom");
    } catch (const DistributedFailure& failure) {
      say(failure.what());
    }
  });
  EXPECT_EQ(ranks.next(0), "forked");
  EXPECT_THAT(ranks.next(1), AllOf(StartsWith("rank 0 ("), HasSubstr(") is gone: ")));
  EXPECT_EQ(ranks.how_it_ends(0), "by signal 9");
  char byte = 0;
  EXPECT_EQ(read(begun[0], &byte, 1), 1);
  int number = port.number();
  EXPECT_TRUE(listen_on("127.0.0.1", &number).is_open());
  for (const int end : {children[0], children[1], begun[0], begun[1]}) close(end);
}

// A launcher that keeps its store while it starts the processes again, as torchrun's agent does.
class LaunchersStore {
 public:
  LaunchersStore()
      : processes_(1, [this](int64_t, const Say& say) {
          int number = port_.number();
          Socket listener = listen_on("127.0.0.1", &number);
          auto store = serve_store(std::move(listener), {"127.0.0.1", number}, "");
          say("serves");
          pause();
        }) {
    EXPECT_EQ(processes_.next(0), "serves");
  }

  void send(int signal) { processes_.send(0, signal); }
  // `port`: the port of another program that forwards to the store; 0: the store's own port.
  Environment environment(int64_t rank, int64_t size, int64_t restarts = 0, int port = 0) const {
    Map of_torchrun = variables(rank, size, port == 0 ? port_.number() : port);
    of_torchrun["TORCHELASTIC_USE_AGENT_STORE"] = "True";
    of_torchrun["TORCHELASTIC_RESTART_COUNT"] = std::to_string(restarts);
    return read_environment(of_torchrun);
  }
  int port() const { return port_.number(); }

 private:
  MasterPort port_;
  RankProcesses processes_;
};

// The processes meet again whatever torchrun's counts of restarts are. A count does not change when
// a machine comes or leaves, and it rises only on the machine whose process has failed.
TEST(Session, MeetsAtALaunchersStoreAndAgainAfterARestart) {
  const LaunchersStore launcher;
  const std::vector<std::vector<int64_t>> counts = {{0, 0, 0}, {1, 1, 1}, {1, 1, 1}, {1, 1, 2}};
  for (const std::vector<int64_t>& count : counts) {
    RankProcesses ranks(3, [&](int64_t rank, const Say& say) {
      const auto connect = [&] {
        try {
          return Session::connect(launcher.environment(rank, 3, count[rank]),
                                  quick(Milliseconds(5000)));
        } catch (const std::exception& error) {
          say(error.what());
          _exit(0);
        }
      };
      auto session = connect();
      // The group must live until all ranks have connected it.
      const auto group = session->connect_group("tensors");
      session->control().agree("end", "");
      say("well");
      // A launcher ends the other processes before it starts all of them again.
      if (rank == 0) raise(SIGKILL);
      _exit(0);
    });
    for (int64_t rank = 0; rank < 3; ++rank) EXPECT_EQ(ranks.next(rank), "well");
  }
}

// Starts processes with these ranks one after the other, and returns their lines.
std::vector<std::string> come_to(const LaunchersStore& launcher, int64_t size,
                                 const std::vector<int64_t>& of_ranks, Milliseconds limit) {
  RankProcesses processes(static_cast<int64_t>(of_ranks.size()), [&](int64_t process,
                                                                     const Say& say) {
    std::this_thread::sleep_for(Milliseconds(300) * process);
    try {
      auto session = Session::connect(launcher.environment(of_ranks[process], size), quick(limit));
      session->control().agree("met", "");
      say("met");
    } catch (const std::exception& error) {
      say(error.what());
    }
  });
  std::vector<std::string> lines;
  for (size_t process = 0; process < of_ranks.size(); ++process) {
    lines.push_back(processes.next(static_cast<int64_t>(process)));
  }
  return lines;
}

TEST(Session, TwoProcessesWithOneRankAtALaunchersStoreAreTold) {
  const LaunchersStore launcher;
  const auto told = [](int64_t rank) {
    return AllOf(StartsWith("another process is rank " + std::to_string(rank) + " already: give"),
                 HasSubstr("rank " + std::to_string(rank) + " (RANK) of 2"));
  };
  // The first process with rank 0 has met nobody when the second one comes. The first is told that
  // its rank is taken, and the second meets rank 1.
  EXPECT_THAT(come_to(launcher, 2, {0, 0, 1}, std::chrono::seconds(20)),
              ElementsAre(told(0), "met", "met"));
  EXPECT_THAT(come_to(launcher, 2, {1, 1, 0}, std::chrono::seconds(20)),
              ::testing::UnorderedElementsAre("met", told(1), "met"));
  // Processes that come too late do not disturb those that have met.
  const auto late = [](const std::string& missing, int64_t rank) {
    return AllOf(HasSubstr(missing),
                 HasSubstr("another process has come as rank " + std::to_string(rank)));
  };
  EXPECT_THAT(come_to(launcher, 2, {0, 1, 0, 1}, Milliseconds(1000)),
              ElementsAre("met", "met", "met", "met"))
      << "a job that is started twice at one store: each start meets on its own";
  EXPECT_THAT(come_to(launcher, 2, {0, 1, 0}, Milliseconds(1000)),
              ElementsAre("met", "met", late("rank 1 did not connect in time", 0)));
  EXPECT_THAT(come_to(launcher, 2, {1, 0, 1}, Milliseconds(1000)),
              ElementsAre("met", "met", late("rank 0 did not come within 1000 ms", 1)));
}

// The thread of c10d's store writes to clients that have closed their connections. That must not
// end the process by SIGPIPE.
TEST(Session, TheStoreOutlivesClientsThatDoNotWaitForItsAnswers) {
  const MasterPort port;
  RankProcesses server(1, [&](int64_t, const Say& say) {
    int number = port.number();
    Socket listener = listen_on("127.0.0.1", &number);
    const auto store = serve_store(std::move(listener), {"127.0.0.1", number}, "");
    say("serves");
    raise(SIGSTOP);
    const auto client = connect_store("127.0.0.1", number, "", std::chrono::seconds(20));
    client->set("key", "value");
    say(client->get("key").value_or("nothing"));
  });
  EXPECT_EQ(server.next(0), "serves");
  std::this_thread::sleep_for(Milliseconds(100));
  // Each client sends c10d's greeting and two requests for the number of keys, and does not wait
  // for the answers.
  const std::string requests = std::string("\0\xce\xf7\x85\x3c", 5) + std::string(2, '\7');
  for (int client = 0; client < 3; ++client) {
    const Socket socket = begin_connect({"127.0.0.1", port.number()});
    pollfd polled{socket.get(), POLLOUT, 0};
    EXPECT_EQ(poll(&polled, 1, /*timeout=*/10000), 1);
    EXPECT_EQ(write(socket.get(), requests.data(), requests.size()), requests.size());
  }
  server.send(0, SIGCONT);
  EXPECT_EQ(server.next(0), "value");
  EXPECT_EQ(server.how_it_ends(0), "");
}

// If the store is gone, all ranks throw the same, and neither the exception nor c10d's log has
// stack frames.
TEST(Session, AStoreThatIsGoneSaysSoWithoutStackFrames) {
  LaunchersStore launcher;
  const std::string log = ::testing::TempDir() + "/stderr_of_a_client";
  RankProcesses ranks(2, [&](int64_t rank, const Say& say) {
    auto session = Session::connect(launcher.environment(rank, 2), quick());
    if (rank == 0 && std::freopen(log.c_str(), "w", stderr) == nullptr) return;
    say("connected");
    for (int k = 0;; ++k) {
      try {
        session->exchange_among({rank}, "values " + std::to_string(k), "");
      } catch (const DistributedFailure& error) {
        std::fflush(stderr);
        std::string text = error.what();
        text.erase(std::remove(text.begin(), text.end(), '\n'), text.end());
        say(text);
        break;
      }
    }
    _exit(0);
  });
  for (int64_t rank = 0; rank < 2; ++rank) EXPECT_EQ(ranks.next(rank), "connected");
  launcher.send(SIGKILL);
  std::string all = ranks.next(0);
  EXPECT_THAT(all, HasSubstr("the launcher's store at"));
  EXPECT_EQ(ranks.next(1), all);
  std::ifstream file(log);
  all.append(std::istreambuf_iterator<char>(file), {});
  EXPECT_THAT(all, AllOf(::testing::Not(HasSubstr("frame #")),
                         ::testing::Not(HasSubstr("Exception raised from"))));
}

// The level of LibTorch's log belongs to the whole process, and a call to a stopped store never
// returns. Nevertheless the level must be the user's again when the session has given up.
TEST(Session, AUsersLevelOfTheLogStays) {
  LaunchersStore launcher;
  constexpr int kWarning = 1;  // LibTorch's default
  constexpr int kError = 2;
  RankProcesses ranks(2, [&](int64_t rank, const Say& say) {
    FLAGS_caffe2_log_level = rank == 0 ? kWarning : kError;
    SessionOptions options = quick();
    options.call_limit = Milliseconds(500);
    auto session = Session::connect(launcher.environment(rank, 2), options);
    say(std::to_string(FLAGS_caffe2_log_level));
    try {
      for (int k = 0;; ++k) {
        session->exchange_among({rank}, "values " + std::to_string(k), "");
      }
    } catch (const std::exception& error) {
      say(error.what());
    }
    say(std::to_string(FLAGS_caffe2_log_level));
    _exit(0);
  });
  for (int64_t rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(ranks.next(rank), std::to_string(rank == 0 ? kWarning : kError));
  }
  launcher.send(SIGSTOP);
  for (int64_t rank = 0; rank < 2; ++rank) {
    EXPECT_THAT(ranks.next(rank), HasSubstr("got no answer from the launcher's store"));
    EXPECT_EQ(ranks.next(rank), std::to_string(rank == 0 ? kWarning : kError));
  }
}

// What `check` refers to lives as long as the call of connect() only. A stopped store lets each
// rank wait.
TEST(Session, CallsNoCheckOnceItIsConnected) {
  LaunchersStore launcher;
  RankProcesses ranks(2, [&](int64_t rank, const Say& say) {
    bool is_connected = false;
    SessionOptions options = quick();
    options.call_limit = Milliseconds(500);
    options.check = [&] {
      if (is_connected) throw std::runtime_error("it was checked");
    };
    auto session = Session::connect(launcher.environment(rank, 2), options);
    is_connected = true;
    say("connected");
    try {
      for (int k = 0;; ++k) {
        session->exchange_among({rank}, "values " + std::to_string(k), "");
      }
    } catch (const std::exception& error) {
      say(error.what());
    }
    _exit(0);
  });
  for (int64_t rank = 0; rank < 2; ++rank) EXPECT_EQ(ranks.next(rank), "connected");
  launcher.send(SIGSTOP);
  for (int64_t rank = 0; rank < 2; ++rank) {
    EXPECT_THAT(ranks.next(rank), HasSubstr("got no answer from the launcher's store"));
  }
}

TEST(Session, OneProcessNeedsNobody) {
  auto session = Session::connect(read_environment(Map{}), quick());
  EXPECT_EQ(session->size(), 1);
  session->control().agree("balance", "3,3,2");
  EXPECT_THROW(session->store(), std::logic_error);
  EXPECT_THROW(session->connect_group("tensors"), std::logic_error);
  EXPECT_THAT(listens_on(), IsEmpty());
}

}  // namespace
}  // namespace gpipe::distributed
