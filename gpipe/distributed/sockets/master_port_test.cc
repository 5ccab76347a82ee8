#include "gpipe/distributed/sockets/master_port.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

namespace gpipe::distributed {
namespace {

// Whether a socket that is set up as that of c10d's store can listen on this address and port.
bool can_listen(const char* address, int port) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  const int yes = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  sockaddr_in where = {};
  where.sin_family = AF_INET;
  where.sin_port = htons(static_cast<uint16_t>(port));
  inet_pton(AF_INET, address, &where.sin_addr);
  const bool listens =
      bind(fd, reinterpret_cast<const sockaddr*>(&where), sizeof where) == 0 && listen(fd, 1) == 0;
  close(fd);
  return listens;
}

TEST(MasterPort, Rank0CanListenOnIt) {
  const MasterPort port;
  ASSERT_GT(port.number(), 0);
  EXPECT_TRUE(can_listen("127.0.0.1", port.number()));
  EXPECT_TRUE(can_listen("0.0.0.0", port.number()));
  // A second listener can use the port after the first one: the port stays reserved.
  EXPECT_TRUE(can_listen("127.0.0.1", port.number()));
}

TEST(MasterPort, NothingListensOnIt) {
  const MasterPort port;
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in where = {};
  where.sin_family = AF_INET;
  where.sin_port = htons(static_cast<uint16_t>(port.number()));
  where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_NE(connect(fd, reinterpret_cast<const sockaddr*>(&where), sizeof where), 0);
  close(fd);
}

// Rank 0's store may listen on IPv6, too.
TEST(MasterPort, IsTakenOnIpv6) {
  const auto bind_to = [](int number) {
    const int fd = socket(AF_INET6, SOCK_STREAM, 0);
    const int yes = 1;
    setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &yes, sizeof yes);
    sockaddr_in6 where = {};
    where.sin6_family = AF_INET6;
    where.sin6_port = htons(static_cast<uint16_t>(number));
    const bool is_bound = bind(fd, reinterpret_cast<const sockaddr*>(&where), sizeof where) == 0;
    close(fd);
    return is_bound;
  };
  if (!bind_to(0)) GTEST_SKIP() << "this machine has no IPv6";
  const MasterPort port;
  EXPECT_FALSE(bind_to(port.number()));
}

TEST(MasterPort, IsTakenForOthers) {
  const MasterPort port;
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in where = {};
  where.sin_family = AF_INET;
  where.sin_port = htons(static_cast<uint16_t>(port.number()));
  EXPECT_NE(bind(fd, reinterpret_cast<const sockaddr*>(&where), sizeof where), 0);
  close(fd);
  const MasterPort other;
  EXPECT_NE(port.number(), other.number());
}

}  // namespace
}  // namespace gpipe::distributed
