// Mesh: a connection from this rank to each other rank, and to no other process.
//
// Each rank listens, and connects to the ranks with lower numbers. Mesh does not interpret frames
// or the end of a connection; control.h does.
#ifndef GPIPE_DISTRIBUTED_CONTROL_MESH_H_
#define GPIPE_DISTRIBUTED_CONTROL_MESH_H_

#include <poll.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "gpipe/distributed/sockets/connection.h"
#include "gpipe/distributed/sockets/sockets.h"

namespace gpipe::distributed {

struct MeshOptions {
  int64_t rank = 0;
  int64_t size = 1;
  std::string host;
  std::string token;  // the secret of the run; a connection without it is rejected
  Socket listener;    // closed when all ranks are connected
};

struct MeshEvent {
  enum class Kind {
    kConnected,
    kFrame,  // the rank sent one
    kLost,   // its connection is closed; or it cannot be reached, and this rank gives up
  };
  Kind kind = Kind::kFrame;
  int64_t rank = 0;
  Frame frame;
  std::string why;  // for kLost
};

// Nothing here blocks. Not thread-safe.
//
// Guarantees: each rank has at most one kConnected, then frames, then at most one kLost. A stranger
// that connects is dropped, whatever it sends, and after some seconds if it sends nothing. However
// many strangers there are, they do not make a rank look dead: a rank that is dropped among them
// connects again.
class Mesh {
 public:
  using Time = std::chrono::steady_clock::time_point;

  explicit Mesh(MeshOptions options);

  // Tells where a lower rank listens. A second call for a rank has no effect.
  void add_peer(int64_t rank, const Endpoint& endpoint, Time now);

  // The descriptors for poll(), and the time at which it must return: Time::max() if no limit.
  void append_descriptors(std::vector<pollfd>& polled) const;
  Time next_time() const;

  // All events until now, each once.
  std::vector<MeshEvent> read(Time now);

  // Queues a frame, which flush() writes. Without effect if the rank is not connected.
  void queue(int64_t rank, const Frame& frame);
  void queue_for_all(const Frame& frame);
  bool has_unwritten(int64_t rank) const { return peer(rank).connection.has_unwritten(); }
  void flush();

  // These cause no event.
  void close(int64_t rank);
  void close_all();

  bool is_connected(int64_t rank) const { return peer(rank).state == State::kConnected; }
  // The host of a rank that is or was connected.
  const std::string& host(int64_t rank) const { return peer(rank).host; }
  // The ranks that have neither connected nor been lost.
  std::vector<int64_t> missing() const;
  // Where the rank should listen; port 0 if that is not known.
  const Endpoint& endpoint(int64_t rank) const { return peer(rank).endpoint; }
  // Why the last attempt to connect to the rank failed; empty if none failed.
  const std::string& last_error(int64_t rank) const { return peer(rank).last_error; }
  // Why this rank cannot accept connections; empty if it can.
  const std::string& accept_error() const { return accept_error_; }

 private:
  enum class State {
    kUnknown,     // a lower rank without endpoint, or a higher one that has not come
    kWaiting,     // until next_try, to connect to it again
    kConnecting,  // to its endpoint
    kGreeting,    // connected, and it has not answered this rank's hello
    kConnected,
    kClosed,
  };
  struct Peer {
    State state = State::kUnknown;
    Endpoint endpoint;
    std::string host;
    Connection connection;
    Time missed_since{};  // since when no process has listened there
    Time next_try{};
    std::string last_error;
  };
  struct Stranger {
    Connection connection;
    Time deadline{};
  };

  const Peer& peer(int64_t rank) const { return peers_[static_cast<size_t>(rank)]; }
  Peer& peer(int64_t rank) { return peers_[static_cast<size_t>(rank)]; }

  void try_to_connect(int64_t rank, Time now);
  void did_not_connect(int64_t rank, const std::string& why, Time now);
  void accept_strangers(Time now);
  void read_strangers(Time now);
  // Reads from the stranger. Returns whether it can be removed from strangers_, because it is a
  // rank, has sent a message that no rank sends, or has closed the connection.
  bool is_done(Stranger& stranger);
  void greet(Connection connection, const Frame& frame);
  void connected(int64_t rank, std::string host);
  void end_connecting(int64_t rank, Time now);
  void read_peer(int64_t rank, Time now);
  void take_welcome(int64_t rank, const Frame& frame);
  void lose(int64_t rank, const std::string& why);

  MeshOptions options_;
  std::vector<Peer> peers_;
  std::vector<Stranger> strangers_;
  std::string accept_error_;
  Time next_accept_{};             // when to accept again, after an accept_error_
  std::vector<MeshEvent> events_;  // not returned by read() yet
};

}  // namespace gpipe::distributed

#endif  // GPIPE_DISTRIBUTED_CONTROL_MESH_H_
