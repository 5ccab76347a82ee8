// Control messages: the messages that the ranks of a run exchange beside the tensors.
#ifndef GPIPE_DISTRIBUTED_CONTROL_CONTROL_MESSAGES_H_
#define GPIPE_DISTRIBUTED_CONTROL_CONTROL_MESSAGES_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "gpipe/distributed/control/agreement.h"
#include "gpipe/distributed/control/failure.h"
#include "gpipe/distributed/sockets/connection.h"

namespace gpipe::distributed {

enum class MessageType : uint8_t {
  kHello = 1,  // first frame of a rank that connects: its number
  kWelcome,    // the answer: the number of the rank that was reached
  kBeat,       // says only that its sender lives
  kFault,      // a fault that its sender knows of
  kRecord,     // the faults that all ranks throw
  kAgree,      // to rank 0: a value of its sender, to compare or to give to all
  kVerdict,    // from rank 0: the result of an agreement
  kNext,       // its sender is ready for the next epoch
  kBye,        // its sender leaves
  kByeHeard,   // the answer to kBye: its receiver may close its connection
  kGivenUp,    // its sender waited in a call and has given it up
};

struct Hello {
  std::string token;
  int64_t rank = 0;
  int64_t size = 0;
  std::string host;
};
struct Welcome {
  int64_t rank = 0;
  std::string host;
};
struct FaultMessage {
  Fault fault;
  // How long ago the fault happened. Not a point in time: clocks of machines differ.
  std::chrono::microseconds age{};
};
struct Agree {
  uint64_t number = 0;  // its place among the sender's agreements and exchanges of this epoch
  Agreement::Words words;
};
struct Verdict {
  uint64_t number = 0;
  std::string text;                 // empty: all ranks have said the same
  std::vector<std::string> values;  // the collected values, by rank, if the text is empty
  uint64_t given_up = 0;            // see Agreement::given_up()
};
struct GivenUp {
  uint64_t call = 0;  // the number of the call that was given up
  std::string text;   // the message of what the sender throws
};
struct Bye {
  uint64_t calls = 0;   // how many calls its sender has done
  uint64_t agrees = 0;  // how many agreements and exchanges it has made in this epoch
};

Frame to_frame(const Hello& hello, uint32_t epoch);
Frame to_frame(const Welcome& welcome, uint32_t epoch);
Frame to_frame(const FaultMessage& message, uint32_t epoch);
Frame to_frame(const std::vector<Fault>& record, uint32_t epoch);
Frame to_frame(const Agree& agree, uint32_t epoch);
Frame to_frame(const Verdict& verdict, uint32_t epoch);
Frame to_frame(const Bye& bye, uint32_t epoch);
Frame to_frame(const GivenUp& given_up, uint32_t epoch);
// A frame of a type of message that carries no data.
Frame to_frame(MessageType type, uint32_t epoch);

// How many bytes the value of each of `size` ranks may have, so that one Verdict can hold them all.
std::size_t longest_collected(const std::string& name, int64_t size);

// These throw DamagedMessage (bytes.h). `size`: the number of ranks; a fault names one of them.
Hello to_hello(std::string_view body);
Welcome to_welcome(std::string_view body);
FaultMessage to_fault(std::string_view body, int64_t size);
std::vector<Fault> to_record(std::string_view body, int64_t size);
Agree to_agree(std::string_view body);
Verdict to_verdict(std::string_view body, int64_t size);
Bye to_bye(std::string_view body);
GivenUp to_given_up(std::string_view body);

}  // namespace gpipe::distributed

#endif  // GPIPE_DISTRIBUTED_CONTROL_CONTROL_MESSAGES_H_
