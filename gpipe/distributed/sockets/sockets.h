// Sockets: TCP sockets that listen on one address or connect to one, and never block.
#ifndef GPIPE_DISTRIBUTED_SOCKETS_SOCKETS_H_
#define GPIPE_DISTRIBUTED_SOCKETS_SOCKETS_H_

#include <chrono>
#include <string>
#include <utility>

namespace gpipe::distributed {

// Owns a file descriptor and closes it. Moved, not copied.
//
// The descriptors of connections are private: a child of fork() does not keep them open
// (private_descriptors.h).
class Socket {
 public:
  Socket() = default;
  explicit Socket(int descriptor) : descriptor_(descriptor) {}
  ~Socket() { close(); }
  Socket(Socket&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    if (this != &other) {
      close();
      descriptor_ = std::exchange(other.descriptor_, -1);
    }
    return *this;
  }

  int get() const { return descriptor_; }
  bool is_open() const { return descriptor_ >= 0; }
  int release() { return std::exchange(descriptor_, -1); }
  void close();

 private:
  int descriptor_ = -1;
};

// The address and port at which a rank can be reached.
struct Endpoint {
  std::string address;  // numeric, IPv4 or IPv6
  int port = 0;
};

// A text like "10.0.0.2:4711" or "[fe80::1]:4711".
std::string to_text(const Endpoint& endpoint);

// A socket that listens on this address only, not on all addresses of the machine. *port 0: any
// free port; *port becomes its number. The socket is not private: tests give it to a child. Throws
// std::runtime_error that names the address.
Socket listen_on(const std::string& address, int* port);

// A socket that begins to connect; it becomes writable when it is connected or has failed. Throws
// std::runtime_error if it cannot even begin.
Socket begin_connect(const Endpoint& endpoint);

// The result of begin_connect(), once the socket is writable or has an error: 0 or an errno.
int connect_error(const Socket& socket);

// Makes the system look whether the other end of a connection can be reached while nothing is sent
// over it. If it cannot for about `limit`, a second at least, the connection breaks: reading and
// writing fail with an errno.
void watch_line(int descriptor, std::chrono::milliseconds limit);

// The next connection of a listening socket; not open if none is waiting. *error, if given, becomes
// 0, or an errno if a waiting connection cannot be accepted, e.g. if no descriptor is left.
Socket accept_on(const Socket& listener, int* error = nullptr);

}  // namespace gpipe::distributed

#endif  // GPIPE_DISTRIBUTED_SOCKETS_SOCKETS_H_
