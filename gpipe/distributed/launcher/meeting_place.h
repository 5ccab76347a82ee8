// MeetingPlace: where the processes of a run find out which of them make up its next world.
//
// It is in the launcher and not in a rank, so that any rank may die. It knows which processes live,
// so nobody waits for one that does not. It needs no LibTorch.
#ifndef GPIPE_DISTRIBUTED_LAUNCHER_MEETING_PLACE_H_
#define GPIPE_DISTRIBUTED_LAUNCHER_MEETING_PLACE_H_

#include <poll.h>

#include <chrono>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "gpipe/distributed/launcher/meeting_rules.h"
#include "gpipe/distributed/sockets/connection.h"
#include "gpipe/distributed/sockets/master_port.h"
#include "gpipe/distributed/sockets/sockets.h"

namespace gpipe::distributed {

// A connection that does not know the secret is dropped, and so is the oldest of more than 4,096.
//
// Thread-safety: none. No function blocks.
//
// Throws: std::runtime_error if it cannot listen.
class MeetingPlace {
 public:
  using Time = MeetingRules::Time;

  // `address`: to listen on. `most`: a world has no more processes.
  MeetingPlace(const std::string& address, int64_t most);

  // The value of kMeetingPlaceVariable for the processes.
  std::string variable() const { return to_text(listens_at_) + "/" + secret_; }

  void started(int64_t number);
  // Call it when the process has ended, and before it is started again.
  void ended(int64_t number);
  // As in MeetingRules.
  void does_not_come(int64_t number) { rules_.does_not_come(number); }
  bool waits() const { return rules_.waits(); }
  // The run ends. No world comes to exist any more, and processes that ask are told `why`.
  void end(const std::string& why);

  // Adds what poll() is to wait for, and returns when serve() must be called at the latest.
  std::optional<Time> add_waits(std::vector<pollfd>& waits) const;
  void serve();

  // Whether a process has ever asked, so that the program goes on after deaths.
  bool was_asked() const { return was_asked_; }
  // Whether this process has asked since it was started.
  bool has_asked(int64_t number) const { return have_asked_.count(number) != 0; }
  // Whether this process was told that the run goes on without it.
  bool was_left_out(int64_t number) const { return left_out_.count(number) != 0; }
  // Whether a world exists without this process, which therefore cannot end that world's run.
  bool is_outside(int64_t number) const {
    return rules_.generation() != 0 && !rules_.is_member(number);
  }
  // As in MeetingRules.
  bool is_given_up(int64_t number) const { return rules_.is_given_up(number); }
  // Whether this process is in the world that exists.
  bool is_member(int64_t number) const { return rules_.is_member(number); }
  int64_t generation() const { return rules_.generation(); }

 private:
  struct Visitor {
    Connection connection;
    int64_t number = -1;  // until it has asked
    std::string process;  // as in Question
  };

  void accept_all();
  // Returns whether the connection stays.
  bool hear(Visitor& visitor, Time now);
  bool take(Visitor& visitor, const Frame& frame, Time now);
  void tell(const MeetingRules::Answer& answer);
  void lose(Visitor& visitor);

  Endpoint listens_at_;
  const std::string secret_;
  Socket listener_;
  MeetingRules rules_;
  std::list<Visitor> visitors_;
  std::unique_ptr<MasterPort> port_;  // the port of the last planned world
  int64_t port_generation_ = 0;
  bool was_asked_ = false;
  std::set<int64_t> have_asked_;
  std::set<int64_t> left_out_;
  std::optional<std::string> why_it_ends_;
};

}  // namespace gpipe::distributed

#endif  // GPIPE_DISTRIBUTED_LAUNCHER_MEETING_PLACE_H_
