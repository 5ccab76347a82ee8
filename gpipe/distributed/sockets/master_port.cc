#include "gpipe/distributed/sockets/master_port.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <string>

namespace gpipe::distributed {
namespace {

// Binds a socket to any free port, on all addresses, so that the port is free on each of them.
// Returns -1 if the system does not have this family of addresses.
int bind_any(int family) {
  const int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  const int yes = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  sockaddr_storage any = {};
  any.ss_family = static_cast<sa_family_t>(family);
  socklen_t size = sizeof(sockaddr_in);
  if (family == AF_INET6) {
    const int no = 0;
    setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no);
    size = sizeof(sockaddr_in6);
  }
  if (bind(fd, reinterpret_cast<const sockaddr*>(&any), size) == 0) return fd;
  close(fd);
  return -1;
}

}  // namespace

MasterPort::MasterPort() : socket_(bind_any(AF_INET6)) {
  if (socket_ < 0) socket_ = bind_any(AF_INET);
  if (socket_ < 0) {
    throw std::runtime_error("no port is free on this machine: " +
                             std::string(std::strerror(errno)));
  }
  sockaddr_in6 address = {};  // its port is at the same place as in sockaddr_in
  socklen_t size = sizeof address;
  getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &size);
  number_ = ntohs(address.sin6_port);
}

MasterPort::~MasterPort() { close(socket_); }

}  // namespace gpipe::distributed
