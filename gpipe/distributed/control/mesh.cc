#include "gpipe/distributed/control/mesh.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <stdexcept>
#include <utility>

#include "gpipe/distributed/control/control_messages.h"
#include "gpipe/distributed/sockets/private_descriptors.h"
#include "gpipe/runtime/bytes.h"

namespace gpipe::distributed {
namespace {

using internal::DamagedMessage;
using Milliseconds = std::chrono::milliseconds;

// A rank is lost if no process listens at its endpoint for this long.
constexpr Milliseconds kConnecting{500};
constexpr Milliseconds kAgain{20};
constexpr Milliseconds kStrangerLimit{5000};
constexpr size_t kMostStrangers = 64;
constexpr size_t kLongestGreeting = 1024;

bool is_a(const Frame& frame, MessageType type) { return frame.type == static_cast<uint8_t>(type); }

}  // namespace

Mesh::Mesh(MeshOptions options)
    : options_(std::move(options)), peers_(static_cast<size_t>(options_.size)) {
  make_private(options_.listener.get());
}

void Mesh::add_peer(int64_t rank, const Endpoint& endpoint, Time now) {
  if (rank < 0 || rank >= options_.rank) {
    throw std::invalid_argument("add_peer(" + std::to_string(rank) + "): rank " +
                                std::to_string(options_.rank) +
                                " connects to lower ranks only; the others come by themselves");
  }
  if (peer(rank).state != State::kUnknown) return;
  peer(rank).endpoint = endpoint;
  peer(rank).missed_since = now;
  try_to_connect(rank, now);
}

void Mesh::append_descriptors(std::vector<pollfd>& polled) const {
  const auto add = [&](int descriptor, bool writes) {
    const int events = POLLIN | (writes ? POLLOUT : 0);
    if (descriptor >= 0) polled.push_back({descriptor, static_cast<short>(events), 0});
  };
  // After an accept error the listener stays readable, so poll() would return again and again.
  if (accept_error_.empty()) add(options_.listener.get(), false);
  for (const Stranger& stranger : strangers_) add(stranger.connection.descriptor(), false);
  for (const Peer& peer : peers_) {
    add(peer.connection.descriptor(),
        peer.state == State::kConnecting || peer.connection.has_unwritten());
  }
}

Mesh::Time Mesh::next_time() const {
  Time next = accept_error_.empty() ? Time::max() : next_accept_;
  for (const Peer& peer : peers_) {
    if (peer.state == State::kWaiting) next = std::min(next, peer.next_try);
  }
  for (const Stranger& stranger : strangers_) next = std::min(next, stranger.deadline);
  return next;
}

std::vector<MeshEvent> Mesh::read(Time now) {
  accept_strangers(now);
  read_strangers(now);
  for (int64_t rank = 0; rank < options_.size; ++rank) {
    const State state = peer(rank).state;
    if (state == State::kWaiting && now >= peer(rank).next_try) try_to_connect(rank, now);
    if (state == State::kConnecting) end_connecting(rank, now);
    if (state == State::kGreeting || state == State::kConnected) read_peer(rank, now);
  }
  return std::exchange(events_, {});
}

void Mesh::queue(int64_t rank, const Frame& frame) {
  if (is_connected(rank)) peer(rank).connection.queue(frame);
}

void Mesh::queue_for_all(const Frame& frame) {
  for (int64_t rank = 0; rank < options_.size; ++rank) queue(rank, frame);
}

void Mesh::flush() {
  for (Peer& peer : peers_) {
    if (!peer.connection.is_open() || peer.state == State::kConnecting) continue;
    // If the connection is broken, the frames are dropped without an event: read() reports the
    // loss, after the frames that arrived before.
    if (!peer.connection.flush()) peer.connection.forget_unwritten();
  }
}

void Mesh::close(int64_t rank) {
  peer(rank).connection.close();
  peer(rank).state = State::kClosed;
}

void Mesh::close_all() {
  for (int64_t rank = 0; rank < options_.size; ++rank) close(rank);
  options_.listener.close();
  accept_error_.clear();
}

std::vector<int64_t> Mesh::missing() const {
  std::vector<int64_t> ranks;
  for (int64_t rank = 0; rank < options_.size; ++rank) {
    const State state = peer(rank).state;
    if (rank == options_.rank || state == State::kConnected || state == State::kClosed) continue;
    ranks.push_back(rank);
  }
  return ranks;
}

void Mesh::try_to_connect(int64_t rank, Time now) {
  try {
    peer(rank).connection = Connection(begin_connect(peer(rank).endpoint));
    peer(rank).state = State::kConnecting;
  } catch (const std::runtime_error& error) {
    did_not_connect(rank, error.what(), now);
  }
}

void Mesh::did_not_connect(int64_t rank, const std::string& why, Time now) {
  peer(rank).connection.close();
  peer(rank).last_error = why;
  if (now < peer(rank).missed_since + kConnecting) {
    peer(rank).state = State::kWaiting;
    peer(rank).next_try = now + kAgain;
  } else {
    lose(rank, why);
  }
}

void Mesh::accept_strangers(Time now) {
  if (!options_.listener.is_open()) return;
  if (missing().empty()) {
    options_.listener.close();
    strangers_.clear();
    accept_error_.clear();
    return;
  }
  if (!accept_error_.empty() && now < next_accept_) return;
  accept_error_.clear();
  // At most kMostStrangers connections are accepted at a time, because a flood of strangers would
  // keep this thread from serving the ranks.
  for (size_t i = 0; i < kMostStrangers; ++i) {
    int error = 0;
    Socket socket = accept_on(options_.listener, &error);
    if (error != 0) {
      accept_error_ = std::strerror(error);
      next_accept_ = now + kAgain;
    }
    if (!socket.is_open()) break;
    if (strangers_.size() == kMostStrangers) {
      // The oldest stranger is read once more before it is dropped, because it may be a rank whose
      // hello has arrived since.
      is_done(strangers_.front());
      strangers_.erase(strangers_.begin());
    }
    strangers_.push_back({Connection(std::move(socket)), now + kStrangerLimit});
    strangers_.back().connection.limit(kLongestGreeting);
  }
}

void Mesh::read_strangers(Time now) {
  for (auto stranger = strangers_.begin(); stranger != strangers_.end();) {
    stranger = is_done(*stranger) || now >= stranger->deadline ? strangers_.erase(stranger)
                                                               : std::next(stranger);
  }
}

bool Mesh::is_done(Stranger& stranger) {
  std::vector<Frame> frames;
  const Connection::State state = stranger.connection.read(frames);
  if (!frames.empty()) greet(std::move(stranger.connection), frames.front());
  return !frames.empty() || state != Connection::State::kOpen;
}

// Drops, without an answer, a connection that is not from a rank of this run. A rank sends nothing
// but its hello before it gets a welcome.
void Mesh::greet(Connection connection, const Frame& frame) {
  if (!is_a(frame, MessageType::kHello)) return;
  Hello hello;
  try {
    hello = to_hello(frame.body);
  } catch (const DamagedMessage&) {
    return;
  }
  if (hello.token != options_.token || hello.size != options_.size || hello.rank <= options_.rank ||
      hello.rank >= options_.size) {
    return;
  }
  if (peer(hello.rank).state != State::kUnknown) return;
  connection.limit(Connection::kGreatestBody);
  connection.queue(to_frame(Welcome{options_.rank, options_.host}, 0));
  peer(hello.rank).connection = std::move(connection);
  connected(hello.rank, std::move(hello.host));
}

void Mesh::connected(int64_t rank, std::string host) {
  peer(rank).state = State::kConnected;
  peer(rank).host = std::move(host);
  events_.push_back({MeshEvent::Kind::kConnected, rank, {}, ""});
}

void Mesh::end_connecting(int64_t rank, Time now) {
  pollfd polled{peer(rank).connection.descriptor(), POLLOUT, 0};
  if (poll(&polled, 1, 0) <= 0) return;
  Socket socket = peer(rank).connection.take_socket();
  if (const int error = connect_error(socket)) {
    return did_not_connect(rank,
                           "rank " + std::to_string(options_.rank) + " cannot connect to " +
                               to_text(peer(rank).endpoint) + ": " + std::strerror(error),
                           now);
  }
  peer(rank).connection = Connection(std::move(socket));
  peer(rank).connection.queue(
      to_frame(Hello{options_.token, options_.rank, options_.size, options_.host}, 0));
  peer(rank).state = State::kGreeting;
}

void Mesh::read_peer(int64_t rank, Time now) {
  std::vector<Frame> frames;
  Connection::State state = peer(rank).connection.read(frames);
  for (Frame& frame : frames) {
    if (peer(rank).state == State::kGreeting) {
      try {
        take_welcome(rank, frame);
      } catch (const DamagedMessage&) {
        state = Connection::State::kDamaged;
        break;
      }
    } else {
      events_.push_back({MeshEvent::Kind::kFrame, rank, std::move(frame), ""});
    }
  }
  if (state == Connection::State::kDamaged) {
    lose(rank, "it sent what no rank sends");
  } else if (state == Connection::State::kClosed) {
    if (peer(rank).state == State::kGreeting) {
      // The other rank has dropped this connection unread because it has too many strangers. Or
      // that rank has just ended; then nothing listens at its endpoint any more.
      peer(rank).missed_since = now;
      did_not_connect(rank, "it closed the connection of rank " + std::to_string(options_.rank),
                      now);
    } else {
      lose(rank, "its connections closed: it ended, was killed, or its machine went down");
    }
  }
}

void Mesh::take_welcome(int64_t rank, const Frame& frame) {
  if (!is_a(frame, MessageType::kWelcome)) throw DamagedMessage("no welcome");
  Welcome welcome = to_welcome(frame.body);
  if (welcome.rank != rank) throw DamagedMessage("another rank");
  connected(rank, std::move(welcome.host));
}

void Mesh::lose(int64_t rank, const std::string& why) {
  close(rank);
  events_.push_back({MeshEvent::Kind::kLost, rank, {}, why});
}

}  // namespace gpipe::distributed
