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
// Guarantees: whatever the other end sends, this takes no more memory than the bytes that have
// arrived, and no more than one frame of the greatest size plus one read.
class Connection {
 public:
  // The greatest body, in bytes, unless limit() is called: a text of one megabyte and other fields.
  static constexpr size_t kGreatestBody = (1 << 20) + 4096;

  enum class State {
    kOpen,
    kClosed,   // by the other end, or it broke
    kDamaged,  // the other end sends bytes that are not a frame
  };

  Connection() = default;
  explicit Connection(Socket socket) : socket_(std::move(socket)) {}

  int descriptor() const { return socket_.get(); }
  bool is_open() const { return socket_.is_open(); }
  void close() { socket_.close(); }
  Socket take_socket() { return std::move(socket_); }

  // Sets the greatest body, in bytes, that the other end may send from now on.
  void limit(size_t greatest_body) { greatest_body_ = greatest_body; }

  // Appends a frame to the unwritten bytes. flush() writes as many as it can without blocking, and
  // returns false if the connection is broken.
  void queue(const Frame& frame);
  bool flush();
  bool has_unwritten() const { return written_ < out_.size(); }
  // For a broken connection: drops the unwritten bytes. Frames that have arrived can still be read.
  void forget_unwritten() {
    out_.clear();
    written_ = 0;
  }

  // Appends the frames that have arrived. One call reads a limited amount; the next one goes on.
  State read(std::vector<Frame>& frames);
  // The errno that broke the connection; 0 if it did not break, or if the other end closed it.
  int error() const { return error_; }

 private:
  State parse(std::vector<Frame>& frames);

  Socket socket_;
  std::string in_;
  std::string out_;
  size_t written_ = 0;  // bytes of out_ that have been written
  size_t greatest_body_ = kGreatestBody;
  int error_ = 0;
};

}  // namespace gpipe::distributed

#endif  // GPIPE_DISTRIBUTED_SOCKETS_CONNECTION_H_
