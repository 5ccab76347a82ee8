#include "gpipe/distributed/sockets/new_listeners.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "gpipe/distributed/sockets/sockets.h"

namespace gpipe::distributed {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// A server like Gloo's: a listener for which an epoll waits.
struct Server {
  int port = 0;
  Socket listener = listen_on("127.0.0.1", &port);
  Socket epoll{epoll_create1(EPOLL_CLOEXEC)};

  Server() {
    epoll_event event{EPOLLIN, {}};
    EXPECT_EQ(epoll_ctl(epoll.get(), EPOLL_CTL_ADD, listener.get(), &event), 0);
  }
};

bool connects(const Socket& socket) {
  pollfd polled{socket.get(), POLLOUT, 0};
  return poll(&polled, 1, 300) == 1 && connect_error(socket) == 0;
}

std::string heard(const Socket& socket, size_t size) {
  std::string text(size, '\0');
  pollfd polled{socket.get(), POLLIN, 0};
  EXPECT_EQ(poll(&polled, 1, 5000), 1);
  const ssize_t read = recv(socket.get(), text.data(), size, 0);
  return text.substr(0, read < 0 ? 0 : static_cast<size_t>(read));
}

TEST(NewListeners, AreThoseThatANewEpollWaitsFor) {
  const Server before;
  NewListeners listeners;
  const Server server;
  int port = 0;
  const Socket without_epoll = listen_on("127.0.0.1", &port);
  epoll_event event{EPOLLIN, {}};
  EXPECT_EQ(epoll_ctl(before.epoll.get(), EPOLL_CTL_ADD, without_epoll.get(), &event), 0);
  listeners.find();
  EXPECT_THAT(listeners.found(), ElementsAre(server.listener.get()));
}

TEST(NewListeners, AreNoneWhereNothingIsNew) {
  const Server server;
  NewListeners listeners;
  listeners.find();
  EXPECT_THAT(listeners.found(), IsEmpty());
}

// Whether a thread that waits for the server's epoll would be woken within 50 ms.
bool is_woken(const Server& server) {
  epoll_event event{};
  return epoll_wait(server.epoll.get(), &event, 1, 50) == 1;
}

TEST(NewListeners, WakeNobodyAndLetNobodyIn) {
  NewListeners listeners;
  const Server server;
  const Server other;
  listeners.find();
  const Socket first = begin_connect({"127.0.0.1", server.port});
  ASSERT_TRUE(connects(first));
  ASSERT_TRUE(is_woken(server));
  const Socket accepted = accept_on(server.listener);

  listeners.ignore_all();
  for (const Server* ignoring : {&server, &other}) {
    // The kernel's queue holds one or two connections, so at most two of these four connect.
    std::vector<Socket> strangers;
    int let_in = 0;
    for (int k = 0; k < 4; ++k) {
      strangers.push_back(begin_connect({"127.0.0.1", ignoring->port}));
      let_in += connects(strangers.back());
    }
    EXPECT_LE(let_in, 2);
    EXPECT_FALSE(is_woken(*ignoring));
    // The owner must be able to remove its listener from the epoll, as it does when it closes.
    EXPECT_EQ(epoll_ctl(ignoring->epoll.get(), EPOLL_CTL_DEL, ignoring->listener.get(), nullptr),
              0);
  }
  // Existing connections still work.
  ASSERT_EQ(send(first.get(), "to", 2, MSG_NOSIGNAL), 2);
  EXPECT_EQ(heard(accepted, 2), "to");
  ASSERT_EQ(send(accepted.get(), "fro", 3, MSG_NOSIGNAL), 3);
  EXPECT_EQ(heard(first, 3), "fro");
}

// ignore_all() must keep the value that the owner stored with the listener. The owner still gets
// that value when the listener has an error.
TEST(NewListeners, KeepWhatTheirOwnerKnowsThemBy) {
  NewListeners listeners;
  int port = 0;
  const Socket listener = listen_on("127.0.0.1", &port);
  const Socket epoll(epoll_create1(EPOLL_CLOEXEC));
  epoll_event event{EPOLLIN, {}};
  event.data.u64 = 0xfedcba9876543210;
  ASSERT_EQ(epoll_ctl(epoll.get(), EPOLL_CTL_ADD, listener.get(), &event), 0);
  listeners.find();
  listeners.ignore_all();
  ASSERT_EQ(shutdown(listener.get(), SHUT_RD), 0);  // an epoll always reports a hang-up
  event = {};
  ASSERT_EQ(epoll_wait(epoll.get(), &event, 1, 1000), 1);
  EXPECT_EQ(event.data.u64, 0xfedcba9876543210);
}

}  // namespace
}  // namespace gpipe::distributed
