// MeetingRules: which processes of a run make up its next world.
//
// The rules know no connection and no clock: the meeting place (meeting_place.h) tells them what it
// hears, and delivers their answers.
#ifndef GPIPE_DISTRIBUTED_LAUNCHER_MEETING_RULES_H_
#define GPIPE_DISTRIBUTED_LAUNCHER_MEETING_RULES_H_

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "gpipe/distributed/meet/meeting_messages.h"

namespace gpipe::distributed {

// A process has a number, by which the launcher has started it. A process that is started again has
// the same one.
//
// Guarantees: the generations that come to exist (kGo) rise, each from the one before: a process
// gets a kGo only if all of that world have arrived.
//
// Thread-safety: none.
class MeetingRules {
 public:
  using Time = std::chrono::steady_clock::time_point;

  struct Answer {
    int64_t number = 0;  // the process to tell
    MeetingMessage message = kVoid;
    int64_t generation = 0;
    std::string text;                // for kOver and kRefused
    int64_t rank = 0;                // for kWorld
    std::vector<int64_t> came_from;  // for kWorld
    int64_t local_rank = 0;          // for kWorld
  };

  // `most`: a world has no more processes. Others that ask wait for the next one.
  explicit MeetingRules(int64_t most) : most_(most) {}

  void started(int64_t number);
  void ended(int64_t number);
  void ask(int64_t number, int64_t former, const Question& question, Time now);
  void arrived(int64_t number, int64_t generation);
  // The process asks no longer, though it may live.
  void gave_up(int64_t number);
  // The same, because nothing has come from the process for the limit of its question.
  void was_cut_off(int64_t number);
  // The others need not wait for this process, unless it asks after all. A planned world that waits
  // for it does not come to exist.
  void does_not_come(int64_t number);

  // What is to be told now.
  std::vector<Answer> answers(Time now);
  // When answers() must be called again, even if nothing else happens.
  std::optional<Time> next_time() const;

  // Whether some processes wait for others, which does_not_come() may end.
  bool waits() const { return meeting_ends_ || (planned_ && agreed_ != 0); }
  // Whether the process is in the world that exists.
  bool is_member(int64_t number) const { return members_left_.count(number) != 0; }
  // Whether the others have waited for this process in vain since a world exists, and it has not
  // asked since.
  bool is_given_up(int64_t number) const { return given_up_.count(number) != 0; }
  int64_t generation() const { return agreed_; }

 private:
  struct Asking {
    int64_t former = 0;
    Question question;
  };
  // A world whose processes connect.
  struct Planned {
    int64_t generation = 0;
    std::vector<int64_t> members;
    std::set<int64_t> missing;    // members that have not arrived
    std::set<int64_t> left_over;  // survivors that wait for a later world
    std::map<int64_t, int64_t> local_ranks;
    std::chrono::milliseconds patience{0};
    Time end;
  };

  bool is_planned(int64_t number) const;
  bool is_survivor(int64_t number) const;
  bool begins() const;
  // How long the others wait for a process that lives.
  std::chrono::milliseconds patience_with(int64_t number, const Question& question) const;
  void give_up_plan();
  void plan(Time now);
  // The local ranks of these processes, all of which ask, by number.
  std::map<int64_t, int64_t> local_ranks_of(const std::vector<int64_t>& members) const;

  const int64_t most_;
  std::set<int64_t> living_;
  std::set<int64_t> not_waited_for_;  // processes that live, and did not come in time
  std::map<int64_t, Asking> asking_;
  int64_t last_generation_ = 0;        // the last generation that was planned
  int64_t agreed_ = 0;                 // the generation of the world that exists; 0: none
  std::vector<int64_t> members_;       // the processes of the world that exists, by rank
  std::set<int64_t> members_left_;     // the processes of that world that have not ended since
  std::set<int64_t> given_up_;         // as is_given_up()
  std::set<int64_t> left_over_;        // survivors that became newcomers, and wait or ask again
  std::optional<Time> meeting_began_;  // set while some processes wait for others
  std::optional<Time> meeting_ends_;   // when the first of these waits ends
  std::map<int64_t, int64_t> local_ranks_;  // of members_, by number
  std::optional<Planned> planned_;
  int in_vain_ = 0;  // planned worlds, since the last one that existed, to which nobody connected
  std::vector<Answer> answers_;
};

}  // namespace gpipe::distributed

#endif  // GPIPE_DISTRIBUTED_LAUNCHER_MEETING_RULES_H_
