#include "gpipe/distributed/control/mesh.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gpipe/distributed/control/control_messages.h"

namespace gpipe::distributed {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Kind = MeshEvent::Kind;

Mesh::Time now() { return std::chrono::steady_clock::now(); }

class MeshTest : public ::testing::Test {
 protected:
  // Makes some ranks in one process.
  void make(int64_t size) {
    for (int64_t rank = 0; rank < size; ++rank) {
      MeshOptions options;
      options.rank = rank;
      options.size = size;
      options.host = "host" + std::to_string(rank);
      options.token = "token";
      endpoints_.push_back({"127.0.0.1", 0});
      options.listener = listen_on("127.0.0.1", &endpoints_.back().port);
      meshes_.push_back(std::make_unique<Mesh>(std::move(options)));
    }
    events_.resize(meshes_.size());
  }

  // Runs all ranks until nothing has happened for a while.
  void settle() {
    for (int quiet = 0; quiet < 10;) {
      ++quiet;
      for (size_t rank = 0; rank < meshes_.size(); ++rank) {
        if (!meshes_[rank]) continue;
        for (MeshEvent& event : meshes_[rank]->read(now())) {
          quiet = 0;
          events_[rank].push_back(std::move(event));
        }
        meshes_[rank]->flush();
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }

  // The rank's events as texts ("connected 1", "frame 1: text", "lost 1: why"); forgets them.
  std::vector<std::string> told(size_t rank) {
    std::vector<std::string> texts;
    for (const MeshEvent& event : std::exchange(events_[rank], {})) {
      const std::string peer = std::to_string(event.rank);
      if (event.kind == Kind::kConnected) texts.push_back("connected " + peer);
      if (event.kind == Kind::kFrame) texts.push_back("frame " + peer + ": " + event.frame.body);
      if (event.kind == Kind::kLost) texts.push_back("lost " + peer + ": " + event.why);
    }
    return texts;
  }

  // Connects a stranger to a rank, and sends this frame.
  Socket stranger(size_t rank, const Frame& frame) {
    Socket socket = begin_connect(endpoints_[rank]);
    settle();
    Connection connection(std::move(socket));
    connection.queue(frame);
    connection.flush();
    return connection.take_socket();
  }
  // Whether a rank has closed the connection without an answer.
  bool is_dropped(Socket& socket) {
    settle();
    char byte;
    return recv(socket.get(), &byte, 1, 0) == 0;
  }

  std::vector<Endpoint> endpoints_;
  std::vector<std::unique_ptr<Mesh>> meshes_;
  std::vector<std::vector<MeshEvent>> events_;
};

TEST_F(MeshTest, ConnectsAllAndCarriesFrames) {
  make(3);
  EXPECT_THAT(meshes_[1]->missing(), ElementsAre(0, 2));
  meshes_[1]->add_peer(0, endpoints_[0], now());
  meshes_[2]->add_peer(0, endpoints_[0], now());
  meshes_[2]->add_peer(1, endpoints_[1], now());
  meshes_[2]->add_peer(1, {"127.0.0.1", 1}, now());  // ignored: rank 2 knows an endpoint of rank 1
  settle();
  EXPECT_THAT(told(0), ::testing::UnorderedElementsAre("connected 1", "connected 2"));
  EXPECT_THAT(told(2), ::testing::UnorderedElementsAre("connected 0", "connected 1"));
  EXPECT_THAT(meshes_[1]->missing(), IsEmpty());
  EXPECT_EQ(meshes_[1]->host(2), "host2");
  EXPECT_EQ(meshes_[2]->host(1), "host1");
  events_.assign(3, {});
  // All ranks are connected, so they accept no further connection.
  EXPECT_EQ(connect_error(begin_connect(endpoints_[0])), ECONNREFUSED);

  meshes_[0]->queue_for_all({9, 0, "to all"});
  meshes_[1]->queue(2, {9, 0, "to 2"});
  settle();
  EXPECT_THAT(told(1), ElementsAre("frame 0: to all"));
  EXPECT_THAT(told(2), ElementsAre("frame 0: to all", "frame 1: to 2"));

  meshes_[0]->queue(2, {9, 0, "last words"});
  meshes_[0]->flush();
  meshes_[0].reset();
  settle();
  const std::string gone = "its connections closed: it ended, was killed, or its machine went down";
  EXPECT_THAT(told(1), ElementsAre("lost 0: " + gone));
  EXPECT_THAT(told(2), ElementsAre("frame 0: last words", "lost 0: " + gone));
  EXPECT_FALSE(meshes_[1]->is_connected(0));
  meshes_[1]->queue(0, {9, 0, "to nobody"});
}

// The thread must not wait until a broken connection takes the rest, and what arrived before the
// end is still told.
TEST_F(MeshTest, FramesForABrokenConnectionAreDropped) {
  make(2);
  meshes_[1]->add_peer(0, endpoints_[0], now());
  settle();
  meshes_[0]->queue(1, {9, 0, "last words"});
  meshes_[0]->flush();
  meshes_[0].reset();
  events_.assign(2, {});
  // The system breaks the connection when it has answered the first frame.
  for (int tries = 0; tries < 5; ++tries) {
    meshes_[1]->queue(0, {9, 0, "to nobody"});
    meshes_[1]->flush();
    EXPECT_FALSE(meshes_[1]->has_unwritten(0)) << "after " << tries << " frames";
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  settle();
  const std::vector<std::string> texts = told(1);
  ASSERT_EQ(texts.size(), 2);
  EXPECT_EQ(texts[0], "frame 0: last words");
  EXPECT_THAT(texts[1], HasSubstr("lost 0: "));
}

TEST_F(MeshTest, DropsStrangers) {
  make(3);
  const Hello right{"token", 2, 3, "host"};
  const auto expect_dropped = [&](const Frame& frame) {
    Socket socket = stranger(1, frame);
    EXPECT_TRUE(is_dropped(socket));
  };
  for (const Hello& wrong : {Hello{"tokem", 2, 3, "host"}, Hello{"token", 2, 4, "host"},
                             Hello{"token", 1, 3, "host"}, Hello{"token", 0, 3, "host"},
                             Hello{"token", 3, 3, "host"}, Hello{"token", -1, 3, "host"}}) {
    expect_dropped(to_frame(wrong, 0));
  }
  expect_dropped(to_frame(MessageType::kBeat, 0));
  expect_dropped({1, 0, "no hello"});
  expect_dropped({1, 0, std::string(1025, 'x')});
  EXPECT_THAT(told(1), IsEmpty());
  // A stranger with a right hello is taken for the rank, but only once.
  Socket first = stranger(1, to_frame(right, 0));
  EXPECT_FALSE(is_dropped(first));
  EXPECT_THAT(told(1), ElementsAre("connected 2"));
  expect_dropped(to_frame(right, 0));
  // A rank that then sends a message that no rank sends is lost.
  (void)send(first.get(), "nonsense nonsense", 17, MSG_NOSIGNAL);
  settle();
  EXPECT_THAT(told(1), ElementsAre("lost 2: it sent what no rank sends"));
}

TEST_F(MeshTest, DropsSilentStrangersAndTheOldestOfMany) {
  make(2);
  Socket silent = begin_connect(endpoints_[0]);
  settle();
  EXPECT_FALSE(is_dropped(silent));
  EXPECT_LT(meshes_[0]->next_time(), now() + std::chrono::seconds(6));
  meshes_[0]->read(now() + std::chrono::seconds(6));
  EXPECT_TRUE(is_dropped(silent));
  EXPECT_EQ(meshes_[0]->next_time(), Mesh::Time::max());

  Socket oldest = begin_connect(endpoints_[0]);
  settle();
  std::vector<Socket> many;
  for (int i = 0; i < 64; ++i) many.push_back(begin_connect(endpoints_[0]));
  EXPECT_TRUE(is_dropped(oldest));
  EXPECT_FALSE(is_dropped(many.front()));
}

// If there are too many connections, the oldest is dropped. If a rank's hello has arrived on it
// since it was read last, the rank is connected all the same.
TEST_F(MeshTest, HearsADroppedStrangerOnceMore) {
  make(3);
  Connection rank(begin_connect(endpoints_[1]));
  settle();
  rank.queue(to_frame(Hello{"token", 2, 3, "host"}, 0));
  EXPECT_TRUE(rank.flush());
  std::vector<Socket> many;
  for (int i = 0; i < 64; ++i) many.push_back(begin_connect(endpoints_[1]));
  // Wait until the rank's hello has arrived.
  pollfd polled{rank.descriptor(), POLLOUT, 0};
  ASSERT_EQ(poll(&polled, 1, 1000), 1);
  settle();
  EXPECT_THAT(told(1), ElementsAre("connected 2"));
}

// A rank that drops another rank's connection, because it has too many strangers, is alive, and the
// other rank connects again. If nothing listens at its endpoint, it counts as lost.
TEST_F(MeshTest, ADroppedRankComesAgain) {
  make(2);
  int port = 0;
  Socket crowded = listen_on("127.0.0.1", &port);
  const Mesh::Time begin = now();
  Mesh& rank = *meshes_[1];
  rank.add_peer(0, {"127.0.0.1", port}, begin);
  int ms = 0;
  for (int drops = 0; drops < 5; ++ms) {
    const Mesh::Time time = begin + std::chrono::milliseconds(ms);
    ASSERT_THAT(rank.read(time), IsEmpty()) << "after " << ms << " ms and " << drops << " drops";
    rank.flush();
    // After each drop the test's clock moves on by 400 ms, so the five attempts take longer than
    // the limit for connecting.
    if (accept_on(crowded).is_open()) {
      ++drops;
      ms += 400;
    }
    ASSERT_LT(ms, 60000);
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  while (rank.last_error(0).empty()) rank.read(begin + std::chrono::milliseconds(++ms));
  EXPECT_EQ(rank.last_error(0), "it closed the connection of rank 1");
  EXPECT_THAT(rank.missing(), ElementsAre(0));
  crowded.close();
  std::vector<MeshEvent> events;
  for (int i = 0; i < 10000 && events.empty(); ++i) {
    events = rank.read(begin + std::chrono::milliseconds(++ms));
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  ASSERT_EQ(events.size(), 1);
  EXPECT_EQ(events[0].kind, Kind::kLost);
  EXPECT_THAT(events[0].why, HasSubstr("Connection refused"));
}

TEST_F(MeshTest, TriesAgainAndSaysWhoCannotBeReached) {
  make(2);
  int port = 0;
  { const Socket closed = listen_on("127.0.0.1", &port); }
  const Mesh::Time begin = now();
  meshes_[1]->add_peer(0, {"127.0.0.1", port}, begin);
  EXPECT_THAT(meshes_[1]->read(begin + std::chrono::milliseconds(400)), IsEmpty());
  EXPECT_LT(meshes_[1]->next_time(), begin + std::chrono::milliseconds(500));
  std::vector<MeshEvent> events;
  for (int i = 0; i < 5 && events.empty(); ++i) {
    events = meshes_[1]->read(begin + std::chrono::milliseconds(600));
  }
  ASSERT_EQ(events.size(), 1);
  EXPECT_EQ(events[0].kind, Kind::kLost);
  EXPECT_THAT(events[0].why, HasSubstr("rank 1 cannot connect to 127.0.0.1:" +
                                       std::to_string(port) + ": Connection refused"));
  EXPECT_THROW(meshes_[1]->add_peer(1, endpoints_[1], now()), std::invalid_argument);
}

// While it lives, this process cannot open another file.
class NoMoreFiles {
 public:
  NoMoreFiles() {
    getrlimit(RLIMIT_NOFILE, &before_);
    const int next = dup(0);
    close(next);
    rlimit limit = before_;
    limit.rlim_cur = static_cast<rlim_t>(next);
    setrlimit(RLIMIT_NOFILE, &limit);
  }
  ~NoMoreFiles() { setrlimit(RLIMIT_NOFILE, &before_); }
  NoMoreFiles(const NoMoreFiles&) = delete;
  NoMoreFiles& operator=(const NoMoreFiles&) = delete;

 private:
  rlimit before_{};
};

// While no descriptor is free, poll() does not report the connection that waits at the port. It is
// accepted when a descriptor is free again.
TEST_F(MeshTest, WithoutAFileForAConnectionTheThreadIsNotWokenAgainAndAgain) {
  make(2);
  meshes_[1]->add_peer(0, endpoints_[0], now());
  const Mesh::Time begin = now();
  {
    const NoMoreFiles no_more;
    EXPECT_THAT(meshes_[0]->read(begin), IsEmpty());
    std::vector<pollfd> polled;
    meshes_[0]->append_descriptors(polled);
    EXPECT_EQ(poll(polled.data(), polled.size(), /*timeout=*/0), 0);
    EXPECT_GT(meshes_[0]->next_time(), begin);
    EXPECT_LT(meshes_[0]->next_time(), begin + std::chrono::seconds(1));
    EXPECT_THAT(meshes_[0]->accept_error(), HasSubstr("open files"));
  }
  events_[0] = meshes_[0]->read(meshes_[0]->next_time());
  settle();
  EXPECT_THAT(told(0), ElementsAre("connected 1"));
  EXPECT_THAT(meshes_[0]->accept_error(), IsEmpty());
}

}  // namespace
}  // namespace gpipe::distributed
