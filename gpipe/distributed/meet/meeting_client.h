// MeetingClient: a process's side of the launcher's meeting place.
#ifndef GPIPE_DISTRIBUTED_MEET_MEETING_CLIENT_H_
#define GPIPE_DISTRIBUTED_MEET_MEETING_CLIENT_H_

#include <chrono>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "gpipe/distributed/meet/meeting_messages.h"
#include "gpipe/distributed/sockets/connection.h"

namespace gpipe::distributed {

// The world that was planned does not come to exist: ask again.
class MeetingIsVoid : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The run goes on without this process, or ends, or nobody can be asked.
class MeetingIsOver : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The line to the meeting place was cut for about the limit of the last question, or for so long
// that the meeting place has given up the connection. Another MeetingClient may reach it again.
class MeetingIsUnreachable : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Thread-safety: none.
//
// Throws: MeetingIsUnreachable, from all functions but the constructor; std::runtime_error if the
// meeting place is gone.
class MeetingClient {
 public:
  // Connects to `place`, the value of kMeetingPlaceVariable. Tries for `limit`, because a line that
  // is cut may heal, and then throws MeetingIsOver. Throws std::invalid_argument for another text.
  MeetingClient(const std::string& place, std::chrono::milliseconds limit);

  struct World {
    int64_t generation = 0;
    PlannedWorld plan;
  };
  // Waits for the next world. `question`: without the secret. `former`: the generation of the last
  // world that this process was in. Throws MeetingIsOver.
  World ask(Question question, int64_t former);
  // Throws MeetingIsVoid, each time until the next ask(), if the world that ask() has returned does
  // not come to exist; takes almost no time otherwise.
  void check() { return wait_for_void(std::chrono::milliseconds(0)); }
  // Waits up to `limit` for the message that check() looks for, and throws as check() does.
  void wait_for_void(std::chrono::milliseconds limit);
  // This process is connected to all others. Returns when the world exists, or throws
  // MeetingIsVoid.
  void arrive();

 private:
  // The next message; no value if none comes within `limit`. Without a limit, waits for ever.
  std::optional<Frame> next(std::optional<std::chrono::milliseconds> limit);
  void send(Frame frame);
  // Called when the connection has ended.
  [[noreturn]] void throw_end() const;

  std::string secret_;
  Connection connection_;
  std::vector<Frame> arrived_;
  Endpoint endpoint_;                             // the meeting place
  std::chrono::steady_clock::time_point made_{};  // when the connection was made
  int64_t generation_ = 0;                        // the generation that ask() has returned last
  bool is_void_ = false;                          // whether that generation does not come to exist
};

}  // namespace gpipe::distributed

#endif  // GPIPE_DISTRIBUTED_MEET_MEETING_CLIENT_H_
