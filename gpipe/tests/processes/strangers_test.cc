// Strangers connect to the ports of c10d's store and of Gloo during a run. Whether they send
// nonsense or nothing, no bit of the results may change. docs/guide/24-processes.md says what is
// not promised.
//
// Our own port has a test of its own (control_test), and is closed once all ranks are connected.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/types.h>
#include <torch/utils.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <random>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gpipe/distributed/sockets/sockets.h"
#include "gpipe/gpipe.h"
#include "gpipe/testing/processes/world_ranks.h"
#include "gpipe/testing/seed.h"

namespace gpipe::distributed {
namespace {

using ::testing::SizeIs;
using Say = WorldRanks::Say;

constexpr int64_t kRanks = 2;
constexpr int kAtStore = 10'000;
constexpr int kAtGloo = 600;
// Fewer descriptors than strangers (kAtGloo): Gloo would keep each connection that sends eight
// bytes, or nothing, until the run ends.
constexpr int kFilesOfARank = 300;

struct Listener {
  int port = 0;
  unsigned waiting = 0;  // connections that have not been accepted
};

std::vector<Listener> listeners_here() {
  std::vector<Listener> listeners;
  for (int descriptor = 0; descriptor < 1000; ++descriptor) {
    int listens = 0;
    socklen_t size = sizeof listens;
    if (getsockopt(descriptor, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) != 0) continue;
    sockaddr_in address{};
    size = sizeof address;
    auto* const where = reinterpret_cast<sockaddr*>(&address);
    if (listens == 0 || getsockname(descriptor, where, &size) != 0) continue;
    tcp_info info{};
    size = sizeof info;
    if (getsockopt(descriptor, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) continue;
    listeners.push_back({ntohs(address.sin_port), info.tcpi_unacked});
  }
  return listeners;
}

// Whether the store has accepted all connections within five seconds. Returns true if the store is
// in another process.
bool nobody_waits() {
  const int store = std::atoi(getenv("MASTER_PORT"));
  for (int k = 0; k < 500; ++k) {
    unsigned waiting = 0;
    for (const Listener& listener : listeners_here()) {
      if (listener.port == store) waiting += listener.waiting;
    }
    if (waiting == 0) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

// Limits the descriptors of this process, so that a rank that accepted all strangers would have
// none left.
bool limit_files() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return false;
  limit.rlim_cur = kFilesOfARank;
  return setrlimit(RLIMIT_NOFILE, &limit) == 0;
}

torch::nn::Sequential model() {
  namespace nn = torch::nn;
  torch::manual_seed(1);
  return nn::Sequential(nn::Linear(4, 8), nn::Dropout(0.3), nn::Linear(8, 8), nn::Linear(8, 4));
}

// A pipeline and its optimizer.
class Training {
 public:
  explicit Training(const World& world)
      : pipe_(model(), GPipeOptions({2, 2})
                           .placement(world.size() == 1 ? Placement::one_each(2)
                                                        : Placement::one_each(2).processes({0, 1}))
                           .chunks(4)
                           .cpu_threads_per_stage(1)
                           .world(world)),
        optimizer_(pipe_->local_parameters(), 0.01) {}

  double step() {
    torch::manual_seed(++steps_);
    optimizer_.zero_grad();
    const torch::Tensor x = torch::linspace(-1, 1, 32).view({8, 4});
    const double loss = pipe_
                            ->step({x}, {x},
                                   [](torch::Tensor output, torch::Tensor target) {
                                     return torch::nn::functional::mse_loss(output, target);
                                   })
                            .loss;
    pipe_->clip_grad_norm_(0.1);
    optimizer_.step();
    return loss;
  }
  std::string hash() { return pipe_->parameter_hash(); }

 private:
  GPipe pipe_;
  torch::optim::Adam optimizer_;
  int64_t steps_ = 0;
};

// Random texts that strangers send.
class Nonsense {
 public:
  explicit Nonsense(uint64_t stream) : random_(testing::test_random(stream)) {}

  std::string next() {
    std::string text;
    for (uint64_t size = random_() % 200; size > 0; --size) text += static_cast<char>(random_());
    // Half of the texts begin with a small number, because the numbers of c10d's requests are
    // small. The first request of a client must be a greeting.
    if (!text.empty() && random_() % 2 == 0) text[0] = static_cast<char>(random_() % 20);
    return text;
  }
  uint64_t draw(uint64_t count) { return random_() % count; }

 private:
  std::mt19937_64 random_;
};

// Connects strangers, all at once, to a port of Gloo's group, which already has all its
// connections. Returns how many of the strangers the kernel has connected.
int knock(int port) {
  std::vector<Socket> knocking;
  for (int k = 0; k < kAtGloo; ++k) knocking.push_back(begin_connect({"127.0.0.1", port}));
  return static_cast<int>(std::count_if(knocking.begin(), knocking.end(), [](const Socket& socket) {
    pollfd polled{socket.get(), POLLOUT, 0};
    return poll(&polled, 1, 0) == 1 && connect_error(socket) == 0;
  }));
}

// Connects strangers to the store's port. Some send nothing, and some stay connected: `silent`
// keeps these.
void speak(int port, std::vector<Socket>& silent) {
  Nonsense nonsense(static_cast<uint64_t>(port));
  for (int k = 0; k < kAtStore; ++k) {
    Socket socket = begin_connect({"127.0.0.1", port});
    const std::string text = nonsense.next();
    pollfd polled{socket.get(), POLLOUT, 0};
    if (poll(&polled, 1, 5000) != 1) throw std::runtime_error("a port does not answer");
    if (nonsense.draw(10) > 0) (void)send(socket.get(), text.data(), text.size(), MSG_NOSIGNAL);
    // Some strangers send the text once more. To the store this is the rest of a message, or the
    // begin of another one.
    if (nonsense.draw(4) == 0) (void)send(socket.get(), text.data(), text.size(), MSG_NOSIGNAL);
    if (nonsense.draw(20) == 0 && silent.size() < 200) silent.push_back(std::move(socket));
  }
}

TEST(Strangers, AtThePortsOfTheStoreAndOfGlooChangeNoBit) {
  std::array<std::array<int, 2>, kRanks> orders{};
  for (auto& pipe_of_rank : orders) ASSERT_EQ(pipe(pipe_of_rank.data()), 0);
  WorldRanks ranks(kRanks, [&](const World& world, const Say& say) {
    const int orders_here = orders[static_cast<size_t>(world.rank())][0];
    const auto goes_on = [&] {
      char order = 0;
      return read(orders_here, &order, 1) == 1 && order == 's';
    };
    say(limit_files() ? "limited" : "not limited");
    Training training(world);
    Training alone{World()};
    say(outcome([&] { return training.step() == alone.step() ? "same" : "another loss"; }));
    std::string ports = getenv("MASTER_PORT");
    for (const Listener& listener : listeners_here()) ports += " " + std::to_string(listener.port);
    say(ports);
    while (goes_on()) {
      say(outcome([&] { return training.step() == alone.step() ? "same" : "another loss"; }));
    }
    say(nobody_waits() ? "all were let in" : "some wait");
    say(outcome([&] { return training.hash() == alone.hash() ? "same" : "another hash"; }));
    // A second World needs the store for its groups, so the store must still serve new clients.
    say(outcome([&] {
      Training again(World::from_environment(WorldRanks::quick()));
      Training alone_again{World()};
      return again.step() == alone_again.step() ? "same" : "another loss";
    }));
  });
  for (int64_t rank = 0; rank < kRanks; ++rank) {
    ASSERT_EQ(ranks->next(rank), "limited");
    ASSERT_EQ(ranks->next(rank), "same");
  }
  std::vector<std::pair<int, bool>> ports;  // a port, and whether it is the store's
  for (int64_t rank = 0; rank < kRanks; ++rank) {
    std::istringstream words(ranks->next(rank));
    int master = 0;
    words >> master;
    for (int port = 0; words >> port;) ports.emplace_back(port, port == master);
  }
  // The processes listen at the store's port, and each at two ports of Gloo.
  ASSERT_THAT(ports, SizeIs(1 + 2 * kRanks));
  ASSERT_EQ(std::count_if(ports.begin(), ports.end(), [](const auto& port) { return port.second; }),
            1);

  std::atomic<bool> are_there{true};
  std::string wrong;
  std::vector<Socket> silent;
  std::thread strangers([&] {
    try {
      for (const auto& [port, store] : ports) {
        if (store) {
          speak(port, silent);
        } else if (knock(port) > 2) {  // the kernel's queue holds up to two
          wrong += "Gloo lets strangers in";
        }
      }
    } catch (const std::exception& error) {
      wrong += error.what();
    }
    are_there = false;
  });
  const auto order = [&](char what) {
    for (const auto& pipe_of_rank : orders) EXPECT_EQ(write(pipe_of_rank[1], &what, 1), 1);
  };
  int64_t steps = 0;
  bool goes_well = true;
  while (are_there && goes_well) {
    order('s');
    for (int64_t rank = 0; rank < kRanks; ++rank) {
      const std::string line = ranks->next(rank);
      EXPECT_EQ(line, "same") << "rank " << rank << ", step " << steps;
      goes_well = goes_well && line == "same";
    }
    ++steps;
  }
  strangers.join();
  EXPECT_EQ(wrong, "");
  EXPECT_GT(steps, 5);
  EXPECT_GT(silent.size(), 100);
  order('e');
  for (int64_t rank = 0; rank < kRanks; ++rank) {
    EXPECT_EQ(ranks->next(rank), "all were let in");
    EXPECT_EQ(ranks->next(rank), "same") << "the hash of rank " << rank;
    EXPECT_EQ(ranks->next(rank), "same") << "connecting again, rank " << rank;
  }
  ranks.expect_ends();
  for (const auto& pipe_of_rank : orders) {
    for (const int end : pipe_of_rank) close(end);
  }
}

}  // namespace
}  // namespace gpipe::distributed
