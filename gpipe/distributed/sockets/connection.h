// Connection: frames over one TCP socket, without ever blocking.
#ifndef GPIPE_DISTRIBUTED_SOCKETS_CONNECTION_H_
#define GPIPE_DISTRIBUTED_SOCKETS_CONNECTION_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/distributed/sockets/sockets.h"

namespace gpipe::distributed {

struct Frame {
  uint8_t type = 0;
  uint32_t epoch = 0;
  std::string body;
};

// Not thread-safe.
//
// Guarantees: whatever the other end sends, it takes no more memory than the bytes that have
// arrived, and no more than one frame of the greatest size and a read beyond.
class Connection {
 public:
  // The greatest body unless limit() is called: of a text of one megabyte and what surrounds it.
  static constexpr size_t kGreatestBody = (1 << 20) + 4096;

  enum class State {
    kOpen,
    kClosed,   // by the other end, or it broke
    kDamaged,  // the other end sends what is no frame
  };

  Connection() = default;
  explicit Connection(Socket socket) : socket_(std::move(socket)) {}

  int descriptor() const { return socket_.get(); }
  bool is_open() const { return socket_.is_open(); }
  void close() { socket_.close(); }
  Socket take_socket() { return std::move(socket_); }

  // Of the bodies that the other end may send from now on.
  void limit(size_t greatest_body) { greatest_body_ = greatest_body; }

  // Appends to what is to be written. flush() writes it as far as that does not block, and returns
  // false if the connection is broken.
  void queue(const Frame& frame);
  bool flush();
  bool has_unwritten() const { return written_ < out_.size(); }
  // Of a connection that is broken: what has arrived can still be read.
  void forget_unwritten() {
    out_.clear();
    written_ = 0;
  }

  // Appends the frames that have arrived; of a flood some, and the next read() goes on.
  State read(std::vector<Frame>& frames);

 private:
  State parse(std::vector<Frame>& frames);

  Socket socket_;
  std::string in_;
  std::string out_;
  size_t written_ = 0;  // of out_
  size_t greatest_body_ = kGreatestBody;
};

}  // namespace gpipe::distributed

#endif  // GPIPE_DISTRIBUTED_SOCKETS_CONNECTION_H_
