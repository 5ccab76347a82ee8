// MeetingMessage: what a process and the launcher's meeting place tell each other.
//
// A process asks for the next world of its run (kAsk). All that are to be in it get a kWorld at the
// same time, connect, and say so (kArrived). When all have, the meeting place decides that this
// world exists (kGo). If one of them dies before, it does not come to exist (kVoid), and they ask
// again.
#ifndef GPIPE_DISTRIBUTED_MEET_MEETING_MESSAGES_H_
#define GPIPE_DISTRIBUTED_MEET_MEETING_MESSAGES_H_

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace gpipe::distributed {

// The environment variable with the meeting place: "127.0.0.1:4711/SECRET".
inline constexpr char kMeetingPlaceVariable[] = "GPIPE_MEETING_PLACE";

// The form of the messages. It gets a new number with each change of a message, since the launcher
// and the program may be of different builds, which nothing else compares.
inline constexpr char kMeetingProtocol[] = "gpipe meeting 2";

// The type of a frame. A frame's epoch is the generation that it is about.
enum MeetingMessage : uint8_t {
  kAsk = 1,  // Question
  kWorld,    // PlannedWorld
  kArrived,  // empty
  kGo,       // empty
  kVoid,     // empty
  kOver,     // a text: the process has no part in this run any more
  kRefused,  // a text: no world comes to exist
};

// The frame's epoch is the generation of the last world that the process was in; 0: of none.
struct Question {
  // These two begin a question in each form of the messages, so that the meeting place can refuse
  // another form.
  std::string secret;
  std::string protocol = kMeetingProtocol;
  int64_t number = 0;  // as the launcher has started it
  // How long those that ask wait for the others, in the first world and in later ones.
  std::chrono::milliseconds first_limit{0};
  std::chrono::milliseconds limit{0};
  // A text that no other process has. A process that has lost its connection may ask again over
  // another one, but another process must not ask with its number.
  std::string process;
  // The next world has a multiple of so many processes, if so many come, and if no process was lost
  // since the world before. What newcomers say does not count.
  int64_t multiple_of = 1;
  // Ranks of that world from which nothing had come for silence_limit when the world was lost.
  std::vector<int64_t> silent;
};

struct PlannedWorld {
  int64_t rank = 0;
  int64_t size = 0;
  int64_t port = 0;                // for rank 0 to listen on
  int64_t local_rank = 0;          // below --processes of the launcher
  std::vector<int64_t> came_from;  // for each rank, its rank in the world before; -1: a newcomer
};

std::string to_bytes(const Question& question);
std::string to_bytes(const PlannedWorld& world);
// Both throw DamagedMessage. A question in another form has its secret and its protocol alone, an
// empty one if it is older than the numbers.
Question to_question(const std::string& bytes);
PlannedWorld to_planned_world(const std::string& bytes);

}  // namespace gpipe::distributed

#endif  // GPIPE_DISTRIBUTED_MEET_MEETING_MESSAGES_H_
