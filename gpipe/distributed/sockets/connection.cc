#include "gpipe/distributed/sockets/connection.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>

namespace gpipe::distributed {
namespace {

constexpr uint32_t kMagic = 0x31435047;  // "GPC1"

struct Header {
  uint32_t magic;
  uint32_t type;
  uint32_t epoch;
  uint32_t size;  // bytes of the body that follows
};

}  // namespace

void Connection::queue(const Frame& frame) {
  const Header header{kMagic, frame.type, frame.epoch, static_cast<uint32_t>(frame.body.size())};
  out_.append(reinterpret_cast<const char*>(&header), sizeof header);
  out_.append(frame.body);
}

bool Connection::flush() {
  while (has_unwritten()) {
    const ssize_t count =
        send(socket_.get(), out_.data() + written_, out_.size() - written_, MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return true;
    if (count < 0) {
      error_ = errno;
      return false;
    }
    written_ += static_cast<size_t>(count);
  }
  out_.clear();
  written_ = 0;
  return true;
}

Connection::State Connection::read(std::vector<Frame>& frames) {
  // The most reads in one call, because a flood over one connection would delay the others.
  constexpr int kMostReads = 16;
  char bytes[16384];
  for (int reads = 0; reads < kMostReads; ++reads) {
    const ssize_t count = recv(socket_.get(), bytes, sizeof bytes, 0);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    if (count < 0) error_ = errno;
    if (count <= 0) return State::kClosed;
    in_.append(bytes, static_cast<size_t>(count));
    if (parse(frames) == State::kDamaged) return State::kDamaged;
  }
  return State::kOpen;
}

Connection::State Connection::parse(std::vector<Frame>& frames) {
  size_t begin = 0;
  State state = State::kOpen;
  while (in_.size() - begin >= sizeof(Header)) {
    Header header;
    std::memcpy(&header, in_.data() + begin, sizeof header);
    if (header.magic != kMagic || header.type > UINT8_MAX || header.size > greatest_body_) {
      state = State::kDamaged;
      break;
    }
    const size_t end = begin + sizeof header + header.size;
    if (in_.size() < end) break;
    frames.push_back({static_cast<uint8_t>(header.type), header.epoch,
                      in_.substr(begin + sizeof header, header.size)});
    begin = end;
  }
  in_.erase(0, begin);
  return state;
}

}  // namespace gpipe::distributed
