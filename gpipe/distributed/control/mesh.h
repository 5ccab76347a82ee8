// Mesh: a connection from this rank to each other one, and nobody else.
//
// Each rank listens, and connects to those with lower numbers. What the frames say, and what the
// end of a connection means, others know (control.h).
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
  std::string token;  // who does not know it is no rank
  Socket listener;    // closed when all are connected
};

struct MeshEvent {
  enum class Kind {
    kConnected,
    kFrame,  // it sent one
    kLost,   // its connection is closed; or it cannot be reached, and is not tried again
  };
  Kind kind = Kind::kFrame;
  int64_t rank = 0;
  Frame frame;
  std::string why;  // of kLost
};

// Nothing here blocks. Not thread-safe.
//
// Guarantees: of a rank there is at most one kConnected, then frames, then at most one kLost. A
// stranger that connects is dropped, whatever it sends, and after some seconds if it sends nothing.
// However many there are, they make no rank look dead: a rank that is dropped among them comes
// again.
class Mesh {
 public:
  using Time = std::chrono::steady_clock::time_point;

  explicit Mesh(MeshOptions options);

  // Where a lower rank listens. Again: nothing happens.
  void add_peer(int64_t rank, const Endpoint& endpoint, Time now);

  // What poll() has to wait for, and until when at the latest: Time::max() if there is no limit.
  void append_descriptors(std::vector<pollfd>& polled) const;
  Time next_time() const;

  // All that has happened by now.
  std::vector<MeshEvent> read(Time now);

  // To be written by flush(). Nothing if the rank is not connected.
  void queue(int64_t rank, const Frame& frame);
  void queue_for_all(const Frame& frame);
  bool has_unwritten(int64_t rank) const { return peer(rank).connection.has_unwritten(); }
  void flush();

  // Without an event.
  void close(int64_t rank);
  void close_all();

  bool is_connected(int64_t rank) const { return peer(rank).state == State::kConnected; }
  // Of a rank that is or was connected.
  const std::string& host(int64_t rank) const { return peer(rank).host; }
  // Whose connection is neither there nor lost.
  std::vector<int64_t> missing() const;
  // Where it should answer; port 0 if that is not known.
  const Endpoint& endpoint(int64_t rank) const { return peer(rank).endpoint; }
  // Why the last try to connect to it was none; empty if there was none.
  const std::string& last_error(int64_t rank) const { return peer(rank).last_error; }
  // Why those that want to connect are not let in; empty if they are.
  const std::string& accept_error() const { return accept_error_; }

 private:
  enum class State {
    kUnknown,     // a lower rank without endpoint, or a higher one that has not come
    kWaiting,     // to connect to it again
    kConnecting,  // to its endpoint
    kGreeting,    // it knows who this is, and has not answered
    kConnected,
    kClosed,
  };
  struct Peer {
    State state = State::kUnknown;
    Endpoint endpoint;
    std::string host;
    Connection connection;
    Time missed_since{};  // since when nobody has listened there
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
  // Whether it is done with: it is a rank, or has said what no rank says.
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
  Time next_accept_{};             // not before; where somebody waits and cannot be let in
  std::vector<MeshEvent> events_;  // not given out yet
};

}  // namespace gpipe::distributed

#endif  // GPIPE_DISTRIBUTED_CONTROL_MESH_H_
