#include "gpipe/distributed/sockets/connection.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "gpipe/testing/seed.h"

namespace gpipe::distributed {
namespace {

using ::testing::HasSubstr;
using State = Connection::State;

class ConnectionTest : public ::testing::Test {
 protected:
  ConnectionTest() {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) != 0) std::abort();
    here_ = Connection(Socket(ends[0]));
    there_ = Socket(ends[1]);
  }

  // The bytes that the other end has written.
  std::string written() {
    std::string text(1 << 20, 0);
    const ssize_t count = recv(there_.get(), text.data(), text.size(), 0);
    text.resize(count < 0 ? 0 : static_cast<size_t>(count));
    return text;
  }
  void write(const std::string& bytes) {
    ASSERT_EQ(send(there_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }

  Connection here_;
  Socket there_;
};

TEST_F(ConnectionTest, FramesArriveWholeInWhateverPieces) {
  here_.queue({3, 7, "a body"});
  here_.queue({4, 8, ""});
  here_.queue({255, 4000000000U, std::string(5000, 'x')});
  EXPECT_TRUE(here_.has_unwritten());
  EXPECT_TRUE(here_.flush());
  EXPECT_FALSE(here_.has_unwritten());
  const std::string bytes = written();
  std::vector<Frame> frames;
  for (char byte : bytes) {
    write(std::string(1, byte));
    EXPECT_EQ(here_.read(frames), State::kOpen);
  }
  ASSERT_EQ(frames.size(), 3);
  EXPECT_EQ(frames[0].type, 3);
  EXPECT_EQ(frames[0].epoch, 7);
  EXPECT_EQ(frames[0].body, "a body");
  EXPECT_EQ(frames[1].body, "");
  EXPECT_EQ(frames[2].type, 255);
  EXPECT_EQ(frames[2].epoch, 4000000000U);
  EXPECT_EQ(frames[2].body.size(), 5000);
}

TEST_F(ConnectionTest, WritesNoMoreThanFits) {
  const std::string body(1 << 20, 'x');
  for (int i = 0; i < 4; ++i) here_.queue({1, 0, body});
  EXPECT_TRUE(here_.flush());
  EXPECT_TRUE(here_.has_unwritten());
  std::string all;
  while (here_.has_unwritten()) {
    all += written();
    EXPECT_TRUE(here_.flush());
  }
  for (std::string more = written(); !more.empty(); more = written()) all += more;
  EXPECT_EQ(all.size(), 4 * (body.size() + 16));
}

TEST_F(ConnectionTest, TheOtherEndsEndComesAfterWhatItWrote) {
  here_.queue({9, 0, "last words"});
  EXPECT_TRUE(here_.flush());
  write(written());
  there_.close();
  std::vector<Frame> frames;
  EXPECT_EQ(here_.read(frames), State::kClosed);
  ASSERT_EQ(frames.size(), 1);
  EXPECT_EQ(frames[0].body, "last words");
  here_.queue({9, 0, "to nobody"});
  EXPECT_FALSE(here_.flush());
  here_.forget_unwritten();
  EXPECT_FALSE(here_.has_unwritten());
}

TEST_F(ConnectionTest, RefusesABodyAboveTheLimit) {
  here_.limit(5);
  std::vector<Frame> frames;
  here_.queue({1, 0, "12345"});
  here_.queue({1, 0, "123456"});
  EXPECT_TRUE(here_.flush());
  write(written());
  EXPECT_EQ(here_.read(frames), State::kDamaged);
  EXPECT_EQ(frames.size(), 1);
}

TEST_F(ConnectionTest, RefusesAnotherHead) {
  here_.queue({1, 0, "body"});
  EXPECT_TRUE(here_.flush());
  const std::string right = written();
  // Bytes 0 to 3 are the magic number and bytes 5 to 7 belong to the type, which would then exceed
  // all types.
  for (const size_t byte : {0, 1, 2, 3, 5, 6, 7}) {
    std::string wrong = right;
    wrong[byte] = static_cast<char>(wrong[byte] + 1);
    int ends[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
    here_ = Connection(Socket(ends[0]));
    there_ = Socket(ends[1]);
    write(wrong);
    std::vector<Frame> frames;
    EXPECT_EQ(here_.read(frames), State::kDamaged) << byte;
  }
}

// The connection reads random bytes, half of which begin like a frame. There are never more frames
// than bytes for them, nothing is read beyond the bytes (the sanitizers check that), and damage is
// noticed.
TEST_F(ConnectionTest, RandomBytesAreDamage) {
  auto random = testing::test_random();
  int damaged = 0;
  for (int round = 0; round < 10000; ++round) {
    int ends[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
    here_ = Connection(Socket(ends[0]));
    there_ = Socket(ends[1]);
    std::string bytes;
    for (uint64_t size = random() % 100; size > 0; --size) bytes += static_cast<char>(random());
    if (random() % 2 == 0) bytes = "GPC1" + std::string("\2\0\0\0\0\0\0\0", 8) + bytes;
    write(bytes);
    std::vector<Frame> frames;
    const State state = here_.read(frames);
    damaged += state == State::kDamaged;
    size_t total = 0;
    for (const Frame& frame : frames) total += 16 + frame.body.size();
    EXPECT_LE(total, bytes.size());
    // If the connection is still open, the rest that could be a head has the magic number.
    // Otherwise damage would have been noticed.
    if (state == State::kOpen && bytes.size() >= 16 + total) {
      EXPECT_EQ(bytes.substr(total, 4), "GPC1");
    }
  }
  EXPECT_GT(damaged, 5000);
}

TEST(Sockets, ListenOnOneAddressOnly) {
  int port = 0;
  const Socket listener = listen_on("127.0.0.1", &port);
  EXPECT_GT(port, 0);
  const auto error_at = [&](const std::string& address) {
    const Socket socket = begin_connect({address, port});
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    return connect_error(socket);
  };
  EXPECT_EQ(error_at("127.0.0.1"), 0);
  EXPECT_EQ(error_at("127.0.0.2"), ECONNREFUSED);
  EXPECT_TRUE(accept_on(listener).is_open());
  EXPECT_FALSE(accept_on(listener).is_open());
}

TEST(Sockets, SayWhatIsWrong) {
  const auto message = [](const auto& act) -> std::string {
    try {
      act();
    } catch (const std::runtime_error& error) {
      return error.what();
    }
    return "nothing was thrown";
  };
  int port = 0;
  EXPECT_THAT(message([&] { listen_on("localhost", &port); }),
              HasSubstr("'localhost' is not a numeric address"));
  EXPECT_THAT(message([&] { listen_on("192.0.2.1", &port); }),
              HasSubstr("cannot listen on 192.0.2.1:0: "));
  EXPECT_THAT(message([&] { begin_connect({"", 1}); }), HasSubstr("'' is not a numeric address"));
  EXPECT_EQ(to_text(Endpoint{"::1", 5}), "[::1]:5");
}

}  // namespace
}  // namespace gpipe::distributed
