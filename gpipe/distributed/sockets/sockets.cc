#include "gpipe/distributed/sockets/sockets.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>
#include <stdexcept>

#include "gpipe/distributed/sockets/private_descriptors.h"

namespace gpipe::distributed {
namespace {

[[noreturn]] void refuse(const std::string& what, int error) {
  throw std::runtime_error(what + ": " + std::strerror(error));
}

// Accepts numeric addresses only: no name is looked up, so this does not block.
std::unique_ptr<addrinfo, void (*)(addrinfo*)> resolve(const Endpoint& endpoint) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error =
      getaddrinfo(endpoint.address.c_str(), std::to_string(endpoint.port).c_str(), &hints, &found);
  if (error != 0) {
    throw std::runtime_error("'" + endpoint.address +
                             "' is not a numeric address: " + gai_strerror(error));
  }
  return {found, freeaddrinfo};
}

Socket open_socket(const addrinfo& address, bool is_private) {
  constexpr int kType = SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK;
  Socket socket(is_private ? open_private([&] { return ::socket(address.ai_family, kType, 0); })
                           : ::socket(address.ai_family, kType, 0));
  if (!socket.is_open()) refuse("cannot open a socket", errno);
  return socket;
}

// Makes the socket send without delay: messages are small, and a process waits for each of them.
void send_at_once(const Socket& socket) {
  const int on = 1;
  setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

}  // namespace

void Socket::close() {
  if (descriptor_ >= 0) close_private(std::exchange(descriptor_, -1));
}

std::string to_text(const Endpoint& endpoint) {
  const bool is_v6 = endpoint.address.find(':') != std::string::npos;
  return (is_v6 ? "[" + endpoint.address + "]" : endpoint.address) + ":" +
         std::to_string(endpoint.port);
}

Socket listen_on(const std::string& address, int* port) {
  const auto found = resolve({address, *port});
  Socket socket = open_socket(*found, /*is_private=*/false);
  const std::string what = "cannot listen on " + to_text(Endpoint{address, *port});
  const int on = 1;
  // SO_REUSEADDR is needed to listen on a port that a MasterPort reserves (master_port.h).
  setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (bind(socket.get(), found->ai_addr, found->ai_addrlen) != 0) refuse(what, errno);
  if (listen(socket.get(), SOMAXCONN) != 0) refuse(what, errno);
  sockaddr_storage bound{};
  socklen_t size = sizeof bound;
  if (getsockname(socket.get(), reinterpret_cast<sockaddr*>(&bound), &size) != 0) {
    refuse(what, errno);
  }
  *port = ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&bound)->sin6_port
                                            : reinterpret_cast<sockaddr_in*>(&bound)->sin_port);
  return socket;
}

Socket begin_connect(const Endpoint& endpoint) {
  const auto found = resolve(endpoint);
  Socket socket = open_socket(*found, /*is_private=*/true);
  send_at_once(socket);
  if (connect(socket.get(), found->ai_addr, found->ai_addrlen) != 0 && errno != EINPROGRESS) {
    refuse("cannot connect to " + to_text(endpoint), errno);
  }
  return socket;
}

int connect_error(const Socket& socket) {
  int error = 0;
  socklen_t size = sizeof error;
  if (getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0) return errno;
  return error;
}

void watch_line(int descriptor, std::chrono::milliseconds limit) {
  constexpr std::chrono::milliseconds kLeast{1000}, kMost = std::chrono::hours(24);
  constexpr int kProbes = 4;  // within the limit
  limit = std::clamp(limit, kLeast, kMost);
  const int pause = static_cast<int>(std::max<int64_t>(
      std::chrono::duration_cast<std::chrono::seconds>(limit).count() / kProbes, 1));
  const auto set = [&](int level, int option, auto value) {
    setsockopt(descriptor, level, option, &value, sizeof value);
  };
  set(IPPROTO_TCP, TCP_KEEPIDLE, pause);
  set(IPPROTO_TCP, TCP_KEEPINTVL, pause);
  set(IPPROTO_TCP, TCP_KEEPCNT, kProbes);
  // This limit also holds for bytes that were sent, which the system would repeat for 15 minutes.
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<unsigned>(limit.count()));
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
}

Socket accept_on(const Socket& listener, int* error) {
  int failed = 0;
  Socket socket(open_private([&] {
    const int accepted = accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    failed = accepted < 0 ? errno : 0;
    return accepted;
  }));
  // These errors mean that no connection is waiting, or that it has gone.
  if (failed == EAGAIN || failed == EWOULDBLOCK || failed == ECONNABORTED || failed == EINTR) {
    failed = 0;
  }
  if (error != nullptr) *error = failed;
  if (socket.is_open()) send_at_once(socket);
  return socket;
}

}  // namespace gpipe::distributed
